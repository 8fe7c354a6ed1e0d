package landlock

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"

	"rookery/internal/sandbox"
	"rookery/internal/sandbox/confine"
	"rookery/internal/sandbox/fileop"
)

// marker is the name under which this program runs itself as a sandbox's child.
const marker = "rookery-landlock"

// Descriptors that the children begin with.
const (
	fdSpec   = 3
	fdFilter = 4
	fdAlive  = 5 // keeper
	fdSocket = 5 // helper
)

// exitBroken is the keeper's exit status when it could not run the command.
const exitBroken = 125

// rights are what a child may do, and what it runs.
type rights struct {
	Workspace string   `json:"workspace"`
	Scratch   string   `json:"scratch"`
	ReadOnly  []string `json:"read_only,omitempty"`
	Path      string   `json:"path,omitempty"`
	Argv      []string `json:"argv,omitempty"`
	Env       []string `json:"env,omitempty"`
	// Canary makes the command the prober: a file that it must not read.
	Canary string `json:"canary,omitempty"`
}

// Main returns at once unless this process is a child of the sandbox, whose work it
// then does to the end. Programs with this backend call it first, with the
// operations that they give to New.
func Main(ops sandbox.Ops) {
	if len(os.Args) != 2 || os.Args[0] != marker {
		served.Store(true)
		return
	}
	runtime.LockOSThread() // rights are a thread's
	switch os.Args[1] {
	case "keeper":
		fail(keep())
	case "command":
		fail(command())
	case "helper":
		help(ops)
	}
	syscall.Exit(0)
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandbox landlock:", err)
		syscall.Exit(exitBroken)
	}
}

// keep runs the command and kills what it leaves. It is outside of the command's
// Landlock domain, which therefore cannot signal it.
func keep() error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGTSTP, unix.SIGCONT)
	if err := errors.Join(
		confine.Hide(), confine.CloseFrom(fdAlive),
		os.NewSyscallError("prctl PR_SET_CHILD_SUBREAPER", unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)),
	); err != nil {
		return err
	}
	pid, err := syscall.ForkExec("/proc/self/exe", []string{marker, "command"}, &syscall.ProcAttr{
		Env: []string{"GOMAXPROCS=1"}, Files: []uintptr{0, 1, 2, fdSpec, fdFilter},
		Sys: &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL},
	})
	if err != nil {
		return err
	}
	for fd := range 3 {
		_ = unix.Close(fd) // only the command holds them
	}
	go func() { // ends with the process
		b := make([]byte, 1)
		_, _ = unix.Read(fdAlive, b) // the worker has ended, or wants this to end
		killAll()
	}()
	status := await(pid)
	killAll()
	reapAll()
	endAs(status)
	return nil
}

// await reaps until the command has ended.
func await(pid int) unix.WaitStatus {
	for {
		var status unix.WaitStatus
		got, err := unix.Wait4(-1, &status, 0, nil)
		if got == pid || err != nil && !errors.Is(err, unix.EINTR) {
			return status
		}
	}
}

// killAll kills this process's children, until there are none but dead ones: what
// was a child's child becomes one.
func killAll() {
	for range 10_000 { // more rounds than processes can be started in: the kernel reparents at once
		alive := 0
		for _, pid := range children() {
			if unix.Kill(pid, unix.SIGKILL) == nil {
				alive++
			}
		}
		if alive == 0 {
			return
		}
		runtime.Gosched()
	}
}

// children lists those that are not dead.
func children() (pids []int) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if parent, dead := parentOf(name); parent == os.Getpid() && !dead {
			pids = append(pids, pid)
		}
	}
	return pids
}

// parentOf reads /proc/<pid>/stat: the name may hold anything, what follows its last
// parenthesis is plain.
func parentOf(pid string) (parent int, dead bool) {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0, true
	}
	var state string
	_, _ = fmt.Sscan(string(b[bytes.LastIndexByte(b, ')')+1:]), &state, &parent)
	return parent, state == "Z" || state == "X"
}

