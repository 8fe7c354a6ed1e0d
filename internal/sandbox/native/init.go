package native

import (
	"errors"
	"os"
	"strconv"
	"syscall"

	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"

	"rookery/internal/sandbox"
	"rookery/internal/sandbox/confine"
)

// An initSpec is the first message to a call's init. Its descriptors are stdin,
// stdout and stderr, unless there is a terminal, and the files through which it
// joins its control groups.
type initSpec struct {
	Argv   []string       `json:"argv"`
	Env    []string       `json:"env"`
	Dir    string         `json:"dir,omitempty"`
	PTY    *sandbox.Size  `json:"pty,omitempty"`
	Limits map[int]uint64 `json:"limits,omitempty"`
	// Probe runs this program as its own prober, for the self-test.
	Probe bool `json:"probe,omitempty"`
}

// An initRequest asks for a signal: to the command's process group or to all.
type initRequest struct {
	Signal int  `json:"signal"`
	All    bool `json:"all,omitempty"`
}

// An initReply comes twice: the command has started, with the terminal's
// descriptor, or could not; and how it ended.
type initReply struct {
	Err      *stageError `json:"err,omitempty"`
	NotFound string      `json:"not_found,omitempty"`
	Exit     int         `json:"exit,omitempty"`
	Signal   int         `json:"signal,omitempty"`
}

// An initProcess is the first process of a call's namespaces.
type initProcess struct {
	spec     initSpec
	terminal *os.File // the worker's end
	stdio    [3]*os.File
	path     string
	missing  bool // there is no such program
	filter   []byte
}

func runInit() {
	p := &initProcess{}
	err := p.prepare()
	awaitCall()
	if err == nil {
		err = p.setUp()
	}
	if err != nil {
		p.refuse(err)
		return
	}
	p.serve()
}

// serve runs the command and passes signals on to it.
func (p *initProcess) serve() {
	started := make(chan int, 1)
	go reapAll(started) // ends this process
	pid, err := p.start()
	if err != nil {
		p.refuse(failed("start "+p.spec.Argv[0], err))
		return
	}
	var fds []int
	if p.terminal != nil {
		fds = []int{int(p.terminal.Fd())}
	}
	err = confine.Send(fdSocket, initReply{}, fds...)
	confine.CloseAll(append(p.stdio[:], p.terminal))
	started <- pid
	for err == nil {
		var r initRequest
		if _, err = confine.Recv(fdSocket, &r); err == nil {
			to := -pid
			if r.All {
				to = -1
			}
			_ = unix.Kill(to, unix.Signal(r.Signal)) // gone is as good
		}
	}
}

func (p *initProcess) refuse(err *stageError) {
	r := initReply{Err: err}
	if p.missing {
		r = initReply{NotFound: p.spec.Argv[0]}
	}
	_ = confine.Send(fdSocket, r)
}

// reapAll waits for all processes of the call; when the command itself has ended,
// it tells how and ends this process, and with it the others.
func reapAll(started <-chan int) {
	pid := <-started
	for {
		var status unix.WaitStatus
		got, err := unix.Wait4(-1, &status, 0, nil)
		if errors.Is(err, unix.EINTR) || got != pid && err == nil {
			continue
		}
		r := initReply{Exit: status.ExitStatus()}
		if status.Signaled() {
			r.Signal = int(status.Signal())
			r.Exit = 128 + r.Signal
		}
		_ = confine.Send(fdSocket, r)
		syscall.Exit(0)
	}
}

// prepare does what needs no call yet.
func (p *initProcess) prepare() *stageError {
	return try(
		step{"keep descriptors back", func() error { return confine.CloseFrom(fdSocket) }},
		step{"hide the init", confine.Hide},
		step{"mount /proc", mountProc},
		step{"read the system call filter", func() (err error) {
			p.filter, err = confine.Read(os.NewFile(fdFilter, "filter"))
			return err
		}},
	)
}

func (p *initProcess) setUp() *stageError {
	return try(
		step{"receive the command", p.receive},
		step{"leave the control groups' view", func() error { return unix.Unshare(unix.CLONE_NEWCGROUP) }},
		step{"hide this program", p.hideProgram},
		step{"open the terminal", p.openTerminal},
		step{"find the command", p.find},
		step{"set limits", func() error { return confine.Limit(p.spec.Limits) }},
		step{"drop capabilities", confine.DropCapabilities},
		step{"refuse new privileges", confine.NoNewPrivileges},
		step{"set up landlock", confineFiles},
		step{"install the system call filter", func() error { return confine.Install(p.filter) }},
	)
}

