package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"time"
)

// The times every backend keeps.
const (
	// KillGrace is how long a call may take between TERM and KILL.
	KillGrace = time.Second
	// Drain is how long output is awaited after the main process has ended.
	Drain = 100 * time.Millisecond
)

// Errors that callers branch on.
var (
	// ErrClosed reports a session that was closed.
	ErrClosed = errors.New("sandbox session is closed")
	// ErrNotFound reports a program that is not in the session's view.
	ErrNotFound = errors.New("program not found")
	// ErrInvalid reports a CallSpec that no system could run.
	ErrInvalid = errors.New("invalid command")
	// ErrNoOp reports a file operation that the backend was not given.
	ErrNoOp = errors.New("unknown file operation")
)

// A Backend confines sessions in one way.
type Backend interface {
	// Name is none, native, … as in --sandbox.
	Name() string
	// Check tests everything that Open and Start rely on. Its error is for the
	// operator: what failed, what it usually means here, what to do.
	Check(ctx context.Context) (Report, error)
	// Open makes a session. ctx bounds the opening, not the session.
	Open(ctx context.Context, spec SessionSpec) (Session, error)
}

// A Report is what Check found out. Warning is said in every session.
type Report struct {
	Backend string   `json:"backend"`
	Lines   []string `json:"lines"`
	Warning string   `json:"warning,omitempty"`
}

// A SessionSpec says what a session's tools may see and use.
type SessionSpec struct {
	ID string
	// Workspace and Scratch are existing directories of the host, absolute.
	// Scratch is the session's own, outside the workspace.
	Workspace, Scratch string
	// Made says that the worker made the workspace, for this session alone: a
	// backend may give it to another user of the system.
	Made bool
	// Dir is the opened workspace. Where it is set, a Workspace that is another
	// directory by now is refused. It stays the caller's.
	Dir *os.File
	// ReadOnly are further directories of the host that the session may read.
	ReadOnly []string
	// Env is added to the fixed environment of every call: NAME=value.
	Env    []string
	Net    NetPolicy
	Limits Limits
}

// A NetPolicy says what a session may reach. The zero value is nothing.
type NetPolicy struct {
	Allow []string // host names
}

// Limits bound a call; 0 is the backend's default, negative none.
type Limits struct {
	Memory int64         // bytes
	Pids   int           // processes and threads
	CPU    time.Duration // per second of wall time
	Disk   int64         // bytes in the workspace
	Output int64         // printed bytes
}

// A Session runs the commands and file operations of one rookery session. It is
// safe for concurrent use.
type Session interface {
	// Start starts a command. ctx bounds the starting only: a call runs until
	// its end, its Timeout, its Kill or the session's Close.
	Start(ctx context.Context, spec CallSpec) (Call, error)
	// Do runs a file operation in the session's view. args and the answer are
	// JSON and cross a process border in confining backends: keep both under
	// MaxOp. When ctx is done, Do returns soon with its cause.
	Do(ctx context.Context, op string, args json.RawMessage) (json.RawMessage, error)
	// Paths tells where the session's commands see workspace and scratch.
	Paths() Paths
	// Usage is the sum over the calls that have ended.
	Usage() Usage
	// Close kills what runs and waits for it. It is idempotent.
	Close() error
}

// Paths are places as the session's commands see them.
type Paths struct{ Workspace, Scratch string }

// A Size is a terminal's.
type Size struct{ Rows, Cols uint16 }

// A CallSpec is one command.
type CallSpec struct {
	// Argv[0] is looked up in the PATH of the call, in the session's view.
	Argv []string
	// Env is added to the session's: NAME=value.
	Env []string
	// Dir is as the session sees it; relative means in the workspace.
	Dir string
	// PTY gives the command a terminal of that size; Output then has no stderr.
	PTY *Size
	// Stdin opens a pipe for Call.Stdin; without it, and without PTY, input is
	// empty.
	Stdin bool
	// Merge sends stdout and stderr through one pipe, in the order they were
	// written; Output then has no stderr.
	Merge bool
	// Timeout kills the call with reason timeout; 0 or less is none.
	Timeout time.Duration
	Limits  *Limits
}

// A Call is a started command. It is safe for concurrent use. The caller reads
// the output to its end and calls Wait.
type Call interface { //nolint:interfacebloat // a process has so many sides
	// Stdin is nil unless the spec asked for it or for a PTY.
	Stdin() io.WriteCloser
	// Output ends with io.EOF when all writers are gone, at the latest Drain
	// after the main process. stderr is nil when the call merges.
	Output() (stdout, stderr io.Reader)
	// Resize changes the terminal's size; without one it is an error.
	Resize(size Size) error
	// Signal sends sig to the command's process group.
	Signal(sig syscall.Signal) error
	// Kill ends the call: TERM to all its processes, KILL after KillGrace. It
	// does not wait. The first reason is the one that Result tells.
	Kill(reason Reason)
	// Wait returns after the main process has ended and its tree is gone. It
	// may be called more than once.
	Wait() (Result, error)
}

// A Reason says why a call ended.
type Reason string

// The reasons.
const (
	Exited        Reason = "exited"
	TimedOut      Reason = "timeout"
	Killed        Reason = "killed"
	OutOfMemory   Reason = "oom"
	OutputLimit   Reason = "output_limit"
	DiskLimit     Reason = "disk_limit"
	WorkerStopped Reason = "worker_stopped"
)

// A Result tells how a call ended: Signal is 0 unless a signal ended it, and Exit
// is then 128 + Signal.
type Result struct {
	Exit, Signal int
	Reason       Reason
	Usage        Usage
}

// Usage is what processes used.
type Usage struct {
	CPU, Wall time.Duration
	PeakMem   int64 // bytes, of the largest process
}

// Validate reports what makes the spec impossible to run; its error wraps
// ErrInvalid.
func (s CallSpec) Validate() error {
	if len(s.Argv) == 0 || s.Argv[0] == "" {
		return invalid("no program given")
	}
	for i, a := range s.Argv {
		if strings.ContainsRune(a, 0) {
			return invalid("argument %d contains a NUL byte", i)
		}
	}
	if strings.ContainsRune(s.Dir, 0) {
		return invalid("the working directory contains a NUL byte")
	}
	return ValidEnv(s.Env)
}

// ValidEnv reports what makes entries of an environment impossible; its error wraps
// ErrInvalid.
func ValidEnv(env []string) error {
	for _, e := range env {
		name, _, ok := strings.Cut(e, "=")
		if !ok || name == "" {
			return invalid("environment entry %.40q is not NAME=value", e)
		}
		if strings.ContainsRune(e, 0) {
			return invalid("environment variable %.40q contains a NUL byte", name)
		}
	}
	return nil
}
