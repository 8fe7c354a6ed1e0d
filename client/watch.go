package client

import (
	"context"
	"errors"
	"iter"
	"time"

	"rookery/internal/bus"
	"rookery/protocol"
)

// errLeft ends a watch whose consumer left the loop.
var errLeft = errors.New("left")

// ErrIncomplete reports a history that lacks a record of which the broker told.
var ErrIncomplete = errors.New("history is incomplete")

// Watch shows a session from a cursor on: what is stored, then what happens, until
// ctx ends or the caller leaves the loop. It repairs what the connection loses. A
// slow consumer loses fragments, never complete messages, and slows nobody.
// An error is yielded last: the context's, ErrNoSession, ErrClosed, ErrIncomplete.
func (c *Client) Watch(ctx context.Context, session protocol.ID, o *WatchOptions) iter.Seq2[Event, error] {
	if o == nil {
		o = &WatchOptions{}
	}
	return func(yield func(Event, error) bool) {
		w := &watch{
			source: c.bus, session: session, yield: yield,
			view: newView(o.From, !o.NoPartials),
			ask: func(ctx context.Context, page int) (protocol.Reply, error) {
				return c.ask(ctx, session, protocol.VerbSnap, protocol.Command{ID: newID(), Page: page})
			},
		}
		run := w.history
		if !o.NoFollow {
			run = func(ctx context.Context) error { return w.run(ctx, c.bus) }
		}
		err := run(ctx)
		if err != nil && !errors.Is(err, errLeft) {
			yield(Event{}, err)
		}
	}
}

// Follow shows one task, from its task_begin to its task_end.
func (c *Client) Follow(ctx context.Context, t Task, o *WatchOptions) iter.Seq2[Event, error] {
	opts := WatchOptions{}
	if o != nil {
		opts = *o
	}
	opts.From = t.From
	return func(yield func(Event, error) bool) {
		begun := false
		for e, err := range c.Watch(ctx, t.Session, &opts) {
			if p, ok := e.Message.Payload.(protocol.TaskBegin); ok && p.TaskID == t.ID {
				begun = true
			}
			if err == nil && !begun && e.Kind == Message {
				continue
			}
			if !yield(e, err) || err != nil {
				return
			}
			if p, ok := e.Message.Payload.(protocol.TaskEnd); ok && p.TaskID == t.ID {
				return
			}
		}
	}
}

// A source is what a watch fetches from: a bus.
type source interface {
	// History reads a page of what is stored after a cursor.
	History(ctx context.Context, session protocol.ID, after protocol.Cursor) (bus.Page, error)
	// Connected reports that History can be answered now.
	Connected() bool
}

// A watch drives a view: it fetches what the view lacks.
type watch struct {
	source
	session protocol.ID
	yield   func(Event, error) bool
	view    *view
	ask     func(ctx context.Context, page int) (protocol.Reply, error)
	again   time.Time // no snapshot before that
	beat    uint64    // highest sequence that a beat told of
}

func (w *watch) run(ctx context.Context, b *bus.Bus) error {
	out, err := b.Subscribe(ctx, w.session)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := w.catchUp(ctx); err != nil {
		return err
	}
	w.view.emit(Event{Kind: CaughtUp})
	for {
		if err := w.deliver(); err != nil {
			return err
		}
		e, err := out.Next(ctx)
		if err != nil {
			return err
		}
		if err := w.take(ctx, e); err != nil {
			return err
		}
	}
}

// take handles one event of the subscription.
func (w *watch) take(ctx context.Context, e bus.Event) error {
	switch {
	case e.Frame != nil:
		return w.frame(ctx, *e.Frame)
	case e.Gap:
		if w.Connected() {
			return w.catchUp(ctx)
		}
	case e.Link != nil && !e.Link.Up:
		w.view.emit(Event{Kind: Reconnecting})
	case e.Link != nil:
		if err := w.catchUp(ctx); err != nil {
			return err
		}
		w.view.emit(Event{Kind: Reconnected})
	case e.Live != nil && e.Live.Beat != nil:
		w.view.enter(e.Live.Epoch)
		return w.heard(ctx, e.Live.Beat.Seq)
	case e.Live != nil:
		w.view.live(*e.Live)
		w.mend(ctx)
	}
	return nil
}

// heard compares how far the trace is, by a beat, with what was applied. A beat
// that helped nothing is not tried again: it may tell of a private record.
func (w *watch) heard(ctx context.Context, seq uint64) error {
	if seq <= max(w.view.cursor.Seq, w.beat) || !w.Connected() {
		return nil
	}
	w.beat = seq
	return w.catchUp(ctx)
}

// Attempts to read a frame that the broker told of; a replica may lag behind.
const (
	healAttempts = 50
	healPause    = 100 * time.Millisecond
)

func (w *watch) frame(ctx context.Context, f bus.Frame) error {
	for range healAttempts {
		if w.view.follows(f) {
			w.view.frame(f)
			return nil
		}
		if err := w.history(ctx); err != nil {
			return err
		}
		if !w.view.follows(f) {
			if err := pause(ctx, healPause); err != nil {
				return err
			}
		}
	}
	return ErrIncomplete
}

// catchUp reads what is stored, and then what is being streamed.
func (w *watch) catchUp(ctx context.Context) error {
	if err := w.history(ctx); err != nil {
		return err
	}
	w.view.torn, w.again = true, time.Time{}
	w.mend(ctx)
	return nil
}

// history applies what is stored after the view's cursor.
func (w *watch) history(ctx context.Context) error {
	for {
		p, err := w.History(ctx, w.session, w.view.cursor)
		if err != nil {
			return err
		}
		for _, f := range p.Frames {
			w.view.frame(f)
			if err := w.deliver(); err != nil {
				return err
			}
		}
		if !p.More || len(p.Frames) == 0 {
			return nil
		}
	}
}

// Bounds of asking for snapshots.
const (
	snapTimeout  = 2 * time.Second
	snapPause    = 250 * time.Millisecond // between two
	snapPenalty  = 5 * time.Second        // after one that got no answer
	maxSnapPages = 4096
)

// mend asks the owner for what is being streamed, when fragments were lost. It is
// a favour to the viewer: complete messages do not depend on it.
func (w *watch) mend(ctx context.Context) {
	v := w.view
	if !v.torn || !v.partials || time.Now().Before(w.again) {
		return
	}
	v.torn = false
	if v.idle {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, snapTimeout)
	defer cancel()
	wait := snapPause
	for page := range maxSnapPages {
		r, err := w.ask(ctx, page)
		if err != nil {
			wait = snapPenalty
			break
		}
		if r.Snap == nil {
			break
		}
		v.snapshot(*r.Snap)
		if !r.Snap.More {
			break
		}
	}
	w.again = time.Now().Add(wait)
}

// deliver gives the view's events to the consumer.
func (w *watch) deliver() error {
	out := w.view.out
	w.view.out = nil
	for _, e := range out {
		if !w.yield(e, nil) {
			return errLeft
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