// awaitCall waits, perhaps long, until the holder hands over a call's socket, which
// takes the place of the holder's. Without one this process ends.
func awaitCall() {
	var none struct{}
	files, err := confine.Recv(fdSocket, &none)
	if err != nil || len(files) != 1 || unix.Dup3(int(files[0].Fd()), fdSocket, unix.O_CLOEXEC) != nil {
		syscall.Exit(0) // the session is over
	}
	confine.CloseAll(files)
}

func (p *initProcess) receive() error {
	files, err := confine.Recv(fdSocket, &p.spec)
	if err != nil {
		return err
	}
	if p.spec.PTY == nil {
		if len(files) < 3 {
			return errors.New("descriptors are missing")
		}
		copy(p.stdio[:], files)
		files = files[3:]
	}
	return join(files)
}

func (p *initProcess) hideProgram() error {
	if p.spec.Probe {
		return nil
	}
	return unix.Unmount(programFile, unix.MNT_DETACH)
}

// mountProc shows the call's own processes only, and nothing of the kernel's that
// may be written or tells of others. The old one stays below: without one that is
// seen, the kernel refuses a new one.
func mountProc() error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("proc", "/proc", "proc", flags, ""); err != nil {
		return err
	}
	for _, name := range []string{
		"kcore", "keys", "key-users", "timer_list", "sysrq-trigger", "kallsyms", "kpageflags", "kpagecount", "kpagecgroup",
		"latency_stats", "sched_debug", "interrupts", "kmsg", "vmallocinfo", "slabinfo", "pagetypeinfo", "config.gz", "modules",
	} {
		err := unix.Mount("/dev/null", "/proc/"+name, "", unix.MS_BIND, "")
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return &os.PathError{Op: "mask", Path: "/proc/" + name, Err: err}
		}
	}
	for _, name := range []string{"sys", "bus", "fs", "irq", "acpi", "driver", "tty", "scsi", "asound", "dynamic_debug", "pressure"} {
		path := "/proc/" + name
		err := unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, "")
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return &os.PathError{Op: "bind", Path: path, Err: err}
		}
		if err := seal(path, flags); err != nil {
			return err
		}
	}
	return nil
}

func (p *initProcess) openTerminal() error {
	if p.spec.PTY == nil {
		return nil
	}
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	p.terminal = master
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return os.NewSyscallError("TIOCGPTN", err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return os.NewSyscallError("TIOCSPTLCK", err)
	}
	size := &unix.Winsize{Row: p.spec.PTY.Rows, Col: p.spec.PTY.Cols}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, size); err != nil {
		return os.NewSyscallError("TIOCSWINSZ", err)
	}
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	p.stdio = [3]*os.File{slave, slave, slave}
	return err
}

// find looks for working directory and program as the command will see them.
func (p *initProcess) find() error {
	if p.spec.Probe {
		p.path = programFile
		return nil
	}
	view, err := openView()
	if err != nil {
		return err
	}
	defer func() { _ = view.Close() }()
	if p.spec.Dir, err = view.Dir(p.spec.Dir); err != nil {
		return err
	}
	p.spec.Env = sandbox.Set(p.spec.Env, "PWD="+p.spec.Dir)
	p.path, err = sandbox.LookPath(p.spec.Argv[0], p.spec.Dir, sandbox.Get(p.spec.Env, "PATH"))
	p.missing = errors.Is(err, sandbox.ErrNotFound)
	return err
}

// openView opens the session's trees where its processes see them.
func openView() (*sandbox.View, error) {
	work, err := os.OpenRoot(workspaceDir)
	if err != nil {
		return nil, err
	}
	scratch, err := os.OpenRoot(scratchDir)
	if err != nil {
		return nil, errors.Join(err, work.Close())
	}
	return &sandbox.View{
		Workspace: sandbox.Tree{Path: workspaceDir, Root: work},
		Scratch:   sandbox.Tree{Path: scratchDir, Root: scratch},
	}, nil
}

// confineFiles is a second wall behind the mounts, as far as the kernel has one.
func confineFiles() error {
	return confine.Landlock(
		landlock.RODirs("/"),
		landlock.RWDirs(workspaceDir, scratchDir, tmpDir, homeDir, "/dev/shm").WithRefer().WithIoctlDev().WithResolveUnix(),
		landlock.RWDirs("/dev").WithIoctlDev(),
		landlock.RWDirs("/proc"),
	)
}

func (p *initProcess) start() (int, error) {
	fds := make([]uintptr, 3)
	for i, f := range p.stdio {
		fds[i] = f.Fd()
	}
	dir := p.spec.Dir
	if p.spec.Probe {
		dir = "/"
	}
	return syscall.ForkExec(p.path, p.spec.Argv, &syscall.ProcAttr{
		Dir: dir, Env: p.spec.Env, Files: fds,
		Sys: &syscall.SysProcAttr{Setsid: true, Setctty: p.spec.PTY != nil},
	})
}