func reapAll() {
	for {
		_, err := unix.Wait4(-1, nil, 0, nil)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// endAs ends this process as the command ended.
func endAs(status unix.WaitStatus) {
	if !status.Signaled() {
		syscall.Exit(status.ExitStatus())
	}
	sig := status.Signal()
	var byDefault struct {
		handler, flags, restorer, mask uintptr
	}
	_ = confine.Limit(map[int]uint64{unix.RLIMIT_CORE: 1})
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
	_ = unix.Kill(os.Getpid(), sig)
	syscall.Exit(128 + int(sig)) // the signal does not end processes
}

// command confines this process and becomes the command.
func command() error {
	r, filter, err := receive()
	if err != nil {
		return err
	}
	if err := errors.Join(confine.CloseFrom(fdSpec), confine.Limit(fileLimits()), confine.NoNewPrivileges()); err != nil {
		return err
	}
	if err := r.confineThread(); err != nil {
		return err
	}
	if err := confine.Install(filter); err != nil {
		return err
	}
	if r.Canary != "" {
		return json.NewEncoder(os.Stdout).Encode(probe(r))
	}
	return os.NewSyscallError("exec "+r.Path, syscall.Exec(r.Path, r.Argv, r.Env))
}

func receive() (r rights, filter []byte, err error) {
	spec, err := confine.Read(os.NewFile(fdSpec, "command"))
	if err != nil {
		return r, nil, err
	}
	if err := json.Unmarshal(spec, &r); err != nil {
		return r, nil, fmt.Errorf("decode the command: %w", err)
	}
	filter, err = confine.Read(os.NewFile(fdFilter, "filter"))
	return r, filter, err
}

// fileLimits: a core file of one byte, not of none: none would still start a handler
// on the host.
func fileLimits() map[int]uint64 {
	return map[int]uint64{unix.RLIMIT_CORE: 1, unix.RLIMIT_NOFILE: 4096, unix.RLIMIT_FSIZE: 1 << 30, unix.RLIMIT_MSGQUEUE: 0}
}

func (r rights) rules() []landlock.Rule {
	read := append([]string{
		"/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/etc/ssl", "/etc/pki", "/etc/alternatives", "/etc/ca-certificates",
		"/etc/ld.so.conf.d", "/etc/terminfo", "/etc/fonts", "/etc/python3", "/etc/perl", "/proc/self/fd",
	}, r.ReadOnly...)
	return []landlock.Rule{
		landlock.RODirs(read...).IgnoreIfMissing(),
		landlock.ROFiles("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/etc/hosts", "/etc/localtime",
			"/etc/timezone", "/etc/mime.types", "/etc/services", "/etc/protocols", "/etc/os-release", "/etc/debian_version", "/etc/inputrc",
			"/etc/bash.bashrc", "/etc/magic", "/proc/meminfo", "/proc/cpuinfo", "/proc/stat", "/proc/filesystems", "/proc/uptime",
			"/proc/loadavg", "/proc/version",
			// Not all of /proc/self: its net is the host's.
			"/proc/self/status", "/proc/self/stat", "/proc/self/statm", "/proc/self/maps", "/proc/self/cmdline", "/proc/self/limits",
			"/proc/self/comm", "/proc/self/auxv", "/proc/self/uid_map", "/proc/self/gid_map", "/proc/self/cgroup", "/dev/random", "/dev/urandom").IgnoreIfMissing(),
		landlock.RWFiles("/dev/null", "/dev/zero", "/dev/full", "/dev/tty").WithIoctlDev().IgnoreIfMissing(),
		landlock.RWDirs(r.Workspace, r.Scratch).WithRefer(),
	}
}

// confineThread puts this thread, and what it becomes, under all that Landlock has.
func (r rights) confineThread() error {
	fd, flags, err := landlock.V9.BestEffort().NewRulesetFD(r.rules()...)
	if err != nil {
		return fmt.Errorf("make the landlock rules: %w", err)
	}
	if fd < 0 {
		return errors.New("this kernel has no landlock")
	}
	defer func() { _ = unix.Close(fd) }()
	if _, _, e := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(fd), uintptr(flags), 0); e != 0 {
		return os.NewSyscallError("landlock_restrict_self", e)
	}
	return nil
}

// help serves file operations.
func help(ops sandbox.Ops) {
	view, err := confineHelper()
	fileop.Serve(fdSocket, ops, view, err)
}

func confineHelper() (*sandbox.View, error) {
	r, filter, err := receive()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(confine.Hide(), confine.CloseFrom(fdSpec), confine.Limit(fileLimits())); err != nil {
		return nil, err
	}
	view, err := r.view()
	if err != nil {
		return nil, err
	}
	// All threads: an operation runs on any.
	if err := landlock.V9.BestEffort().Restrict(r.rules()...); err != nil {
		return nil, err
	}
	return view, confine.Install(filter)
}

func (r rights) view() (*sandbox.View, error) {
	work, err := os.OpenRoot(r.Workspace)
	if err != nil {
		return nil, err
	}
	scratch, err := os.OpenRoot(r.Scratch)
	if err != nil {
		return nil, errors.Join(err, work.Close())
	}
	return &sandbox.View{
		Workspace: sandbox.Tree{Path: r.Workspace, Root: work}, Scratch: sandbox.Tree{Path: r.Scratch, Root: scratch},
	}, nil
}

// A finding is one line of the self-test. Leak is empty when all is well.
type finding struct {
	What string `json:"what"`
	Leak string `json:"leak,omitempty"`
}

func probe(r rights) []finding {
	try := func(what string, reached bool, how string) finding {
		if reached {
			return finding{what, how}
		}
		return finding{What: what}
	}
	_, read := os.ReadFile(r.Canary)
	_, wrote := os.Create(r.Canary + "2")
	own := os.WriteFile(r.Workspace+"/own", nil, 0o600)
	_, dialed := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	_, unixed := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	nnp, _ := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	mode, _ := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	return []finding{
		try("files beside the workspace cannot be read", read == nil, "read"),
		try("files beside the workspace cannot be made", wrote == nil, "made"),
		try("the workspace can be written", own != nil, fmt.Sprint(own)),
		try("there is no network", dialed == nil, "made a socket"),
		try("there are no local sockets", unixed == nil, "made one"),
		try("no new privileges", nnp != 1, "they can be had"),
		try("system calls are filtered", mode != 2, "they are not"),
		try("the keeper cannot be signalled", unix.Kill(os.Getppid(), 0) == nil, "it can"),
	}
}
