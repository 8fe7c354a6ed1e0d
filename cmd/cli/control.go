package main

import (
	"context"
	"math"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// overtime is how long an aborted task may take to end after a timeout.
const overtime = 30 * time.Second

// A control is what may end a run from outside: signals and the time. Until a task
// is watched they cancel ctx; afterwards the watch decides (see release).
type control struct {
	ctx     context.Context //nolint:containedctx // it is what the control controls
	cancel  context.CancelCauseFunc
	signals chan os.Signal // capacity 2: both Ctrl-C of an impatient person
	timer   *time.Timer
	quit    chan struct{}
	done    chan struct{}
}

func newControl(ctx context.Context, timeout time.Duration) *control {
	c := &control{signals: make(chan os.Signal, 2), quit: make(chan struct{}), done: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	signal.Notify(c.signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	if timeout <= 0 {
		timeout = forever
	}
	c.timer = time.NewTimer(timeout)
	go c.early() // release and stop wait for it
	return c
}

// early ends what happens before there is a task.
func (c *control) early() {
	defer close(c.done)
	select {
	case <-c.signals:
		c.cancel(errInterrupted)
	case <-c.timer.C:
		c.cancel(errTimeout)
	case <-c.quit:
	}
}

// release hands signals and timer to the caller, and reports whether neither came
// before.
func (c *control) release() bool {
	close(c.quit)
	<-c.done
	return c.ctx.Err() == nil
}

// stop gives the signals back; it may be called after release.
func (c *control) stop() {
	select {
	case <-c.quit:
	default:
		close(c.quit)
	}
	<-c.done
	signal.Stop(c.signals)
	c.timer.Stop()
	c.cancel(nil)
}

// cause is err, or what had ended the context.
func (c *control) cause(err error) error {
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	return err
}

// forever is how long a task without --timeout may take.
const forever = time.Duration(math.MaxInt64)
