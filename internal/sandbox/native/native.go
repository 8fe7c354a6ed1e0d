package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"rookery/internal/sandbox"
	"rookery/internal/sandbox/confine"
)

// Options say how the backend confines. The zero value is the default.
type Options struct {
	// SoftLimits accepts limits that are looked after instead of enforced, where
	// there are no control groups: a quick process can exceed them for a moment.
	SoftLimits bool
	// Users are for sessions of a worker that root runs, in workspaces that root owns.
	Users confine.Users
}

// The defaults of sandbox.Limits.
const (
	defaultMemory = 4 << 30
	defaultPids   = 1024
	defaultDisk   = 64 << 30
	defaultOutput = 64 << 20
)

func withDefaults(l sandbox.Limits) sandbox.Limits {
	l.Memory = cmp.Or(l.Memory, defaultMemory)
	l.Pids = cmp.Or(l.Pids, defaultPids)
	l.Disk = cmp.Or(l.Disk, defaultDisk)
	l.Output = cmp.Or(l.Output, defaultOutput)
	return l
}

// Native is the backend with namespaces. It is safe for concurrent use. Close ends
// its sessions.
type Native struct {
	ops sandbox.Ops
	o   Options

	mu      sync.Mutex
	closed  bool
	spawner *spawnerConn // nil until needed, and again when it has died
	groups  *hierarchy   // nil until looked for
}

var _ sandbox.Backend = (*Native)(nil)

// New returns the backend native, which can run the given file operations. The
// program calls Main with the same first thing.
func New(ops sandbox.Ops, o Options) *Native { return &Native{ops: ops, o: o} }

// Name implements sandbox.Backend.
func (*Native) Name() string { return "native" }

// Close ends the process that makes sessions, and with it all that are open.
func (n *Native) Close() error {
	n.mu.Lock()
	s := n.spawner
	n.closed, n.spawner = true, nil
	g := n.groups
	n.mu.Unlock()
	if s != nil {
		s.close()
	}
	if g != nil {
		return g.close()
	}
	return nil
}

// parts returns the spawner and the control groups, made where they are missing.
func (n *Native) parts() (*spawnerConn, *hierarchy, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, nil, errors.New("the sandbox backend is closed")
	}
	if n.groups == nil {
		g, err := findGroups("/", groupName())
		if err != nil && !n.o.SoftLimits {
			return nil, nil, explainGroups(err)
		}
		n.groups = g
	}
	if n.spawner == nil || n.spawner.dead() {
		s, err := startSpawner()
		if err != nil {
			return nil, nil, explain(failed("start the spawner", err))
		}
		n.spawner = s
	}
	return n.spawner, n.groups, nil
}

// Open implements sandbox.Backend. A workspace that root owns needs a file system
// whose mounts can be mapped to another owner; its error names the other ways.
func (n *Native) Open(ctx context.Context, spec sandbox.SessionSpec) (sandbox.Session, error) {
	if err := errors.Join(sandbox.ValidEnv(spec.Env), context.Cause(ctx)); err != nil {
		return nil, err
	}
	if len(spec.Net.Allow) > 0 {
		return nil, errors.New("the sandbox native has no network but its own loopback: hosts cannot be allowed")
	}
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	spawner, groups, err := n.parts()
	if err != nil {
		return nil, err
	}
	s := &session{
		ops: n.ops, spec: spec, limits: withDefaults(spec.Limits), spawner: spawner, program: program,
		calls: map[uint64]*call{}, ended: make(chan struct{}),
	}
	if err := s.open(ctx, groups, n.o); err != nil {
		return nil, err
	}
	return s, nil
}

// A spawnerConn is the worker's side of the spawner. One goroutine reads, one
// holds the thread with whose end the kernel kills the spawner.
type spawnerConn struct {
	conn *confine.Conn
	stop chan struct{} // close closes it
	gone chan struct{} // closed when the spawner has died
	work sync.WaitGroup
	once sync.Once

	mu      sync.Mutex
	next    uint64
	holders map[uint64]*holderWait
}

// A holderWait is written by the spawner's reader.
type holderWait struct {
	spawned chan error    // capacity 1
	ended   chan struct{} // closed
}

func startSpawner() (*spawnerConn, error) {
	if !served.Load() {
		return nil, errors.New("this program does not call native.Main first")
	}
	conn, far, err := confine.Pair()
	if err != nil {
		return nil, err
	}
	defer func() { _ = far.Close() }()
	s := &spawnerConn{conn: conn, stop: make(chan struct{}), gone: make(chan struct{}), holders: map[uint64]*holderWait{}}
	started := make(chan error)
	s.work.Go(func() {
		runtime.LockOSThread() // its end would kill the spawner
		defer runtime.UnlockOSThread()
		p, err := startChild("spawner", far)
		started <- err
		if err != nil {
			return
		}
		<-s.stop
		_ = p.Kill()
		_, _ = p.Wait()
	})
	if err := <-started; err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	s.work.Go(s.read)
	return s, nil
}

func (s *spawnerConn) read() {
	defer close(s.gone)
	for {
		var r spawnReply
		if _, err := s.conn.Recv(&r); err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, w := range s.holders {
				w.fail(errors.New("the spawner has died"))
				close(w.ended)
			}
			s.holders = nil
			return
		}
		s.mu.Lock()
		w, ok := s.holders[r.ID]
		switch {
		case !ok:
		case r.Err != nil:
			w.fail(r.Err)
			close(w.ended)
			delete(s.holders, r.ID)
		case r.Ended:
			close(w.ended)
			delete(s.holders, r.ID)
		default:
			w.fail(nil)
		}
		s.mu.Unlock()
	}
}

func (w *holderWait) fail(err error) {
	select {
	case w.spawned <- err:
	default: // it was told before
	}
}

func (s *spawnerConn) dead() bool {
	select {
	case <-s.gone:
		return true
	default:
		return false
	}
}

func (s *spawnerConn) close() {
	s.once.Do(func() {
		close(s.stop)
		_ = s.conn.Close()
		s.work.Wait()
	})
}

// spawn starts a holder and returns what to end and to wait for it with.
func (s *spawnerConn) spawn(r spawnRequest, files ...*os.File) (uint64, <-chan struct{}, error) {
	w := &holderWait{spawned: make(chan error, 1), ended: make(chan struct{})}
	s.mu.Lock()
	if s.holders == nil {
		s.mu.Unlock()
		return 0, nil, errors.New("the spawner has died")
	}
	s.next++
	r.ID = s.next
	s.holders[r.ID] = w
	s.mu.Unlock()
	if err := s.conn.Send(r, descriptors(files)...); err != nil {
		return 0, nil, err
	}
	if err := <-w.spawned; err != nil {
		return 0, nil, err
	}
	return r.ID, w.ended, nil
}

func (s *spawnerConn) kill(id uint64) { _ = s.conn.Send(spawnRequest{ID: id, Kill: true}) }

func descriptors(files []*os.File) []int {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	return slices.Clip(fds)
}

// startChild starts this program again, in a role, with one socket.
func startChild(role string, socket *os.File) (*os.Process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = null.Close() }()
	return os.StartProcess("/proc/self/exe", []string{marker, role}, &os.ProcAttr{
		Dir: "/", Env: []string{"GOMAXPROCS=1"}, Files: []*os.File{null, null, os.Stderr, socket},
		Sys: &unix.SysProcAttr{Pdeathsig: unix.SIGKILL, Setsid: true},
	})
}
