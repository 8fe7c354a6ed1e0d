package main

import (
	"context"
	"fmt"
	"iter"
	"os"
	"sync"
	"time"

	"rookery/client"
	"rookery/protocol"
)

// A shownEvent is an event, or the error that ended the watch.
type shownEvent struct {
	event client.Event
	err   error
}

// pump ranges over a watch in a goroutine of wg, which ends with ctx or the watch;
// the channel is closed then.
func pump(ctx context.Context, wg *sync.WaitGroup, seq iter.Seq2[client.Event, error]) <-chan shownEvent {
	out := make(chan shownEvent) // unbuffered: a slow terminal slows the watch, which copes
	wg.Go(func() {
		defer close(out)
		for e, err := range seq {
			select {
			case out <- shownEvent{e, err}:
			case <-ctx.Done():
				return
			}
		}
	})
	return out
}

// A taskWatch shows a task to its end and lets the person act on it.
type taskWatch struct {
	*app
	client  *client.Client
	task    client.Task
	control *control
	print   printer
	lines   *terminal // nil: nobody can be asked

	asked     []protocol.ApprovalRequest // not decided yet; the first one is shown
	askedAt   time.Time                  // when it was
	answered  bool                       // it was answered here
	withdrawn bool                       // it replaced one that was answered elsewhere

	aborting bool
	timedOut bool
	problems chan error // of commands; capacity 8, more are dropped
	end      *protocol.TaskEnd
}

func (w *taskWatch) run(o *client.WatchOptions) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.control.ctx))
	defer cancel()
	if w.lines != nil {
		defer w.lines.close()
	}
	w.problems = make(chan error, 8)
	early := !w.control.release()
	events := pump(ctx, &wg, w.client.Follow(ctx, w.task, o))
	if early {
		w.abort(ctx, &wg, w.control.cause(nil))
	}
	for {
		select {
		case e, ok := <-events:
			switch {
			case !ok:
				return w.result()
			case e.err != nil:
				return fmt.Errorf("watch task of session %s: %w", w.task.Session, e.err)
			}
			w.event(e.event)
		case <-w.control.signals:
			if w.aborting {
				return w.leave(errInterrupted)
			}
			w.notice("aborting; Ctrl-C again leaves at once")
			w.abort(ctx, &wg, errInterrupted)
		case <-w.control.timer.C:
			if w.timedOut {
				return w.leave(errTimeout)
			}
			w.control.timer.Reset(overtime)
			w.abort(ctx, &wg, errTimeout)
		case line := <-w.lines.read():
			w.answer(ctx, &wg, line)
		case err := <-w.problems:
			w.notice("%v", err)
		}
	}
}

// event shows one and keeps track of what must be decided.
func (w *taskWatch) event(e client.Event) {
	w.print.show(e)
	switch p := e.Message.Payload.(type) {
	case protocol.ApprovalRequest:
		w.ask(p)
	case protocol.ApprovalDecision:
		w.decided(p.ToolCallID)
	case protocol.ApprovalClosed:
		w.decided(p.ToolCallID)
	case protocol.TaskEnd:
		if p.TaskID == w.task.ID {
			w.end, w.ended = &p, true
		}
	default:
	}
}

// abort asks for the end of the task, without waiting.
func (w *taskWatch) abort(ctx context.Context, wg *sync.WaitGroup, why error) {
	by := "user"
	if why == errTimeout { //nolint:errorlint // it is ours, unwrapped
		by, w.timedOut = string(protocol.CodeTimeout), true
	}
	w.aborting = true
	w.command(ctx, wg, func(ctx context.Context) error {
		_, err := w.client.Abort(ctx, w.task.Session, by)
		return err
	})
}

// command runs one in the background; its error becomes a notice.
func (w *taskWatch) command(ctx context.Context, wg *sync.WaitGroup, do func(context.Context) error) {
	wg.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, commandTimeout)
		defer cancel()
		if err := do(ctx); err != nil && ctx.Err() == nil {
			select {
			case w.problems <- err:
			default:
			}
		}
	})
}

// leave ends the watch before the task.
func (w *taskWatch) leave(why error) error {
	return fmt.Errorf("left session %s before its task ended; rookery run -s %s or attach goes on: %w", w.task.Session, w.task.Session, why)
}

// result is the exit status by the task's end.
func (w *taskWatch) result() error {
	if w.end == nil {
		return fmt.Errorf("watch of session %s ended before its task", w.task.Session)
	}
	w.status = protocol.ExitCode(w.end.Status, w.end.Code)
	return nil
}

// A terminal is the person's, whatever standard input is.
type terminal struct {
	file  *os.File
	lines chan string // the reader writes and closes, the watch reads
	done  chan struct{}
	quit  chan struct{}
}

const terminalName = "/dev/tty"

func openTerminal() (*terminal, error) {
	f, err := os.OpenFile(terminalName, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open the terminal: %w", err)
	}
	return readLines(f), nil
}

// close ends the reader and waits for it.
func (t *terminal) close() {
	close(t.quit)
	_ = t.file.SetReadDeadline(time.Unix(1, 0)) // wakes a reader that waits for a person
	_ = t.file.Close()
	<-t.done
}

// read is nil, and blocks for ever, without a terminal.
func (t *terminal) read() <-chan string {
	if t == nil {
		return nil
	}
	return t.lines
}
