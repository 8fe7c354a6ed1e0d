package bus

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// errCut ends a request whose connection broke: its answer can't come any more.
var errCut = errors.New("connection lost")

// A link is one connection and what is known of it.
type link struct {
	name   string
	nc     *nats.Conn
	notify func() // called after each change, from the client library's goroutine
	closed chan struct{}

	mu      sync.Mutex // the library's goroutine writes, callers read
	up      bool
	since   time.Time
	changed chan struct{}           // closed and replaced at each change
	life    context.Context         //nolint:containedctx // the extent of one connection
	end     context.CancelCauseFunc // ends life when the connection breaks
}

func newLink(o Options, name, inbox string, notify func()) (*link, error) {
	l := &link{name: name, notify: notify, closed: make(chan struct{}), changed: make(chan struct{})}
	l.life, l.end = context.WithCancelCause(context.Background())
	l.up, l.since = true, time.Now()
	opts := []nats.Option{
		nats.Name(o.Name + " " + name),
		nats.Timeout(dialTimeout),
		nats.MaxReconnects(-1), nats.ReconnectWait(100 * time.Millisecond), nats.ReconnectJitter(150*time.Millisecond, 150*time.Millisecond),
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectBufSize(-1),
		nats.PingInterval(10 * time.Second), nats.MaxPingsOutstanding(2),
		nats.DisconnectErrHandler(func(*nats.Conn, error) { l.set(false) }),
		nats.ReconnectHandler(func(*nats.Conn) { l.set(true) }),
		nats.ClosedHandler(func(*nats.Conn) { l.set(false); close(l.closed) }),
		nats.ErrorHandler(func(_ *nats.Conn, s *nats.Subscription, err error) {
			subject := ""
			if s != nil {
				subject = s.Subject
			}
			o.Logger.Warn("broker reported an error", "connection", name, "subject", subject, "err", err)
		}),
	}
	if o.Context == "" { // a context brings the inbox that its user may have
		opts = append(opts, nats.CustomInboxPrefix(inbox))
	}
	nc, err := o.dial(opts...)
	if err != nil {
		return nil, err
	}
	l.nc = nc
	return l, nil
}

// set records a change of the connection.
func (l *link) set(up bool) {
	l.mu.Lock()
	if l.up == up {
		l.mu.Unlock()
		return
	}
	l.up, l.since = up, time.Now()
	if up {
		l.life, l.end = context.WithCancelCause(context.Background())
	} else {
		l.end(errCut)
	}
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
	l.notify()
}

func (l *link) state() (up bool, since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up, l.since
}

// ready waits until the connection is up, or ctx ends.
func (l *link) ready(ctx context.Context) error {
	for {
		l.mu.Lock()
		up, changed := l.up, l.changed
		l.mu.Unlock()
		switch {
		case l.nc.IsClosed():
			return ErrClosed
		case up:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// bound derives a context that also ends when the connection breaks or after d.
func (l *link) bound(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	l.mu.Lock()
	life := l.life
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, d)
	stop := context.AfterFunc(life, cancel)
	return ctx, func() { stop(); cancel() }
}

// close flushes what was published and waits until the library is done.
func (l *link) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if l.nc.IsConnected() {
		_ = l.nc.FlushWithContext(ctx) // what can't be flushed is lost with the connection
	}
	l.nc.Close()
	<-l.closed
	l.end(ErrClosed)
}
