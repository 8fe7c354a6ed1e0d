package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rookery/internal/sandbox"
	"rookery/internal/sandbox/confine"
	"rookery/internal/sandbox/fileop"
)

// A session is the worker's side of a holder. Its goroutines: read, which tells
// calls their end; one for each running call; the disk's watcher. Close waits for all of them.
type session struct {
	ops     sandbox.Ops
	spec    sandbox.SessionSpec
	limits  sandbox.Limits
	spawner *spawnerConn
	program string

	conn   *confine.Conn
	holder uint64 // the spawner's name for it
	gone   <-chan struct{}
	ended  chan struct{} // closed by read: no more news of calls
	group  *group
	leaf   *group // holder and helper are in it
	soft   bool
	id     confine.Identity
	files  *fileop.Client
	disk   *diskWatch

	around  sync.WaitGroup // read, disk
	running sync.WaitGroup // calls, and who is about to start one

	mu     sync.Mutex
	closed bool
	next   uint64
	calls  map[uint64]*call
	usage  sandbox.Usage
}

func (s *session) open(ctx context.Context, groups *hierarchy, o Options) (err error) {
	defer func() {
		if err != nil {
			s.abandon()
		}
	}()
	workspace, scratch, err := s.directories()
	if err != nil {
		return err
	}
	defer confine.CloseAll([]*os.File{workspace, scratch})
	id, err := o.Users.Choose(workspace, scratch, s.spec.Made)
	if err != nil {
		return explain(err)
	}
	s.id = id
	s.soft = groups == nil
	if err := s.makeGroups(groups); err != nil {
		return explain(err)
	}
	conn, far, err := confine.Pair()
	if err != nil {
		return err
	}
	s.conn = conn
	defer func() { _ = far.Close() }()
	req := spawnRequest{
		UID: id.UID, GID: id.GID, Trees: id.Root, Idmap: id.Mapped, NoSetID: id.Mapped, ReadOnly: s.spec.ReadOnly,
	}
	if s.holder, s.gone, err = s.spawner.spawn(req, far, workspace, scratch); err != nil {
		return explain(err)
	}
	_ = far.Close() // so that the holder's death is heard
	if err := s.configure(id); err != nil {
		return err
	}
	if err := s.ready(ctx); err != nil {
		return explain(err)
	}
	s.files = fileop.NewClient(func(socket *os.File) error {
		return s.conn.Send(holderRequest{Helper: true, ID: s.name()}, int(socket.Fd()))
	})
	s.disk = &diskWatch{session: s, wake: make(chan struct{}, 1), stop: make(chan struct{})}
	s.around.Go(s.read)
	s.around.Go(s.disk.run)
	return nil
}

// directories opens workspace and scratch, and refuses a workspace that is another
// directory by now.
func (s *session) directories() (workspace, scratch *os.File, err error) {
	const flags = os.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW
	if workspace, err = os.OpenFile(s.spec.Workspace, flags, 0); err != nil {
		return nil, nil, fmt.Errorf("open workspace: %w", err)
	}
	if scratch, err = os.OpenFile(s.spec.Scratch, flags, 0); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open scratch directory: %w", err), workspace.Close())
	}
	if s.spec.Dir != nil {
		if err := sameFile(int(workspace.Fd()), int(s.spec.Dir.Fd())); err != nil {
			return nil, nil, errors.Join(fmt.Errorf("workspace %s: %w", s.spec.Workspace, err), workspace.Close(), scratch.Close())
		}
	}
	return workspace, scratch, nil
}

// memoryFiles is room for the files that a session has in memory, beyond what its
// calls may take: else, once they are full, not even rm could run.
const memoryFiles = 1 << 30

func (s *session) makeGroups(h *hierarchy) (err error) {
	limits := sandbox.Limits{Memory: s.limits.Memory}
	if limits.Memory > 0 {
		limits.Memory += memoryFiles
	}
	if s.group, err = h.session(s.spec.ID, limits); err != nil {
		return err
	}
	s.leaf, err = s.group.call("0", sandbox.Limits{})
	return err
}

func (s *session) configure(id confine.Identity) error {
	groups, err := s.leaf.files()
	if err != nil {
		return err
	}
	defer confine.CloseAll(groups)
	return s.conn.Send(holderConfig{
		Trees: id.Root, Workspace: s.spec.Workspace, Scratch: s.spec.Scratch, Program: s.program, ReadOnly: s.spec.ReadOnly,
	}, descriptors(groups)...)
}

