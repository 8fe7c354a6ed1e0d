package native

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"rookery/internal/sandbox"
)

// marker is the name under which this program runs itself as a sandbox's child.
const marker = "rookery-sandbox"

// Main returns at once unless this process is a child of the sandbox, whose work
// it then does to the end. Programs with this backend call it first, with the
// operations that they give to New.
func Main(ops sandbox.Ops) {
	if len(os.Args) != 2 || os.Args[0] != marker {
		served.Store(true)
		return
	}
	runtime.LockOSThread() // rights belong to threads, and so does a parent's death
	switch os.Args[1] {
	case "spawner":
		runSpawner()
	case "holder":
		runHolder()
	case "init":
		runInit()
	case "helper":
		runHelper(ops)
	case "probe":
		runProbe()
	default:
		fmt.Fprintln(os.Stderr, "not for use by hand")
		syscall.Exit(2)
	}
	syscall.Exit(0) // not os.Exit, which lingers under the race detector
}

// served says that Main was called: a program that does not would, as its own
// child, do again what it does.
var served atomic.Bool //nolint:gochecknoglobals // true of the program, not of a backend

// Descriptors that the children begin with.
const (
	fdSocket    = 3
	fdFilter    = 4
	fdWorkspace = 5
	fdScratch   = 6
	fdProgram   = 7
	fdReadOnly  = 8 // and following
)

// A place in the session's view.
const (
	workspaceDir = "/workspace"
	scratchDir   = "/scratch"
	homeDir      = "/home/agent"
	tmpDir       = "/tmp"
	varTmp       = "/var/tmp"
	programFile  = "/.init"
)

// insideID is user and group of a session's processes, as they see it.
const insideID = 1000

// A stageError is a step of setting up that failed in a child.
type stageError struct {
	Stage string `json:"stage"`
	Errno int    `json:"errno,omitempty"`
	Text  string `json:"text"`
}

func (e *stageError) Error() string { return e.Stage + ": " + e.Text }

func (e *stageError) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return unix.Errno(e.Errno)
}
