package sandbox

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// A noneCall is a command of the backend none; run owns it.
type noneCall struct {
	cmd     *exec.Cmd
	launch  Launch
	end     func() // see Launched; nil without
	timeout time.Duration
	tree    tree
	began   time.Time

	stdin    io.WriteCloser
	out, err *Pipe
	terminal *os.File
	child    []*os.File // the command's ends, closed once it has started

	kill chan Reason // Kill writes without waiting, run reads; holds the first reason
	done chan struct{}

	mu    sync.Mutex
	ended bool // the main process may be reaped: its id is no longer ours

	// result is written before done is closed.
	result  Result
	waitErr error
}

func newNoneCall(spec CallSpec, path, dir string, env []string, launch Launch) (*noneCall, error) {
	c := &noneCall{launch: launch, timeout: spec.Timeout, kill: make(chan Reason, 1), done: make(chan struct{})}
	c.tree.marker = newMarker()
	c.cmd = &exec.Cmd{
		Path: path, Args: spec.Argv, Dir: dir,
		Env:         append(Set(env, "PWD="+dir), c.tree.marker),
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	}
	var err error
	if spec.PTY != nil {
		err = c.openTerminal(*spec.PTY)
	} else {
		err = c.openPipes(spec)
	}
	if err != nil {
		c.closeFiles()
		return nil, err
	}
	return c, nil
}

func (c *noneCall) openTerminal(size Size) error {
	master, slave, err := pty.Open()
	if err != nil {
		return fmt.Errorf("open a terminal: %w", err)
	}
	c.terminal, c.child = master, []*os.File{slave}
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = slave, slave, slave
	c.cmd.SysProcAttr.Setctty = true
	c.cmd.Env = Set(c.cmd.Env, "TERM=xterm-256color")
	c.stdin, c.out = Typist{master}, NewPipe(master)
	return c.Resize(size)
}

func (c *noneCall) openPipes(spec CallSpec) error {
	if spec.Stdin {
		r, w, err := os.Pipe()
		if err != nil {
			return fmt.Errorf("open the input pipe: %w", err)
		}
		c.stdin, c.cmd.Stdin, c.child = w, r, append(c.child, r)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("open the output pipe: %w", err)
	}
	c.out, c.cmd.Stdout, c.cmd.Stderr, c.child = NewPipe(r), w, w, append(c.child, w)
	if spec.Merge {
		return nil
	}
	r, w, err = os.Pipe()
	if err != nil {
		return fmt.Errorf("open the error pipe: %w", err)
	}
	c.err, c.cmd.Stderr, c.child = NewPipe(r), w, append(c.child, w)
	return nil
}

// start starts the command; it runs on the session's kept thread.
func (c *noneCall) start() error {
	// What this process inherited itself is not the command's either.
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("keep descriptors back: %w", err)
	}
	if c.launch != nil {
		l, err := c.launch(c.cmd)
		if err != nil {
			return err
		}
		defer l.Started()
		c.end = l.End
	}
	c.began = time.Now()
	if err := c.cmd.Start(); err != nil {
		return err
	}
	for _, f := range c.child {
		_ = f.Close()
	}
	c.child = nil
	c.tree.root = c.cmd.Process.Pid
	if st, err := readStat(c.tree.root); err == nil {
		c.tree.since = st.start
	}
	return nil
}

// run sees the call to its end: it alone kills and reaps.
func (c *noneCall) run() {
	reason := c.await()
	if c.end != nil {
		c.end()
	}
	c.tree.killAll()
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	err := c.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		c.waitErr = fmt.Errorf("wait for %s: %w", c.cmd.Path, err)
	}
	c.result = result(c.cmd.ProcessState, reason, time.Since(c.began))
	c.out.End()
	if c.err != nil {
		c.err.End()
	}
	if c.stdin != nil && c.terminal == nil {
		_ = c.stdin.Close()
	}
	close(c.done)
}

// await returns once the main process has ended, unreaped, and tells why.
func (c *noneCall) await() Reason {
	exited := make(chan struct{})
	go func() { // ends with the main process
		waitExit(c.tree.root)
		close(exited)
	}()
	var timeout, grace <-chan time.Time
	if c.timeout > 0 {
		timeout = time.After(c.timeout)
	}
	reason, ended := Exited, false
	for {
		var why Reason
		select {
		case <-exited:
			return reason
		case <-grace:
			if c.end == nil || ended {
				c.tree.killAll()
				continue
			}
			c.end()
			ended, grace = true, time.After(KillGrace)
			continue
		case <-timeout:
			why = TimedOut
		case why = <-c.kill:
		}
		if reason == Exited {
			reason = why
			c.tree.terminate()
			grace = time.After(KillGrace)
		}
	}
}

func waitExit(pid int) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

func result(st *os.ProcessState, reason Reason, wall time.Duration) Result {
	r := Result{Reason: reason, Usage: Usage{Wall: wall}}
	if st == nil {
		r.Exit = -1
		return r
	}
	r.Exit = st.ExitCode()
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		r.Signal = int(ws.Signal())
		r.Exit = 128 + r.Signal
	}
	r.Usage.CPU = st.UserTime() + st.SystemTime()
	if ru, ok := st.SysUsage().(*syscall.Rusage); ok {
		r.Usage.PeakMem = ru.Maxrss << 10
	}
	return r
}

// Stdin implements Call.
func (c *noneCall) Stdin() io.WriteCloser { return c.stdin }

// Output implements Call.
func (c *noneCall) Output() (stdout, stderr io.Reader) {
	if c.err == nil {
		return c.out, nil
	}
	return c.out, c.err
}

// Resize implements Call.
func (c *noneCall) Resize(size Size) error {
	if c.terminal == nil {
		return errors.New("the call has no terminal")
	}
	if err := pty.Setsize(c.terminal, &pty.Winsize{Rows: size.Rows, Cols: size.Cols}); err != nil {
		return fmt.Errorf("resize the terminal: %w", err)
	}
	return nil
}

// Signal implements Call.
func (c *noneCall) Signal(sig syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return os.ErrProcessDone
	}
	if err := syscall.Kill(-c.tree.root, sig); err != nil {
		return fmt.Errorf("signal the call: %w", err)
	}
	return nil
}

// Kill implements Call.
func (c *noneCall) Kill(reason Reason) {
	select {
	case c.kill <- reason:
	default: // it is being killed
	}
}

// Wait implements Call.
func (c *noneCall) Wait() (Result, error) {
	<-c.done
	return c.result, c.waitErr
}

// closeFiles closes everything of a call that never started.
func (c *noneCall) closeFiles() {
	for _, f := range c.child {
		_ = f.Close()
	}
	if c.stdin != nil && c.terminal == nil {
		_ = c.stdin.Close()
	}
	for _, p := range []*Pipe{c.out, c.err} {
		if p != nil {
			_ = p.Close()
		}
	}
}

// LookPath finds a program in path, the value of PATH, or relative to dir when
// its name has a slash. Its error wraps ErrNotFound.
func LookPath(name, dir, path string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("%w: %s", ErrNotFound, name)
		}
		return name, nil
	}
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) {
			continue
		}
		p := filepath.Join(d, name)
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() && unix.Access(p, unix.X_OK) == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("%w: %s", ErrNotFound, name)
}
