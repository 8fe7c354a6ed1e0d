package sandboxtest

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rookery/internal/sandbox/confine"
)

// probeName is the name under which a test binary runs inside a session.
const probeName = "rookery-probe"

// Main returns at once unless this process is the test binary inside a session,
// which then tries to get out. A test binary that runs Escape calls it first.
func Main() {
	if len(os.Args) < 2 || filepath.Base(os.Args[0]) != probeName {
		return
	}
	switch os.Args[1] {
	case "escape":
		escape()
	case "serve":
		serve()
	case "connect":
		if _, err := net.DialTimeout("tcp", os.Args[2], patience); err != nil {
			os.Exit(1)
		}
	case "abi":
		if confine.OtherABIs() {
			os.Exit(1)
		}
	}
	os.Exit(0)
}

// A host is what lies around a session, for its prober to reach for.
type host struct {
	Dir       string // of the host, in which all this is
	File      string // a file that anybody may read
	Socket    string // a listening unix socket that anybody may connect to
	Abstract  string
	TCP, TCP6 string
	UDP       string
	LAN       string // the TCP port on an address that is not loopback
	Process   int    // a process of the same user
	Workspace string // the session's, as the host sees it
	Sibling   string // workspace of another session
	Secret    string // a value in the worker's environment
	Neighbor  neighbor
}

// A neighbor is what another session, open at the same time, holds out.
type neighbor struct {
	TCP, Abstract string
	Key           int
}

// A verdict is what became of one probe. Leak is empty when it was held.
type verdict struct {
	Group string
	Name  string
	Leak  string
}

// A probe tries one way out and returns what it got, empty for nothing.
type probe struct {
	name string
	try  func(h host) string
}

// hostFile holds the host's description, in the workspace.
const hostFile = "probe.json"

func escape() {
	var h host
	b, err := os.ReadFile(hostFile)
	if err == nil {
		err = json.Unmarshal(b, &h)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
	runtime.LockOSThread() // rights are a thread's
	out := json.NewEncoder(os.Stdout)
	for _, g := range probes() {
		for _, p := range g.probes {
			_ = out.Encode(verdict{g.name, p.name, p.try(h)})
		}
	}
	_ = out.Encode(verdict{Name: last})
}

// last is the name of the verdict that ends the list.
const last = "end"

type probeGroup struct {
	name   string
	probes []probe
}

func probes() []probeGroup {
	return []probeGroup{
		{"files", fileProbes()},
		{"writing", writeProbes()},
		{"links", linkProbes()},
		{"devices", deviceProbes()},
		{"proc and sys", procProbes()},
		{"ids", idProbes()},
		{"set-id modes", modeProbes()},
		{"mounts", mountProbes()},
		{"namespaces", namespaceProbes()},
		{"processes", processProbes()},
		{"keyrings", keyProbes()},
		{"system calls", callProbes()},
		{"architectures", abiProbes()},
		{"socket families", familyProbes()},
		{"network", networkProbes()},
		{"sockets of the host", socketProbes()},
		{"terminals", terminalProbes()},
		{"descriptors and environment", inheritedProbes()},
		{"other sessions", neighborProbes()},
	}
}

// each makes a probe of every value.
func each[T any](format string, try func(h host, v T) string, values ...T) []probe {
	var list []probe
	for _, v := range values {
		list = append(list, probe{fmt.Sprintf(format, v), func(h host) string { return try(h, v) }})
	}
	return list
}

// readable reports what can be read at path.
func readable(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	if info.IsDir() {
		if entries, err := os.ReadDir(path); err == nil && len(entries) > 0 {
			return fmt.Sprintf("%d entries, such as %s", len(entries), entries[0].Name())
		}
		return ""
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer func() { _ = unix.Close(fd) }()
	b := make([]byte, 64)
	if n, err := unix.Read(fd, b); err == nil && n > 0 {
		return fmt.Sprintf("read %.30q", b[:n])
	}
	return ""
}

// writable reports whether something can be written at path.
func writable(path string) string {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_APPEND, 0)
	if err != nil {
		return ""
	}
	_ = unix.Close(fd)
	return "opened for writing"
}

func creatable(dir string) string {
	name := filepath.Join(dir, "rookery-probe-made-this")
	f, err := os.Create(name)
	if err != nil {
		return ""
	}
	_ = f.Close()
	_ = os.Remove(name)
	return "made a file in " + dir
}

// refused expects a system call to be refused before the kernel looks at it.
func refused(nr uintptr, args ...uintptr) string {
	var a [6]uintptr
	copy(a[:], args)
	_, _, e := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	if e == unix.EPERM || e == unix.ENOSYS || e == unix.EACCES {
		return ""
	}
	return "the kernel answered: " + errnoText(e)
}

func errnoText(e unix.Errno) string {
	if e == 0 {
		return "done"
	}
	return e.Error()
}

// denied expects a system call not to succeed, whatever the kernel says.
func denied(nr uintptr, args ...uintptr) string {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, e := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); e == 0 {
		return "done"
	}
	return ""
}

// aside runs a probe in a process of its own, which may be killed for it. Its exit
// status is what it found.
func aside(arg string) (status int, err error) {
	p, err := os.StartProcess("/proc/self/exe", []string{probeName, arg}, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return 0, err
	}
	st, err := p.Wait()
	if err != nil {
		return 0, err
	}
	return st.ExitCode(), nil
}

const patience = time.Second // for an answer that should not come

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func statusField(pid, field string) string {
	b, _ := os.ReadFile("/proc/" + pid + "/status")
	for line := range strings.Lines(string(b)) {
		if name, value, _ := strings.Cut(line, ":"); name == field {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
