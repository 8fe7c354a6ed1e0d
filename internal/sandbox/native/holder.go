package native

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rookery/internal/sandbox/confine"
)

// A holderConfig is the first message to a holder. Its descriptors are the files
// through which it joins its control groups.
type holderConfig struct {
	Trees     bool     `json:"trees,omitempty"` // the descriptors are trees to attach
	Workspace string   `json:"workspace"`
	Scratch   string   `json:"scratch"`
	Program   string   `json:"program"`
	ReadOnly  []string `json:"read_only,omitempty"`
}

// A holderRequest starts a call, kills it, or starts the file helper. Its
// descriptor is the near end of the child's socket.
type holderRequest struct {
	ID     uint64 `json:"id"`
	Kill   bool   `json:"kill,omitempty"`
	Helper bool   `json:"helper,omitempty"`
	// Memory is watched where there are no control groups, in bytes.
	Memory int64 `json:"memory,omitempty"`
}

// A holderReply tells that the session is ready or failed (ID 0), or that a child
// has ended and nothing of it is left.
type holderReply struct {
	ID     uint64        `json:"id,omitempty"`
	Err    *stageError   `json:"err,omitempty"`
	Signal int           `json:"signal,omitempty"`
	OOM    bool          `json:"oom,omitempty"`
	CPU    time.Duration `json:"cpu,omitempty"`
	RSS    int64         `json:"rss,omitempty"`
}

// A holder is the first process of a session's namespaces: they end with it. One
// thread starts children, so that they die with it; one goroutine reaps.
type holder struct {
	mu    sync.Mutex // held from a start to its entry in calls
	calls map[int]*running
	spare *spare        // nil for a moment after it was assigned
	wake  chan struct{} // see spawner
	soft  *softMemory
}

type running struct {
	id   uint64
	over bool // killed for its memory
}

func runHolder() {
	var cfg holderConfig
	if err := openHolder(&cfg); err != nil {
		_ = confine.Send(fdSocket, holderReply{Err: err})
		return
	}
	if confine.Send(fdSocket, holderReply{}) != nil {
		return
	}
	h := &holder{calls: map[int]*running{}, wake: make(chan struct{}, 1)}
	h.soft = &softMemory{holder: h, calls: map[int]int64{}}
	go h.reap() // ends with the process
	_ = h.prepare()
	for {
		var r holderRequest
		files, err := confine.Recv(fdSocket, &r)
		if err != nil {
			return // the worker is gone, or has closed the session
		}
		if r.Kill {
			h.kill(r.ID)
			continue
		}
		if err := h.start(r, files); err != nil {
			_ = confine.Send(fdSocket, holderReply{ID: r.ID, Err: failed("start the process", err)})
		}
		confine.CloseAll(files)
		_ = h.prepare() // else the next call does, and hears why not
	}
}

func openHolder(cfg *holderConfig) *stageError {
	var groups []*os.File
	return try(
		step{"keep descriptors back", func() error { return confine.CloseFrom(fdSocket) }},
		step{"hide the holder", confine.Hide},
		step{"receive the session's settings", func() (err error) {
			groups, err = confine.Recv(fdSocket, cfg)
			return err
		}},
		step{"join the control groups", func() error { return join(groups) }},
		step{"make the view", func() error { return makeView(*cfg) }},
		step{"name the host", func() error { return unix.Sethostname([]byte(hostname)) }},
		step{"bring up the loopback interface", loopbackUp},
		step{"drop inherited capabilities", confine.DropInherited},
		step{"refuse new privileges", confine.NoNewPrivileges},
	)
}

// join moves this process into control groups, through their cgroup.procs.
func join(groups []*os.File) error {
	defer confine.CloseAll(groups)
	for _, g := range groups {
		if _, err := g.WriteString("0"); err != nil {
			return err
		}
	}
	return nil
}

