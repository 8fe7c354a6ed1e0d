package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rookery/internal/sandbox"
	"rookery/internal/sandbox/confine"
)

// A call is a command in a session; run owns it.
type call struct {
	session *session
	id      uint64
	spec    sandbox.CallSpec
	limits  sandbox.Limits
	group   *group
	began   time.Time

	conn     *confine.Conn    // to the call's init
	news     chan holderReply // capacity 2: its start may fail, and it ends; the session's reader writes
	stdin    io.WriteCloser
	out, err *sandbox.Pipe
	terminal *os.File
	child    []*os.File // stdin, stdout, stderr of the command, closed once they were sent

	printed atomic.Int64

	kill chan sandbox.Reason // Kill writes without waiting, run reads; holds the first reason
	done chan struct{}

	// result is written before done is closed.
	result sandbox.Result
	lost   error
}

// extraPids is room for threads of the sandbox's own in the soft limit.
const extraPids = 64

func (s *session) newCall(spec sandbox.CallSpec) (*call, error) {
	c := &call{
		session: s, spec: spec, limits: s.limits, news: make(chan holderReply, 2),
		kill: make(chan sandbox.Reason, 1), done: make(chan struct{}),
	}
	if l := spec.Limits; l != nil {
		c.limits = sandbox.Limits{
			Memory: cmp.Or(l.Memory, s.limits.Memory), Pids: cmp.Or(l.Pids, s.limits.Pids), CPU: cmp.Or(l.CPU, s.limits.CPU),
			Disk: s.limits.Disk, Output: cmp.Or(l.Output, s.limits.Output),
		}
	}
	if c.limits.CPU > 0 && s.soft {
		return nil, errors.New("a CPU limit needs control groups, which are not there")
	}
	s.mu.Lock()
	s.next++
	c.id = s.next
	s.calls[c.id] = c
	s.mu.Unlock()
	var err error
	if c.group, err = s.group.call(c.groupName(), c.limits); err == nil {
		err = c.openPipes()
	}
	if err != nil {
		c.discard()
		s.forget(c)
		return nil, err
	}
	return c, nil
}

// openPipes opens stdin, stdout and stderr, unless a terminal is wanted, which only
// the call's init can open.
func (c *call) openPipes() error {
	if c.spec.PTY != nil {
		return nil
	}
	in, err := c.openInput()
	if err != nil {
		return fmt.Errorf("open the input: %w", err)
	}
	c.child = []*os.File{in}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("open the output pipe: %w", err)
	}
	c.out, c.child = sandbox.NewPipe(r), append(c.child, w)
	if !c.spec.Merge {
		if r, w, err = os.Pipe(); err != nil {
			return fmt.Errorf("open the error pipe: %w", err)
		}
		c.err = sandbox.NewPipe(r)
	}
	c.child = append(c.child, w)
	return nil
}

func (c *call) openInput() (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	if c.spec.Stdin {
		c.stdin = w
		return r, nil
	}
	return r, w.Close() // an empty pipe, not a device of the host
}

func (c *call) sendSpec(probe bool) error {
	env := sandbox.Environ(homeDir, tmpDir, c.session.spec.Env, c.spec.Env)
	if c.spec.PTY != nil {
		env = sandbox.Set(env, "TERM=xterm-256color")
	}
	limits := fileLimits()
	if c.limits.Pids > 0 {
		limits[unix.RLIMIT_NPROC] = uint64(c.limits.Pids + extraPids)
	}
	groups, err := c.group.files()
	if err != nil {
		return err
	}
	defer confine.CloseAll(groups)
	for _, f := range c.child {
		// The command may open its streams again, by name: they are its user's.
		if err := errors.Join(unix.SetNonblock(int(f.Fd()), false), unix.Fchown(int(f.Fd()), c.session.id.UID, c.session.id.GID)); err != nil {
			return fmt.Errorf("hand over a pipe: %w", err)
		}
	}
	c.began = time.Now()
	err = c.conn.Send(initSpec{
		Argv: c.spec.Argv, Env: env, Dir: c.spec.Dir, PTY: c.spec.PTY, Limits: limits, Probe: probe,
	}, descriptors(slices.Concat(c.child, groups))...)
	c.closeChild()
	return err
}

// closeChild closes the command's ends.
func (c *call) closeChild() {
	closed := map[*os.File]bool{}
	for _, f := range c.child {
		if !closed[f] {
			_ = f.Close()
		}
		closed[f] = true
	}
	c.child = nil
}

// awaitStart returns when the command runs; else nothing of it is left.
func (c *call) awaitStart(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { c.session.kill(c.id) })
	defer stop()
	var r initReply
	files, err := c.conn.Recv(&r)
	if ctx.Err() != nil {
		confine.CloseAll(files)
		c.session.kill(c.id)
		c.awaitEnd()
		return fmt.Errorf("start %s: %w", c.spec.Argv[0], context.Cause(ctx))
	}
	switch {
	case err != nil:
		end := c.awaitEnd()
		if end.Err != nil {
			return explain(end.Err)
		}
		if c.oom(end) || c.session.leaf.oom() {
			return fmt.Errorf("start %s: out of memory: too much runs in the session, or its files in %s, %s and /dev/shm are too large",
				c.spec.Argv[0], tmpDir, homeDir)
		}
		return fmt.Errorf("start %s: the call's first process has died: %w", c.spec.Argv[0], err)
	case r.NotFound != "":
		c.awaitEnd()
		return fmt.Errorf("%w: %s", sandbox.ErrNotFound, r.NotFound)
	case r.Err != nil:
		c.awaitEnd()
		return explain(r.Err)
	}
	return c.takeTerminal(files)
}

