package session

import (
	"context"
	"sync"

	"rookery/internal/engine"
	"rookery/protocol"
)

// A reading takes a model's reply as fast as it comes and hands it on as fast as the
// engine takes it. What is in between is bounded by the adapter's limit on a reply.
type reading struct {
	mu      sync.Mutex
	items   []protocol.Payload
	next    int // first item that was not handed on
	more    chan struct{}
	over    chan struct{} // closed when the outcome is there
	outcome engine.Outcome
}

func newReading() *reading {
	return &reading{more: make(chan struct{}, 1), over: make(chan struct{})}
}

func (r *reading) run(ctx context.Context, model engine.Model, req engine.Request, emit func(protocol.Payload) error) engine.Outcome {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var reader sync.WaitGroup
	reader.Go(func() {
		r.outcome = model.Stream(ctx, req, r.put)
		close(r.over)
	})
	err := r.handOn(emit)
	if err != nil {
		stop(err)
	}
	reader.Wait()
	return r.outcome
}

func (r *reading) put(p protocol.Payload) error {
	r.mu.Lock()
	r.items = append(r.items, p)
	r.mu.Unlock()
	select {
	case r.more <- struct{}{}:
	default:
	}
	return nil
}

// handOn emits every item, in order, until the outcome is there and none is left.
func (r *reading) handOn(emit func(protocol.Payload) error) error {
	for {
		p, ok := r.take()
		if ok {
			if err := emit(p); err != nil {
				return err
			}
			continue
		}
		select {
		case <-r.more:
		case <-r.over:
			if p, ok := r.take(); ok {
				if err := emit(p); err != nil {
					return err
				}
				continue
			}
			return nil
		}
	}
}

func (r *reading) take() (protocol.Payload, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == len(r.items) {
		r.items, r.next = r.items[:0], 0
		return nil, false
	}
	p := r.items[r.next]
	r.next++
	return p, true
}

// rest waits for the outcome and returns it with the complete payloads behind the
// call with that id, which are those that the engine has not acted on.
func (r *reading) rest(ctx context.Context, id string) (protocol.Payloads, engine.Outcome, error) {
	select {
	case <-r.over:
	case <-ctx.Done():
		return nil, engine.Outcome{}, context.Cause(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	start := r.next
	for i, p := range r.items {
		if tc, ok := p.(protocol.ToolCall); ok && tc.ToolCallID == id {
			start = i + 1
		}
	}
	var rest protocol.Payloads
	for _, p := range r.items[min(start, len(r.items)):] {
		if !protocol.IsPartial(p) {
			rest = append(rest, p)
		}
	}
	return rest, r.outcome, nil
}
