package llm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// Causes with which the clocks end a read.
var (
	errGrace = errors.New("the grace for usage is over")
	errDrain = errors.New("the connection stays open after the end")
)

// A timeoutError says which clock ran out.
type timeoutError struct {
	what  string
	limit time.Duration
}

func (e *timeoutError) Error() string { return fmt.Sprintf("%s for %s", e.what, e.limit) }

// drainLimit is how long the end of a body is waited for, so that its connection
// can be used again.
const drainLimit = 20 * time.Millisecond

// A clock bounds how long a request waits for its endpoint. It runs only while a
// read is blocked, so a slow viewer or approver never trips it (L108).
type clock struct {
	idle, noProgress time.Duration
	cancel           context.CancelCauseFunc

	waited time.Duration // since the last data
	after  time.Duration // limit of all waits from now on, once the answer is there
	ending error         // the cause of after
}

// wait runs one blocking step under the clock.
func (c *clock) wait(step func()) {
	start := time.Now()
	if d, cause := c.next(); d > 0 {
		timer := time.AfterFunc(d, func() { c.cancel(cause) })
		defer timer.Stop()
	}
	step()
	c.waited += time.Since(start)
}

// next returns how long the coming step may take, 0 for ever, and what it means
// when it takes longer.
func (c *clock) next() (time.Duration, error) {
	if c.ending != nil {
		return max(c.after-c.waited, 1), c.ending
	}
	var d time.Duration
	var cause error
	if c.idle > 0 {
		d, cause = c.idle, &timeoutError{"no byte came", c.idle}
	}
	if left := max(c.noProgress-c.waited, 1); c.noProgress > 0 && (d == 0 || left < d) {
		d, cause = left, &timeoutError{"no data came", c.noProgress}
	}
	return d, cause
}

// progress says that data came.
func (c *clock) progress() {
	if c.ending == nil {
		c.waited = 0
	}
}

// end bounds all that is still waited for by d from now on.
func (c *clock) end(d time.Duration, cause error) {
	c.waited, c.after, c.ending = 0, d, cause
}

// A clockedBody reads under the clock.
type clockedBody struct {
	io.ReadCloser
	clock *clock
}

func (b clockedBody) Read(p []byte) (n int, err error) {
	b.clock.wait(func() { n, err = b.ReadCloser.Read(p) })
	return n, err
}
