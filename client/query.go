package client

import (
	"context"
	"iter"

	"rookery/protocol"
)

// List yields the directory of sessions, the one that changed last at the end. An
// error is yielded last.
func (c *Client) List(ctx context.Context) iter.Seq2[protocol.Entry, error] {
	return c.bus.Sessions(ctx)
}

// Entry is the session's line of the directory; ErrNoSession when it has none.
func (c *Client) Entry(ctx context.Context, session protocol.ID) (protocol.Entry, error) {
	return c.bus.Session(ctx, session)
}

// Usage yields the ledger, one row for each request of a model, in the order of
// writing. An error is yielded last.
func (c *Client) Usage(ctx context.Context) iter.Seq2[protocol.UsageRow, error] {
	return c.bus.Usage(ctx)
}

// History yields the complete messages after a cursor that are stored now, in
// order. ErrNoSession: there is no such session.
func (c *Client) History(ctx context.Context, session protocol.ID, from protocol.Cursor) iter.Seq2[Event, error] {
	return c.Watch(ctx, session, &WatchOptions{From: from, NoPartials: true, NoFollow: true})
}

// A Record is one stored message of a session, private ones included.
type Record struct {
	// Context is the number of the model context, from 1; 0 for an ownership.
	Context int
	// Private records are kept from viewers.
	Private bool
	Cursor  protocol.Cursor
	Message protocol.Message
	// Own is set, and Message is not, where a session got an owner.
	Own *protocol.Own
}

// Records yields everything that is stored of a session now: what History has, and
// what is private. ErrNoSession: there is no such session.
func (c *Client) Records(ctx context.Context, session protocol.ID) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		if _, err := c.bus.LastSeq(ctx, session); err != nil {
			yield(Record{}, err)
			return
		}
		for f, err := range c.bus.Trace(ctx, session, 0) {
			if err != nil {
				yield(Record{}, err)
				return
			}
			at := protocol.Cursor{Seq: f.Seq, Pos: f.Pos}
			if f.Own != nil && !yield(Record{Cursor: at, Own: f.Own}, nil) {
				return
			}
			for _, m := range f.Messages {
				if !yield(Record{Context: f.Context, Private: f.Private, Cursor: at, Message: m}, nil) {
					return
				}
				at.Pos++
			}
		}
	}
}

// Import stores a trace as a session that does not exist yet.
func (c *Client) Import(ctx context.Context, session protocol.ID, ms iter.Seq2[protocol.Message, error]) error {
	r, err := c.bus.Import(ctx, session, ms)
	return answer(r, err, "import", session)
}
