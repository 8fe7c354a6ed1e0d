package bus

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"rookery/protocol"
)

// A ListRequest asks for a page of a listing.
type ListRequest struct {
	// After is Next of the page before; 0 for the first.
	After uint64 `json:"after,omitempty"`
}

// A Listing is a page of a listing; Next, when not 0, leads to another.
type Listing[T any] struct {
	Code   protocol.ReplyCode `json:"code,omitempty"`
	Reason string             `json:"reason,omitempty"`
	Items  []T                `json:"items,omitempty"`
	Next   uint64             `json:"next,omitempty"`
}

func badListing[T any](err error) Listing[T] {
	return Listing[T]{Code: protocol.ReplyBadRequest, Reason: err.Error()}
}

// An item is one row with its place in the stream.
type item[T any] struct {
	seq  uint64
	key  string
	size int
	row  T
}

// A lister yields the rows of a listing after a place.
type lister[T any] func(ctx context.Context, after uint64) iter.Seq2[item[T], error]

// list yields all rows, in pages from an orchestrator or, where none answers, from
// the stream itself.
func list[T any](ctx context.Context, b *Bus, subject string, local lister[T]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var zero T
		for after := uint64(0); ; {
			l, err := askAgain[Listing[T]](ctx, b, subject, ListRequest{After: after})
			if errors.Is(err, ErrGone) {
				listLocal(ctx, local, after, yield)
				return
			}
			if err == nil && l.Code != "" {
				err = errors.New(l.Reason)
			}
			if err != nil {
				yield(zero, fmt.Errorf("list %s: %w", subject, err))
				return
			}
			for _, row := range l.Items {
				if !yield(row, nil) {
					return
				}
			}
			if after = l.Next; after == 0 {
				return
			}
		}
	}
}

func listLocal[T any](ctx context.Context, local lister[T], after uint64, yield func(T, error) bool) {
	for it, err := range local(ctx, after) {
		if !yield(it.row, err) || err != nil {
			return
		}
	}
}

// serveListing answers one page.
func serveListing[T any](b *Bus, rows lister[T], r ListRequest, respond func(Listing[T])) {
	ctx, cancel := context.WithTimeout(b.life, attemptTimeout)
	defer cancel()
	var l Listing[T]
	size := 0
	last := r.After
	for it, err := range rows(ctx, r.After) {
		if err != nil {
			respond(Listing[T]{Code: protocol.ReplyFailed, Reason: err.Error()})
			return
		}
		if size += it.size + 1; len(l.Items) > 0 && size > pageSize {
			l.Next = last
			break
		}
		l.Items, last = append(l.Items, it.row), it.seq
	}
	respond(l)
}

// readRows yields what is stored as JSON under a filter; deleted keys are skipped.
// A key that changes meanwhile is not missed, but may come twice.
func readRows[T any](ctx context.Context, b *Bus, stream, filter string, after uint64) iter.Seq2[item[T], error] {
	return func(yield func(item[T], error) bool) {
		for m, err := range b.scan(ctx, stream, filter, after+1, toEnd) {
			if err != nil {
				yield(item[T]{}, err)
				return
			}
			if removed(m) {
				continue
			}
			it := item[T]{seq: number(m, hdrSequence), key: m.Subject, size: len(m.Data)}
			if err := protocol.Unmarshal(m.Data, &it.row); err != nil {
				b.log.Warn("stored value not understood", "subject", m.Subject, "err", err)
				continue
			}
			if !yield(it, nil) {
				return
			}
		}
	}
}
