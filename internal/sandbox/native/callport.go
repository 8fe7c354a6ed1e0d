package native

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"rookery/internal/sandbox"
)

// Stdin implements sandbox.Call.
func (c *call) Stdin() io.WriteCloser { return c.stdin }

// Output implements sandbox.Call.
func (c *call) Output() (stdout, stderr io.Reader) {
	if c.err == nil {
		return c.bounded(c.out), nil
	}
	return c.bounded(c.out), c.bounded(c.err)
}

// Resize implements sandbox.Call.
func (c *call) Resize(size sandbox.Size) error {
	if c.terminal == nil {
		return errors.New("the call has no terminal")
	}
	raw, err := c.terminal.SyscallConn()
	if err != nil {
		return fmt.Errorf("resize the terminal: %w", err)
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
	})
	if err = errors.Join(err, set); err != nil {
		return fmt.Errorf("resize the terminal: %w", err)
	}
	return nil
}

// Signal implements sandbox.Call.
func (c *call) Signal(sig syscall.Signal) error {
	select {
	case <-c.done:
		return os.ErrProcessDone
	default:
	}
	if err := c.conn.Send(initRequest{Signal: int(sig)}); err != nil {
		return errors.Join(os.ErrProcessDone, err)
	}
	return nil
}

// Kill implements sandbox.Call.
func (c *call) Kill(reason sandbox.Reason) {
	select {
	case c.kill <- reason:
	default: // it is being killed
	}
}

// Wait implements sandbox.Call.
func (c *call) Wait() (sandbox.Result, error) {
	<-c.done
	return c.result, c.lost
}

// bounded reads from p and kills the call when all it prints is too much.
func (c *call) bounded(p *sandbox.Pipe) io.Reader {
	if c.limits.Output <= 0 {
		return p
	}
	return boundedReader{c, p}
}

// A boundedReader drops what is printed beyond the limit.
type boundedReader struct {
	call *call
	pipe *sandbox.Pipe
}

func (r boundedReader) Read(b []byte) (int, error) {
	for {
		n, err := r.pipe.Read(b)
		over := r.call.printed.Add(int64(n)) - r.call.limits.Output
		if over <= 0 || n == 0 {
			return n, err
		}
		r.call.Kill(sandbox.OutputLimit)
		if kept := n - int(min(over, int64(n))); kept > 0 || err != nil {
			return kept, err
		}
	}
}
