package tool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"rookery/internal/sandbox"
)

// A command is a process tree whose output is being read. The session owns it,
// not the tool call that started it, which may return before the command ends.
type command struct {
	call  sandbox.Call
	since time.Time
	out   *console
	done  chan struct{} // closed by follow, when all below is final

	id, line string        // once it is in the background
	timeout  time.Duration // of its own; 0 is none
	typing   chan struct{} // capacity 1, full while input is being written

	result sandbox.Result
	err    error
	limit  int64 // bytes it may print
	over   bool  // it printed as much
	stderr backlog
}

func newCommand(call sandbox.Call, spec sandbox.CallSpec, limit int64, out *console) *command {
	return &command{
		call: call, since: time.Now(), out: out, done: make(chan struct{}),
		timeout: spec.Timeout, typing: make(chan struct{}, 1), limit: limit,
	}
}

// follow reads what the command prints until it ends.
func (c *command) follow() {
	defer close(c.done)
	stdout, stderr := c.call.Output()
	var errs sync.WaitGroup
	if stderr != nil {
		errs.Go(func() { _, _ = io.Copy(&c.stderr, stderr) })
	}
	c.read(stdout)
	errs.Wait()
	c.result, c.err = c.call.Wait()
}

func (c *command) read(stdout io.Reader) {
	buf := make([]byte, 32<<10)
	for left := c.limit; ; {
		n, err := stdout.Read(buf)
		if !c.over {
			kept := min(int64(n), left)
			c.out.write(buf[:kept])
			left -= kept
		}
		if err != nil {
			c.out.end()
			return
		}
		if left == 0 && !c.over {
			c.over = true
			c.call.Kill(sandbox.OutputLimit)
		}
	}
}

func (c *command) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// await waits for the command's end, for ctx or for some time; 0 is any. It tells
// whether the command has ended.
func (c *command) await(ctx context.Context, wait time.Duration) bool {
	var late <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-c.done:
	case <-late:
	case <-ctx.Done():
	}
	return c.ended()
}

// report tells how the command ended; cause is why its call was cancelled, if it was.
func (c *command) report(cause error) (Report, error) {
	rep := Report{Reason: c.result.Reason, Usage: c.result.Usage}
	switch r := c.result; {
	case c.err != nil:
		return rep, c.err
	case r.Reason == sandbox.Exited:
		rep.Notes = exitNotes(r)
	case c.over:
		rep.Failed, rep.Notes = true, []string{fmt.Sprintf("[output limit: killed after %d bytes]", c.limit)}
	case cause != nil:
		return rep, cause
	case r.Reason == sandbox.TimedOut && c.timeout > 0:
		return rep, timeoutError{c.timeout}
	default:
		rep.Failed, rep.Notes = true, []string{"[killed: " + string(r.Reason) + "]"}
	}
	return rep, nil
}

func killReason(cause error) sandbox.Reason {
	var late timeoutError
	switch {
	case errors.As(cause, &late):
		return sandbox.TimedOut
	case errors.Is(cause, ErrStopped):
		return sandbox.WorkerStopped
	default:
		return sandbox.Killed
	}
}

func exitNotes(r sandbox.Result) []string {
	switch {
	case r.Signal != 0:
		return []string{fmt.Sprintf("[killed by signal: %s]", unix.SignalName(syscall.Signal(r.Signal)))}
	case r.Exit != 0:
		return []string{fmt.Sprintf("[exit code: %d]", r.Exit)}
	}
	return nil
}

// A console gives what a command prints to the call that waits for it, and keeps
// the head and the tail of it while none does.
type console struct {
	mu   sync.Mutex // the command's reader writes, calls come and go
	to   io.Writer  // nil while no call waits
	kept backlog
	part []byte // an incomplete rune: two calls never share one
}

func (o *console) write(b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.part) > 0 {
		b = append(o.part, b...)
		o.part = nil
	}
	n := wholeRunes(b)
	o.part = append(o.part, b[n:]...)
	o.put(b[:n])
}

// end hands on what can't become a rune any more.
func (o *console) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.put(o.part)
	o.part = nil
}

func (o *console) put(b []byte) {
	switch {
	case len(b) == 0:
	case o.to != nil:
		_, _ = o.to.Write(b) // a sink does not fail
	default:
		_, _ = o.kept.Write(b)
	}
}

// attach gives w what was kept, at most some bytes of it, and from then on what
// comes; false when another call has it.
func (o *console) attach(w io.Writer, room int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.to != nil {
		return false
	}
	o.to = w
	o.put(o.kept.take(room))
	return true
}

func (o *console) detach() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.to = nil
}

// wholeRunes returns how much of b does not end in the middle of a rune.
func wholeRunes(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if c := b[len(b)-n]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-n:]) {
				return len(b) - n
			}
			break
		}
	}
	return len(b)
}

// What a backlog holds at most, in bytes.
const (
	backlogHead = 64 << 10
	backlogTail = 192 << 10
)

// A backlog keeps the beginning and the end of what nobody has read yet.
type backlog struct {
	head, tail []byte
	left       int64 // bytes between them that are gone
}

// Write implements io.Writer; it does not fail.
func (k *backlog) Write(b []byte) (int, error) {
	all := len(b)
	if n := min(len(b), backlogHead-len(k.head)); n > 0 && len(k.tail) == 0 {
		k.head = append(k.head, b[:n]...)
		b = b[n:]
	}
	k.tail = append(k.tail, b...)
	if len(k.tail) > 2*backlogTail {
		k.trim(backlogTail)
	}
	return all, nil
}

// trim cuts the tail to a size.
func (k *backlog) trim(size int) {
	over := max(len(k.tail)-size, 0)
	for over > 0 && over < len(k.tail) && !utf8.RuneStart(k.tail[over]) {
		over++
	}
	k.left += int64(over)
	k.tail = append(k.tail[:0], k.tail[over:]...)
}

// take returns at most room bytes of it, a quarter of them from its beginning, with
// a note of what is missing, and empties it.
func (k *backlog) take(room int) []byte {
	if room < len(k.head)+len(k.tail) {
		k.tail = append(k.head[min(len(k.head), room/4):], k.tail...)
		k.head = k.head[:min(len(k.head), room/4)]
		if n := wholeRunes(k.head); n < len(k.head) {
			k.head, k.left = k.head[:n], k.left+int64(len(k.head)-n)
		}
		k.trim(room - len(k.head))
	}
	out := k.head
	if k.left > 0 {
		out = fmt.Appendf(out, "\n[%d bytes left out]\n", k.left)
	}
	out = append(out, k.tail...)
	*k = backlog{}
	return out
}
