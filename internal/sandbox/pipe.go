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

// A pipe is the reading end of a command's output. A process that holds the
// other end after the command has ended cannot keep the reader waiting.
type pipe struct {
	f *os.File
	// The reader alone uses the rest.
	late bool
	left int
	done bool
}

// end makes the output end after Drain. What the pipe holds then is still read.
func (p *pipe) end() { _ = p.f.SetReadDeadline(time.Now().Add(Drain)) }

// Read implements io.Reader. Only one goroutine may read.
func (p *pipe) Read(b []byte) (int, error) {
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
func (p *pipe) readNow(b []byte) (n int) {
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

func (p *pipe) finish() error {
	p.done = true
	_ = p.f.Close()
	return io.EOF
}

// A typist writes to a terminal; closing it types the end of input.
type typist struct{ f *os.File }

func (t typist) Write(b []byte) (int, error) { return t.f.Write(b) }

func (t typist) Close() error {
	_, err := t.f.Write([]byte{4})
	return err
}