func (c *call) takeTerminal(files []*os.File) error {
	if c.spec.PTY == nil {
		confine.CloseAll(files)
		return nil
	}
	if len(files) != 1 {
		confine.CloseAll(files)
		c.session.kill(c.id)
		c.awaitEnd()
		return errors.New("the terminal was not handed over")
	}
	fd, err := unix.Dup(int(files[0].Fd()))
	confine.CloseAll(files)
	if err == nil {
		unix.CloseOnExec(fd)
		err = unix.SetNonblock(fd, true) // before it is wrapped: reads must be interruptible
	}
	if err != nil {
		c.session.kill(c.id)
		c.awaitEnd()
		return fmt.Errorf("take the terminal: %w", err)
	}
	c.terminal = os.NewFile(uintptr(fd), "terminal")
	c.stdin, c.out = sandbox.Typist{File: c.terminal}, sandbox.NewPipe(c.terminal)
	return nil
}

// awaitEnd waits until the holder says that nothing of the call is left, or is gone
// itself, and with it all of the session.
func (c *call) awaitEnd() holderReply {
	select {
	case r := <-c.news:
		return r
	case <-c.session.ended:
	}
	select {
	case r := <-c.news:
		return r
	default:
		return holderReply{Signal: int(unix.SIGKILL)}
	}
}

func (c *call) oom(end holderReply) bool { return end.OOM || c.group.oom() }

// oomEvery is how often a running call is looked at: without killing as a group,
// the kernel takes one process, and the others go on.
const oomEvery = 200 * time.Millisecond

// run sees the call to its end.
func (c *call) run() {
	reason, end := c.await()
	var last initReply
	_, err := c.conn.Recv(&last) // sent before the init ended, or never
	if err != nil {
		last = initReply{Signal: cmp.Or(end.Signal, int(unix.SIGKILL))}
		last.Exit = 128 + last.Signal
	}
	switch {
	case c.oom(end):
		reason = sandbox.OutOfMemory
	case err != nil && reason == sandbox.Exited:
		reason = sandbox.Killed
		c.lost = c.session.lostHolder()
	}
	c.result = sandbox.Result{
		Exit: last.Exit, Signal: last.Signal, Reason: reason,
		Usage: sandbox.Usage{CPU: end.CPU, Wall: time.Since(c.began), PeakMem: end.RSS},
	}
	c.out.End()
	if c.err != nil {
		c.err.End()
	}
	if c.stdin != nil && c.terminal == nil {
		_ = c.stdin.Close()
	}
	_ = c.conn.Close()
	close(c.done)
	_ = c.group.remove() // else with the session's
}

// lostHolder is the error of calls that ended because the session did.
func (s *session) lostHolder() error {
	select {
	case <-s.ended:
		return errors.New("the session's first process has died, and the command with it")
	default:
		return nil
	}
}

// await returns once nothing of the call is left, and tells why it ended.
func (c *call) await() (sandbox.Reason, holderReply) {
	var timeout, grace <-chan time.Time
	if c.spec.Timeout > 0 {
		timer := time.NewTimer(c.spec.Timeout)
		defer timer.Stop()
		timeout = timer.C
	}
	look := time.NewTicker(oomEvery)
	defer look.Stop()
	ended := make(chan holderReply, 1)
	go func() { ended <- c.awaitEnd() }() // ends with the call or the session
	reason := sandbox.Exited
	for {
		var why sandbox.Reason
		select {
		case end := <-ended:
			return reason, end
		case <-grace:
			c.session.kill(c.id)
			continue
		case <-timeout:
			why = sandbox.TimedOut
		case why = <-c.kill:
		case <-look.C:
			if !c.group.oom() {
				continue
			}
			c.session.kill(c.id)
			look.Stop()
			continue
		}
		if reason == sandbox.Exited {
			reason = why
			c.terminate()
			timer := time.NewTimer(sandbox.KillGrace)
			defer timer.Stop()
			grace = timer.C
		}
	}
}

// terminate asks all processes to end. A stopped one is continued, to hear it.
func (c *call) terminate() {
	for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGCONT} {
		_ = c.conn.Send(initRequest{Signal: int(sig), All: true})
	}
}

// discard releases everything of a call that never started.
func (c *call) discard() {
	c.closeChild()
	if c.stdin != nil && c.terminal == nil {
		_ = c.stdin.Close()
	}
	for _, p := range []*sandbox.Pipe{c.out, c.err} {
		if p != nil {
			_ = p.Close()
		}
	}
	if c.conn != nil {
		_ = c.conn.Close()
	}
	_ = c.group.remove() // else with the session's
}
