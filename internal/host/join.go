package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"rookery/internal/bus"
	"rookery/internal/config"
)

// reviveTimeout bounds a start of the broker from within a reconnect.
const reviveTimeout = 2 * time.Second

// Join connects to the configured broker, or, when none is configured, to this
// user's own for the configured store, which it starts if it does not run. A
// broker of one's own that is killed is started anew by whoever misses it first.
// Its error is bus.ErrUnreachable or bus.ErrAuth for a configured broker, else
// a *BrokerError.
func Join(ctx context.Context, cfg *config.Config, log *slog.Logger) (*bus.Bus, error) {
	if !Configured(cfg) {
		return NewLocal(cfg, log).Connect(ctx)
	}
	b, err := bus.Connect(ctx, busOptions(cfg, log))
	if err != nil {
		return nil, fmt.Errorf("connect to the broker %s: %w", brokerName(cfg), err)
	}
	return b, nil
}

// Configured reports that a broker is configured, so that none of one's own is used.
func Configured(cfg *config.Config) bool {
	return len(cfg.Server) > 0 || cfg.Creds != "" || cfg.Context != ""
}

func busOptions(cfg *config.Config, log *slog.Logger) bus.Options {
	return bus.Options{Servers: cfg.Server, Creds: cfg.Creds, Context: cfg.Context, Prefix: cfg.Prefix, Logger: log}
}

// A Local is this user's own broker for a store.
type Local struct {
	// Store is its directory; empty = the user's.
	Store string
	// Strict and MaxStore are BrokerOptions of one that is started.
	Strict   bool
	MaxStore int64
	Prefix   string
	// Command starts a broker when --store and --exit-idle are added. Default:
	// this program with the argument broker.
	Command []string
	// Log; nil discards.
	Log *slog.Logger
}

// NewLocal is the broker of the configured store.
func NewLocal(cfg *config.Config, log *slog.Logger) Local {
	return Local{
		Store: cfg.Store.Dir, Strict: cfg.Store.Durability == "strict", MaxStore: cfg.Store.Size,
		Prefix: cfg.Prefix, Log: log,
	}
}

// Connect connects to the broker, starts it if need be, and sets the store up. It
// waits for one that is just coming up or going down.
func (l Local) Connect(ctx context.Context) (*bus.Bus, error) {
	p, err := findPlace(l.Store)
	if err != nil {
		return nil, err
	}
	for began := time.Now(); ; {
		b, err := l.attempt(ctx, p)
		if err == nil {
			return b, l.setup(ctx, b)
		}
		h := readHolder(p.store)
		switch {
		case ctx.Err() != nil || !again(err):
			return nil, brokerError(p.store, err)
		case h.patienceEnds(began):
			return nil, brokerError(p.store, fmt.Errorf("%w: process %d (%s): %w", ErrStoreBusy, h.PID, h.Kind, err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(lockPoll):
		}
	}
}

// again reports a failure that may be gone by now: the broker is just coming up,
// has just ended, or its address was that of another one.
func again(err error) bool {
	return errors.Is(err, errEnded) || errors.Is(err, errRunning) ||
		errors.Is(err, bus.ErrUnreachable) || errors.Is(err, bus.ErrAuth)
}

func (l Local) attempt(ctx context.Context, p place) (*bus.Bus, error) {
	_, err := p.read()
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && free(p.store):
		if err := l.start(ctx, p); err != nil && !errors.Is(err, errRunning) {
			return nil, err
		}
	case err != nil:
		return nil, err
	}
	b, err := bus.Connect(ctx, bus.Options{Resolve: l.resolver(p), Prefix: l.Prefix, Logger: l.Log})
	if err != nil {
		return nil, err
	}
	// A broker that is about to end removes the file first and looks for clients
	// then; so either it has seen us, or we see that the file is gone.
	r, err := p.read()
	if err != nil {
		b.Close()
		if errors.Is(err, fs.ErrNotExist) {
			err = errEnded
		}
		return nil, err
	}
	logger(l.Log).DebugContext(ctx, "joined the broker", "store", r.Store, "url", r.URL)
	return b, nil
}

func (l Local) setup(ctx context.Context, b *bus.Bus) error {
	if err := b.Setup(ctx, bus.StoreOptions{}); err != nil {
		b.Close()
		return fmt.Errorf("set the store up: %w", err)
	}
	return nil
}

// resolver finds the broker for each attempt to connect. One that was killed has
// left its runtime file and not its lock: then it is started again. One that
// ended on purpose is left alone.
func (l Local) resolver(p place) func() (url, user, password string, err error) {
	var mu sync.Mutex // the connections of a bus ask at once
	return func() (url, user, password string, err error) {
		mu.Lock()
		defer mu.Unlock()
		r, err := p.read()
		if err == nil && free(p.store) {
			ctx, cancel := context.WithTimeout(context.Background(), reviveTimeout)
			defer cancel()
			if err := l.start(ctx, p); err != nil && !errors.Is(err, errRunning) {
				return "", "", "", err
			}
			r, err = p.read()
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = errEnded
		}
		return r.URL, r.User, r.Password, err
	}
}

// brokerName tells of a configured broker without its credentials.
func brokerName(cfg *config.Config) string {
	switch {
	case len(cfg.Server) > 0:
		return redact(cfg.Server)
	case cfg.Context != "":
		return "of context " + cfg.Context
	}
	return "of credentials file " + cfg.Creds
}