// ready waits until the holder has set up the session.
func (s *session) ready(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.spawner.kill(s.holder) })
	defer stop()
	var r holderReply
	_, err := s.conn.Recv(&r)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return failed("set up the session", fmt.Errorf("its first process has died: %w", err))
	case r.Err != nil:
		return r.Err
	}
	return nil
}

// abandon undoes what open has done so far.
func (s *session) abandon() {
	if s.conn != nil {
		_ = s.conn.Close()
	}
	if s.gone != nil {
		s.spawner.kill(s.holder)
		<-s.gone
	}
	_ = errors.Join(s.leaf.remove(), s.group.remove()) // swept later
}

// read passes on what the holder says until it has ended.
func (s *session) read() {
	defer close(s.ended)
	for {
		var r holderReply
		if _, err := s.conn.Recv(&r); err != nil {
			return
		}
		s.mu.Lock()
		c := s.calls[r.ID]
		s.mu.Unlock()
		if c != nil {
			c.news <- r
		}
	}
}

// enter makes Close wait for the caller, until running.Done; false when it is
// too late for that.
func (s *session) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Add(1)
	}
	return !s.closed
}

// Start implements sandbox.Session.
func (s *session) Start(ctx context.Context, spec sandbox.CallSpec) (sandbox.Call, error) {
	return s.start(ctx, spec, false)
}

func (s *session) start(ctx context.Context, spec sandbox.CallSpec, probe bool) (sandbox.Call, error) {
	if err := errors.Join(spec.Validate(), context.Cause(ctx)); err != nil {
		return nil, err
	}
	if !s.enter() {
		return nil, sandbox.ErrClosed
	}
	defer s.running.Done()
	c, err := s.newCall(spec)
	if err != nil {
		return nil, err
	}
	if err := s.launch(ctx, c, probe); err != nil {
		c.discard()
		s.forget(c)
		return nil, err
	}
	s.disk.started()
	s.running.Go(func() {
		c.run()
		s.forget(c)
	})
	return c, nil
}

// launch has the holder start the call's init, and waits until the command runs.
func (s *session) launch(ctx context.Context, c *call, probe bool) error {
	conn, far, err := confine.Pair()
	if err != nil {
		return err
	}
	c.conn = conn
	defer func() { _ = far.Close() }()
	if err := c.sendSpec(probe); err != nil {
		return err
	}
	memory := int64(0)
	if s.soft {
		memory = c.limits.Memory
	}
	if err := s.conn.Send(holderRequest{ID: c.id, Memory: memory}, int(far.Fd())); err != nil {
		return errors.Join(errors.New("the session's first process has died"), err)
	}
	_ = far.Close()
	return c.awaitStart(ctx)
}

func (s *session) kill(id uint64) { _ = s.conn.Send(holderRequest{ID: id, Kill: true}) }

// forget ends the worker's interest in a call that is over.
func (s *session) forget(c *call) {
	s.mu.Lock()
	delete(s.calls, c.id)
	s.usage.CPU += c.result.Usage.CPU
	s.usage.Wall += c.result.Usage.Wall
	s.usage.PeakMem = max(s.usage.PeakMem, c.result.Usage.PeakMem)
	s.mu.Unlock()
}

// Do implements sandbox.Session: the operation runs in the session's file helper.
func (s *session) Do(ctx context.Context, op string, args json.RawMessage) (json.RawMessage, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if !s.enter() {
		return nil, sandbox.ErrClosed
	}
	defer s.running.Done()
	if _, ok := s.ops[op]; !ok {
		return nil, fmt.Errorf("%w %q", sandbox.ErrNoOp, op)
	}
	return s.files.Do(ctx, op, args)
}

// Paths implements sandbox.Session.
func (*session) Paths() sandbox.Paths {
	return sandbox.Paths{Workspace: workspaceDir, Scratch: scratchDir}
}

// Usage implements sandbox.Session.
func (s *session) Usage() sandbox.Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usage
}

// Close implements sandbox.Session.
func (s *session) Close() error {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	for _, c := range s.calls {
		c.Kill(sandbox.WorkerStopped)
	}
	s.mu.Unlock()
	s.files.Interrupt()
	s.running.Wait()
	if again {
		return nil
	}
	close(s.disk.stop)
	_ = s.conn.Close() // which ends the holder
	s.files.Close()
	kill := time.AfterFunc(sandbox.KillGrace, func() { s.spawner.kill(s.holder) })
	defer kill.Stop()
	<-s.gone
	s.around.Wait()
	return errors.Join(s.leaf.remove(), s.group.remove())
}

func (c *call) groupName() string { return strconv.FormatUint(c.id, 10) }