func (h *holder) start(r holderRequest, files []*os.File) error {
	if len(files) != 1 {
		return fmt.Errorf("the request has %d descriptors", len(files))
	}
	if r.Helper {
		return h.startHelper(r.ID, files[0])
	}
	if err := h.prepare(); err != nil {
		return err
	}
	s := h.assign(r)
	if s == nil {
		return errors.New("the call's first process has died")
	}
	defer func() { _ = s.socket.Close() }()
	return confine.Send(int(s.socket.Fd()), struct{}{}, int(files[0].Fd()))
}

// A spare is a call's init that waits for its call: a new process takes longer to
// begin than a call to start.
type spare struct {
	pid    int
	socket *os.File
}

// prepare starts a spare where there is none. Only the main thread calls it.
func (h *holder) prepare() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.spare != nil {
		return nil
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	defer func() { _ = unix.Close(pair[1]) }()
	s := &spare{socket: os.NewFile(uintptr(pair[0]), "spare")}
	s.pid, err = h.fork(0, "init", pair[1], []string{"GOMAXPROCS=1", "GOGC=off"}, &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWPID | unix.CLONE_NEWNS,
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN},
		Pdeathsig:   unix.SIGKILL, Setsid: true,
	})
	if err != nil {
		return errors.Join(err, s.socket.Close())
	}
	h.spare = s
	return nil
}

// assign makes the spare a call's.
func (h *holder) assign(r holderRequest) *spare {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.spare
	if s != nil {
		h.spare = nil
		h.calls[s.pid].id = r.ID
		h.soft.watch(s.pid, r.Memory)
	}
	return s
}

func (h *holder) startHelper(id uint64, socket *os.File) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := h.fork(id, "helper", int(socket.Fd()), []string{"GOMAXPROCS=2"}, &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setsid: true})
	return err
}

// fork starts this program in a role; the caller holds mu.
func (h *holder) fork(id uint64, role string, socket int, env []string, attr *syscall.SysProcAttr) (int, error) {
	pid, err := syscall.ForkExec(programFile, []string{marker, role}, &syscall.ProcAttr{
		Dir: "/", Env: env, Files: []uintptr{0, 1, 2, uintptr(socket), fdFilter}, Sys: attr,
	})
	if err != nil {
		return 0, err
	}
	h.calls[pid] = &running{id: id}
	select {
	case h.wake <- struct{}{}:
	default:
	}
	return pid, nil
}

func (h *holder) kill(id uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for pid, c := range h.calls {
		if c.id == id {
			_ = unix.Kill(pid, unix.SIGKILL) // not reaped yet: the entry would be gone
		}
	}
}

// over kills a call for its memory.
func (h *holder) over(pid int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c, ok := h.calls[pid]; ok {
		c.over = true
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

func (h *holder) reap() {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.ECHILD) {
			<-h.wake
			continue
		}
		var (
			status unix.WaitStatus
			usage  unix.Rusage
		)
		h.mu.Lock()
		pid, _ := unix.Wait4(-1, &status, unix.WNOHANG, &usage)
		c, ok := h.calls[pid]
		delete(h.calls, pid)
		unused := h.spare != nil && h.spare.pid == pid
		if unused {
			_ = h.spare.socket.Close()
			h.spare = nil
		}
		h.mu.Unlock()
		if !ok || unused {
			continue
		}
		h.soft.forget(pid)
		r := holderReply{
			ID: c.id, OOM: c.over, RSS: usage.Maxrss << 10,
			CPU: time.Duration(usage.Utime.Nano() + usage.Stime.Nano()),
		}
		if status.Signaled() {
			r.Signal = int(status.Signal())
		}
		if confine.Send(fdSocket, r) != nil {
			syscall.Exit(0)
		}
	}
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(fd) }()
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, lo); err != nil {
		return os.NewSyscallError("SIOCGIFFLAGS", err)
	}
	lo.SetUint16(lo.Uint16() | unix.IFF_UP)
	return os.NewSyscallError("SIOCSIFFLAGS", unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo))
}
