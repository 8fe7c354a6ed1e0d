package engine

import (
	"context"
	"fmt"
	"time"

	"rookery/protocol"
)

// A stream is one attempt of the model in its own goroutine.
type stream struct {
	messages    chan protocol.Payload // unbuffered; the model writes, the run reads
	outcome     chan Outcome          // capacity 1, so that an abandoned stream can end
	left        chan struct{}         // closed when nobody listens any more
	abandonOver <-chan time.Time      // runs after an abort; the run's alone
}

// startStream starts the model on one request.
func (r *run) startStream(model Model, req Request) *stream {
	s := &stream{messages: make(chan protocol.Payload), outcome: make(chan Outcome, 1), left: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.outcome <- s.run(r.ctx, model, req, r.over)
	}()
	r.working.Go(func() {
		select {
		case <-ended:
		case <-s.left:
		}
	})
	return s
}

func (s *stream) run(ctx context.Context, model Model, req Request, over <-chan struct{}) (o Outcome) {
	defer func() {
		if p := recover(); p != nil {
			o = Outcome{Status: protocol.Failed, Message: fmt.Sprintf("model adapter broke: %v", p)}
		}
	}()
	return model.Stream(ctx, req, func(p protocol.Payload) error {
		select {
		case s.messages <- p:
			return nil
		case <-s.left:
			return ErrAbandoned
		case <-over:
			return ErrAbandoned
		}
	})
}

// abandon stops listening; what the stream still says goes nowhere (L081).
func (s *stream) abandon() { close(s.left) }
