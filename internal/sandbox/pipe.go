package sandbox

import (
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lastBytes bounds what is read after Drain: what a full pipe holds.
const lastBytes = 1 << 20

// A Pipe is the reading end of a command's output. A process that holds the
// other end after the command has ended cannot keep the reader waiting.
type Pipe struct {
	f *os.File
	// The reader alone uses the rest.
	late bool
	left int
	done bool
}

// NewPipe takes f over, which must be a pipe or a terminal in non-blocking mode.
func NewPipe(f *os.File) *Pipe { return &Pipe{f: f} }

// End makes the output end after Drain. What the pipe holds then is still read.
func (p *Pipe) End() { _ = p.f.SetReadDeadline(time.Now().Add(Drain)) }

// Read implements io.Reader. Only one goroutine may read.
func (p *Pipe) Read(b []byte) (int, error) {
	switch {
	case p.done:
		return 0, io.EOF
	case len(b) == 0:
		return 0, nil
	case !p.late:
		n, err := p.f.Read(b)
		if n > 0 || err == nil {
			return n, nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, p.finish() // also EIO: a terminal nobody has open
		}
		p.late, p.left = true, lastBytes
		_ = p.f.SetReadDeadline(time.Time{})
	}
	n := p.readNow(b[:min(len(b), p.left)])
	p.left -= n
	if n == 0 {
		return 0, p.finish()
	}
	return n, nil
}

// readNow reads what is there without waiting.
func (p *Pipe) readNow(b []byte) (n int) {
	raw, err := p.f.SyscallConn()
	if err != nil || len(b) == 0 {
		return 0
	}
	_ = raw.Read(func(fd uintptr) bool {
		n, err = unix.Read(int(fd), b)
		return true
	})
	if err != nil {
		return 0
	}
	return max(n, 0)
}

// Close closes it unread.
func (p *Pipe) Close() error { return p.f.Close() }

func (p *Pipe) finish() error {
	p.done = true
	_ = p.f.Close()
	return io.EOF
}

// A Typist writes to a terminal; closing it types the end of input.
type Typist struct{ File *os.File }

// Write implements io.Writer.
func (t Typist) Write(b []byte) (int, error) { return t.File.Write(b) }

// Close types the end of input; the terminal stays open.
func (t Typist) Close() error {
	_, err := t.File.Write([]byte{4})
	return err
}
