package bus

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"rookery/protocol"
)

// Exists reports whether the session has a trace.
func (b *Bus) Exists(ctx context.Context, sid protocol.ID) (bool, error) {
	_, err := b.LastSeq(ctx, sid)
	if errors.Is(err, ErrNoSession) {
		return false, nil
	}
	return err == nil, err
}

// ErrNoSession reports a session without a trace.
var ErrNoSession = errors.New("no such session")

// LastSeq is the sequence of the session's last message; ErrNoSession when there
// is none.
func (b *Bus) LastSeq(ctx context.Context, sid protocol.ID) (uint64, error) {
	if err := checkIDs(sid); err != nil {
		return 0, err
	}
	m, err := b.last(ctx, b.stream(streamTrace), b.traceAll(sid))
	if errors.Is(err, errNotStored) {
		return 0, fmt.Errorf("%w: %s", ErrNoSession, sid)
	} else if err != nil {
		return 0, fmt.Errorf("trace of %s: %w", sid, err)
	}
	return number(m, hdrSequence), nil
}

// Trace yields all that is stored of the session after a sequence, private
// frames and own records included, in order, up to what is the last when it is
// called. An error is yielded last. A session without a trace yields nothing.
func (b *Bus) Trace(ctx context.Context, sid protocol.ID, after uint64) iter.Seq2[Frame, error] {
	return b.frames(ctx, sid, after, b.traceAll)
}

// frames reads the frames under a filter of the session.
func (b *Bus) frames(ctx context.Context, sid protocol.ID, after uint64, filter func(protocol.ID) string) iter.Seq2[Frame, error] {
	return func(yield func(Frame, error) bool) {
		if err := checkIDs(sid); err != nil {
			yield(Frame{}, err)
			return
		}
		m, err := b.last(ctx, b.stream(streamTrace), filter(sid))
		if errors.Is(err, errNotStored) {
			return
		} else if err != nil {
			yield(Frame{}, fmt.Errorf("trace of %s: %w", sid, err))
			return
		}
		var a assembler
		for m, err := range b.scan(ctx, b.stream(streamTrace), filter(sid), after+1, number(m, hdrSequence)) {
			if err != nil {
				yield(Frame{}, err)
				return
			}
			f, ok, err := a.next(b.names, m)
			if err != nil {
				yield(Frame{}, fmt.Errorf("trace of %s: %w", sid, err))
				return
			}
			if ok && !yield(f, nil) {
				return
			}
		}
	}
}
