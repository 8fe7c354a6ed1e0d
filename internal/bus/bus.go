package bus

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rookery/protocol"
)

// A Bus is connected to a broker. It is safe for concurrent use.
type Bus struct {
	names
	log *slog.Logger
	ctl *link // requests, appends, claims, replies
	out *link // deltas and beats, lossy
	sub *link // subscriptions and requests to us
	js  jetstream.JetStream

	handlers sync.WaitGroup // subscriptions' goroutines and the work that handlers started
	// life ends at Close; it bounds what the bus does for others' requests.
	life context.Context //nolint:containedctx // a handler has no caller's context
	end  context.CancelFunc

	mu       sync.Mutex // guards the rest
	watchers map[int]func(Link)
	next     int
	told     Link
	closing  bool
}

// A Link tells of the connection to the broker.
type Link struct {
	// Up reports that all connections are there, Since when that or the
	// contrary began.
	Up    bool
	Since time.Time
	// Server is the id of the broker's process; another one after a restart.
	Server string
}

// Connect opens the connections. Without Options.Retry it fails at once with
// ErrUnreachable or ErrAuth; later breaks are repaired for ever, with 100 to
// 250 ms between attempts. ctx bounds Connect only.
func Connect(ctx context.Context, o Options) (*Bus, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	for {
		b, err := connect(o)
		if err == nil || !o.Retry || errors.Is(err, ErrAuth) {
			return b, err
		}
		if pause(ctx, 250*time.Millisecond) != nil {
			return nil, err
		}
	}
}

func connect(o Options) (*Bus, error) {
	b := &Bus{names: names(o.Prefix), log: o.Logger, watchers: map[int]func(Link){}}
	b.life, b.end = context.WithCancel(context.Background())
	inbox := "_INBOX_" + protocol.Token(6)
	links := []struct {
		to   **link
		name string
	}{{&b.ctl, "control"}, {&b.out, "output"}, {&b.sub, "subscriptions"}}
	errs := make([]error, len(links))
	var wg sync.WaitGroup
	for i, l := range links {
		wg.Go(func() { *l.to, errs[i] = newLink(o, l.name, inbox, b.tell) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			b.closeLinks()
			return nil, err
		}
	}
	js, err := jetstream.New(b.ctl.nc, jetstream.WithDefaultTimeout(attemptTimeout))
	if err != nil {
		b.closeLinks()
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.js, b.told = js, b.link()
	return b, nil
}

// Connected reports that all connections are up.
func (b *Bus) Connected() bool { return b.link().Up }

// Link returns the state of the connection.
func (b *Bus) Link() Link { return b.link() }

func (b *Bus) link() Link {
	r := Link{Up: true}
	for _, l := range []*link{b.ctl, b.out, b.sub} {
		up, since := l.state()
		switch {
		case r.Up && !up:
			r.Up, r.Since = false, since
		case r.Up == up && since.After(r.Since):
			r.Since = since
		}
	}
	if r.Up {
		r.Server = b.ctl.nc.ConnectedServerId()
	}
	return r
}

// Watch calls f after each change between up and down, one call at a time, until
// stop. f must not block, nor call stop.
func (b *Bus) Watch(f func(Link)) (stop func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id := b.next
	b.next++
	b.watchers[id] = f
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.watchers, id)
	}
}

// tell passes a change on. It runs on goroutines of the client library.
func (b *Bus) tell() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.js == nil || b.closing {
		return // not connected yet, or on purpose
	}
	now := b.link()
	if now.Up == b.told.Up && now.Server == b.told.Server {
		return
	}
	b.told = now
	for _, f := range b.watchers {
		f(now)
	}
}

// Close ends all subscriptions, sends what was published and waits for the
// handlers; it must not be called from one.
func (b *Bus) Close() {
	b.mu.Lock()
	b.closing = true
	b.mu.Unlock()
	b.end()
	b.closeLinks()
	b.handlers.Wait()
}

func (b *Bus) closeLinks() {
	for _, l := range []*link{b.sub, b.out, b.ctl} {
		if l != nil {
			l.close()
		}
	}
}

// pause waits for d or the end of ctx, whose error it returns.
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
