package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"rookery/protocol"
)

// attemptTimeout bounds one request to the broker's own services.
const attemptTimeout = 5 * time.Second

// retryPause is between two attempts on a connection that is up.
const retryPause = 100 * time.Millisecond

// Errors of requests.
var (
	// ErrGone reports that nobody listens where the request went.
	ErrGone = errors.New("nobody answers there")
	// ErrTooLarge reports a body over the limit (protocol.MaxBody).
	ErrTooLarge = errors.New("message too large")
)

// send makes one attempt of a request on the control connection. It ends at
// once when the connection breaks; ErrGone means no responders.
func (b *Bus) send(ctx context.Context, m *nats.Msg, wait time.Duration) (*nats.Msg, error) {
	actx, cancel := b.ctl.bound(ctx, wait)
	defer cancel()
	r, err := b.ctl.nc.RequestMsgWithContext(actx, m)
	switch {
	case err == nil:
		return r, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, nats.ErrNoResponders):
		return nil, ErrGone
	case errors.Is(err, nats.ErrConnectionClosed):
		return nil, ErrClosed
	case errors.Is(err, nats.ErrMaxPayload):
		return nil, fmt.Errorf("%w: %d bytes", ErrTooLarge, len(m.Data))
	case errors.Is(err, context.Canceled):
		return nil, errCut
	}
	return nil, err
}

// again decides after a failed attempt: nil when another one may help and it is
// time for it, the final error otherwise.
func (b *Bus) again(ctx context.Context, err error) error {
	if errors.Is(err, ErrClosed) || errors.Is(err, ErrTooLarge) {
		return err
	}
	if !errors.Is(err, errCut) {
		_ = pause(ctx, retryPause) // how it ended is seen below
	}
	if b.ctl.ready(ctx) != nil || ctx.Err() != nil {
		return b.gaveUp(ctx, err)
	}
	return nil
}

// gaveUp is the error of a ctx that ended with what the last attempt said.
func (b *Bus) gaveUp(ctx context.Context, last error) error {
	switch {
	case ctx.Err() == nil:
		return ErrClosed
	case last == nil || errors.Is(last, context.Canceled):
		return ctx.Err()
	case errors.Is(last, ctx.Err()):
		return fmt.Errorf("the broker does not answer: %w", ctx.Err())
	}
	return fmt.Errorf("%w (last attempt: %w)", ctx.Err(), last)
}

// ask makes one attempt of a typed request.
func ask[A any](ctx context.Context, b *Bus, subject string, question any, wait time.Duration) (A, error) {
	var a A
	body := protocol.Encode(question)
	if len(body) > protocol.MaxBody {
		return a, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(body), protocol.MaxBody)
	}
	r, err := b.send(ctx, &nats.Msg{Subject: subject, Data: body}, wait)
	if err != nil {
		return a, err
	}
	if err := protocol.Unmarshal(r.Data, &a); err != nil {
		return a, fmt.Errorf("answer on %s: %w", subject, err)
	}
	return a, nil
}

// askAgain repeats a typed request that may be repeated, until ctx ends or
// nobody is there (ErrGone).
func askAgain[A any](ctx context.Context, b *Bus, subject string, question any) (A, error) {
	for {
		a, err := ask[A](ctx, b, subject, question, attemptTimeout)
		if err == nil || errors.Is(err, ErrGone) {
			return a, err
		}
		if end := b.again(ctx, err); end != nil {
			return a, end
		}
	}
}

// subscribe calls h for each message on the subject, one at a time, until stop or
// Close. It returns when the broker knows of it, or at once while the connection
// is down. stop does not wait for a running handler.
func (b *Bus) subscribe(ctx context.Context, subject, queue string, h func(*nats.Msg)) (stop func(), err error) {
	b.mu.Lock()
	if b.closing {
		b.mu.Unlock()
		return nil, fmt.Errorf("subscribe %s: %w", subject, ErrClosed)
	}
	b.handlers.Add(1)
	b.mu.Unlock()
	s, err := b.sub.nc.QueueSubscribe(subject, queue, h)
	if err != nil {
		b.handlers.Done()
		if errors.Is(err, nats.ErrConnectionClosed) {
			err = ErrClosed
		}
		return nil, fmt.Errorf("subscribe %s: %w", subject, err)
	}
	s.SetClosedHandler(func(string) { b.handlers.Done() })
	_ = s.SetPendingLimits(-1, 256<<20)
	fctx, cancel := b.sub.bound(ctx, attemptTimeout)
	defer cancel()
	_ = b.sub.nc.FlushWithContext(fctx) // down: the library subscribes again when it is back
	return func() { _ = s.Unsubscribe() }, nil
}

// serve answers requests of type Q with A. A body that can't be read is answered
// by bad, so that the asker need not wait.
func serve[Q, A any](b *Bus, subject, queue string, bad func(error) A, h func(tokens []string, q Q, respond func(A))) (stop func(), err error) {
	return b.subscribe(b.life, subject, queue, func(m *nats.Msg) {
		respond := func(a A) { b.respond(m, protocol.Encode(a)) }
		var q Q
		if len(m.Data) > 0 {
			if err := protocol.Unmarshal(m.Data, &q); err != nil {
				respond(bad(err))
				return
			}
		}
		h(strings.Split(m.Subject, "."), q, respond)
	})
}

// shout publishes without waiting for anything. It fails while the connection is
// down.
func (b *Bus) shout(l *link, subject string, body []byte) error {
	if err := l.nc.Publish(subject, body); err != nil {
		return fmt.Errorf("%w: publish %s: %w", ErrUnreachable, subject, err)
	}
	return nil
}

// respond answers a request; only inboxes are answered, so that nobody can make
// us publish where he may not.
func (b *Bus) respond(m *nats.Msg, body []byte) {
	if !strings.HasPrefix(m.Reply, "_INBOX") && !strings.HasPrefix(m.Reply, "_R_.") {
		if m.Reply != "" {
			b.log.Warn("request with a reply subject that is no inbox", "subject", m.Subject, "reply", m.Reply)
		}
		return
	}
	if err := b.shout(b.ctl, m.Reply, body); err != nil {
		b.log.Debug("answer not sent", "subject", m.Subject, "err", err) // the asker repeats
	}
}
