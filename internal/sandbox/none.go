package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
)

// NoneWarning says what a tool can reach with the backend none.
const NoneWarning = "sandbox none: tools run as this user without confinement; a command can read and change every file this user can, " +
	"use the network, see other sessions and this worker, and leave processes behind"

// None is the backend without confinement: process discipline, the fixed
// environment and the view's file operations, but no walls around commands.
type None struct {
	ops    Ops
	launch Launch
}

var _ Backend = (*None)(nil)

// NewNone returns the backend none, which can run the given file operations.
func NewNone(ops Ops) *None {
	defaultSignals()
	return &None{ops: ops}
}

// defaultSignals has commands begin with the default action of what whoever started
// this process had it ignore, as nohup and a shell's & do; without it they could not
// catch that. This process goes on ignoring it.
func defaultSignals() {
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} { // Go catches all others
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s) // what is caught is not inherited
		}
	}
}

// Name implements Backend.
func (*None) Name() string { return "none" }

// Check runs a command and looks for what killing needs.
func (n *None) Check(ctx context.Context) (Report, error) {
	report := Report{Backend: n.Name(), Warning: NoneWarning}
	dir, err := os.MkdirTemp("", "rookery-check-")
	if err != nil {
		return report, fmt.Errorf("make a directory for the check: %w (is the temporary directory writable?)", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := n.check(ctx, dir); err != nil {
		return report, err
	}
	report.Lines = []string{"commands start and end", "processes are visible in /proc"}
	return report, nil
}

func (n *None) check(ctx context.Context, dir string) error {
	spec := SessionSpec{ID: "check", Workspace: filepath.Join(dir, "w"), Scratch: filepath.Join(dir, "s")}
	if err := errors.Join(os.Mkdir(spec.Workspace, 0o700), os.Mkdir(spec.Scratch, 0o700)); err != nil {
		return fmt.Errorf("make the check's directories: %w", err)
	}
	if _, err := readStat(os.Getpid()); err != nil {
		return fmt.Errorf("read /proc: %w (mount proc: it is needed to find a call's processes)", err)
	}
	s, err := n.Open(ctx, spec)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	call, err := s.Start(ctx, CallSpec{Argv: []string{"sh", "-c", "exit 7"}, Merge: true})
	if err != nil {
		return fmt.Errorf("start sh: %w", err)
	}
	if r, err := call.Wait(); err != nil || r.Exit != 7 {
		return fmt.Errorf("sh -c 'exit 7' ended with %d: %w", r.Exit, err)
	}
	return nil
}

// Open implements Backend.
func (n *None) Open(_ context.Context, spec SessionSpec) (Session, error) {
	if err := ValidEnv(spec.Env); err != nil {
		return nil, err
	}
	view, err := openView(spec)
	if err != nil {
		return nil, err
	}
	s := &noneSession{
		ops: n.ops, view: view,
		home: filepath.Join(spec.Scratch, "home"), tmp: filepath.Join(spec.Scratch, "tmp"),
		launcher: n.launch, env: spec.Env, calls: map[*noneCall]bool{}, starts: make(chan func()),
	}
	for _, d := range []string{s.home, s.tmp} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, errors.Join(fmt.Errorf("make %s: %w", d, err), view.Close())
		}
	}
	s.spawner.Go(s.spawn)
	return s, nil
}

func openView(spec SessionSpec) (*View, error) {
	work, err := os.OpenRoot(spec.Workspace)
	if err != nil {
		return nil, fmt.Errorf("open workspace: %w", err)
	}
	v := &View{Workspace: Tree{Path: filepath.Clean(spec.Workspace), Root: work}}
	if err := SameDir(work, spec.Dir); err != nil {
		return nil, errors.Join(err, v.Close())
	}
	scratch, err := os.OpenRoot(spec.Scratch)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open scratch directory: %w", err), v.Close())
	}
	v.Scratch = Tree{Path: filepath.Clean(spec.Scratch), Root: scratch}
	return v, nil
}

// A noneSession owns one goroutine, spawn, and one per running call.
type noneSession struct {
	ops       Ops
	view      *View
	launcher  Launch
	home, tmp string
	env       []string

	starts  chan func() // Start writes, spawn reads, Close closes; unbuffered: a start is waited for
	spawner sync.WaitGroup
	running sync.WaitGroup

	mu     sync.Mutex
	closed bool
	calls  map[*noneCall]bool
	usage  Usage
}

// spawn starts commands on one kept thread: the kernel kills a child with
// Pdeathsig when the thread that made it ends.
func (s *noneSession) spawn() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for start := range s.starts {
		start()
	}
}

// Start implements Session.
func (s *noneSession) Start(ctx context.Context, spec CallSpec) (Call, error) {
	if err := errors.Join(spec.Validate(), context.Cause(ctx)); err != nil {
		return nil, err
	}
	if !s.enter() {
		return nil, ErrClosed
	}
	defer s.running.Done()
	dir, err := s.view.Dir(spec.Dir)
	if err != nil {
		return nil, err
	}
	env := Environ(s.home, s.tmp, s.env, spec.Env)
	path, err := LookPath(spec.Argv[0], dir, Get(env, "PATH"))
	if err != nil {
		return nil, err
	}
	c, err := newNoneCall(spec, path, dir, env, s.launcher)
	if err != nil {
		return nil, err
	}
	return s.launch(c, spec.Argv[0])
}

// launch starts the call and leaves it to a goroutine of its own.
func (s *noneSession) launch(c *noneCall, name string) (Call, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		c.closeFiles()
		return nil, ErrClosed
	}
	started := make(chan error)
	s.starts <- func() { started <- c.start() }
	if err := <-started; err != nil {
		c.closeFiles()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	s.calls[c] = true
	s.running.Go(func() {
		c.run()
		s.ended(c)
	})
	return c, nil
}

// enter makes Close wait for the caller, until running.Done; false when it is
// too late for that.
func (s *noneSession) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Add(1)
	}
	return !s.closed
}

func (s *noneSession) ended(c *noneCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, c)
	s.usage.CPU += c.result.Usage.CPU
	s.usage.Wall += c.result.Usage.Wall
	s.usage.PeakMem = max(s.usage.PeakMem, c.result.Usage.PeakMem)
}

// Do implements Session: the operation runs in this process.
func (s *noneSession) Do(ctx context.Context, op string, args json.RawMessage) (json.RawMessage, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if !s.enter() {
		return nil, ErrClosed
	}
	defer s.running.Done()
	return s.ops.Run(ctx, s.view, op, args)
}

// Paths implements Session.
func (s *noneSession) Paths() Paths {
	return Paths{Workspace: s.view.Workspace.Path, Scratch: s.view.Scratch.Path}
}

// Usage implements Session.
func (s *noneSession) Usage() Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usage
}

// Close implements Session.
func (s *noneSession) Close() error {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	for c := range s.calls {
		c.Kill(WorkerStopped)
	}
	s.mu.Unlock()
	s.running.Wait()
	if again {
		return nil
	}
	close(s.starts)
	s.spawner.Wait()
	return s.view.Close()
}
