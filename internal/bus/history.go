package bus

import (
	"context"
	"errors"
	"fmt"
	"math"

	"rookery/protocol"
)

// Sizes of one page of an answer, in bytes.
const (
	pageSize = 512 << 10
	pageMax  = 960 << 10 // what one message can carry
)

// A HistoryRequest asks for what comes after a cursor.
type HistoryRequest struct {
	After protocol.Cursor `json:"after"`
}

// A Page is a piece of a session's history: visible frames and own records.
type Page struct {
	Code   protocol.ReplyCode `json:"code,omitempty"` // empty when all is well
	Reason string             `json:"reason,omitempty"`
	Frames []Frame            `json:"frames,omitempty"`
	// More reports that another page follows the last frame.
	More bool `json:"more,omitempty"`
	// Direct reports that the next frame is larger than an answer can be: it can
	// only be read from the trace itself. There is no frame then.
	Direct bool `json:"direct,omitempty"`
}

// History reads a page of what viewers get of the session after a cursor, from
// an orchestrator or, where none answers or a record is too large for an answer,
// from the trace itself.
// ErrNoSession reports a session without a trace.
func (b *Bus) History(ctx context.Context, sid protocol.ID, after protocol.Cursor) (Page, error) {
	if err := checkIDs(sid); err != nil {
		return Page{}, err
	}
	p, err := askAgain[Page](ctx, b, b.orch("hist", sid), HistoryRequest{After: after})
	switch {
	case errors.Is(err, ErrGone), err == nil && p.Direct:
		p, err = b.page(ctx, sid, after, math.MaxInt)
	case err != nil:
	case p.Code == protocol.ReplyNotFound:
		err = fmt.Errorf("%w: %s", ErrNoSession, sid)
	case p.Code != "":
		err = errors.New(p.Reason)
	}
	if err != nil {
		return Page{}, fmt.Errorf("history of %s: %w", sid, err)
	}
	return p, nil
}

// page reads one page from the trace. A frame over limit begins no page, and is
// alone in its own.
func (b *Bus) page(ctx context.Context, sid protocol.ID, after protocol.Cursor, limit int) (Page, error) {
	var p Page
	size := 0
	from := max(after.Seq, 1) - 1 // the frame of the cursor may hold more
	for f, err := range b.frames(ctx, sid, from, b.traceShown) {
		if err != nil {
			return Page{}, err
		}
		f, ok := f.After(after)
		if !ok {
			continue
		}
		n := frameSize(f)
		if len(p.Frames) > 0 && size+n > pageSize {
			p.More = true
			return p, nil
		}
		if n > limit {
			return Page{Direct: true}, nil
		}
		p.Frames, size = append(p.Frames, f), size+n
	}
	if len(p.Frames) > 0 || after.Seq > 0 {
		return p, nil
	}
	switch ok, err := b.Exists(ctx, sid); {
	case err != nil:
		return Page{}, err
	case !ok:
		return Page{}, fmt.Errorf("%w: %s", ErrNoSession, sid)
	}
	return p, nil
}

// serveHistory answers for History.
func (b *Bus) serveHistory(sid protocol.ID, r HistoryRequest, respond func(Page)) {
	ctx, cancel := context.WithTimeout(b.life, attemptTimeout)
	defer cancel()
	p, err := b.page(ctx, sid, r.After, pageMax)
	switch {
	case errors.Is(err, ErrNoSession):
		p = Page{Code: protocol.ReplyNotFound, Reason: err.Error()}
	case err != nil:
		p = Page{Code: protocol.ReplyFailed, Reason: err.Error()}
	}
	respond(p)
}
