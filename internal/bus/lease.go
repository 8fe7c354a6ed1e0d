package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"rookery/protocol"
)

// A LeaseKind is o for an orchestrator and w for a worker.
type LeaseKind string

// The kinds of lease.
const (
	LeaseOrchestrator LeaseKind = "o"
	LeaseWorker       LeaseKind = "w"
)

// A Lease says that a process lives, until LeaseTTL after it stopped saying so.
// It is a hint: ownership is decided in the trace.
type Lease struct {
	Kind LeaseKind       `json:"kind"`
	ID   protocol.ID     `json:"id"`
	Boot string          `json:"boot"`
	Body json.RawMessage `json:"body,omitempty"` // what the kind tells of itself
}

func (l Lease) key() string { return string(l.Kind) + "." + string(l.ID) }

// leaseEvery is how often a lease is renewed.
const leaseEvery = 3 * time.Second

// KeepLease holds a lease until ctx ends and then gives it up, so that nobody
// waits for its expiry. It goes on when the broker is away, and renews at once when
// that is back, since a restarted broker knows no lease. held, if not nil, is called
// once, when the lease is there for others to see.
func (b *Bus) KeepLease(ctx context.Context, l Lease, held func()) error {
	if err := checkIDs(l.ID, protocol.ID(l.Kind)); err != nil {
		return err
	}
	back := make(chan struct{}, 1)
	defer b.Watch(func(link Link) {
		if link.Up {
			select {
			case back <- struct{}{}:
			default:
			}
		}
	})()
	var mine uint64
	for {
		wait := leaseEvery
		switch revision, err := b.renew(ctx, l); {
		case err == nil:
			mine = revision
			if held != nil {
				held()
				held = nil
			}
		case ctx.Err() == nil:
			b.log.WarnContext(ctx, "lease not renewed", "lease", l.key(), "err", err)
			wait = leaseEvery / 10
		}
		select {
		case <-time.After(wait):
			continue
		case <-back:
			continue
		case <-ctx.Done():
		}
		break
	}
	if !b.Connected() {
		return nil // it expires
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout)
	defer cancel()
	err := b.remove(ctx, bucketNodes, l.key(), &mine)
	if errors.Is(err, ErrConflict) {
		return nil // another process has the id now
	}
	return err
}

// renew writes the lease once. The bucket is in memory, so a broker that restarted
// has none: then it is made again. The end of ctx does not cut it short, because
// the revision must be known.
func (b *Bus) renew(ctx context.Context, l Lease) (revision uint64, err error) {
	if err := b.ctl.ready(ctx); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaseEvery)
	defer cancel()
	m := message(b.key(bucketNodes, l.key()), protocol.Encode(l), "")
	a, err := b.attempt(ctx, m)
	if errors.Is(err, ErrGone) {
		if err := b.restoreNodes(ctx); err != nil {
			return 0, fmt.Errorf("make the bucket of leases: %w", err)
		}
		a, err = b.attempt(ctx, m)
	}
	return a.Seq, err
}

// restoreNodes makes the bucket of leases like the others.
func (b *Bus) restoreNodes(ctx context.Context) error {
	like, err := b.js.Stream(ctx, b.bucketStream(bucketSessions))
	if err != nil {
		return err
	}
	_, err = b.ensure(ctx, b.nodes(like.CachedInfo().Config.Replicas))
	return err
}

// Leases reads who lives.
func (b *Bus) Leases(ctx context.Context) ([]Lease, error) {
	return values[Lease](ctx, b, bucketNodes)
}

// LeasesKept says for how long leases have been kept without a break: since the
// broker was started, or the first lease was taken. Who holds none by then, though
// that is longer than LeaseTTL, is not there.
func (b *Bus) LeasesKept(ctx context.Context) (time.Duration, error) {
	s, err := b.js.Stream(ctx, b.bucketStream(bucketNodes))
	if err != nil {
		return 0, fmt.Errorf("ask for the leases: %w", err)
	}
	info := s.CachedInfo()
	return info.TimeStamp.Sub(info.Created), nil
}

// leasePoll is how often the watch looks. It does not subscribe to the bucket: then
// a renewal without a bucket would have a receiver, and nobody would notice.
const leasePoll = 500 * time.Millisecond

// WatchLeases calls f with each lease there is, each one that is new or changed
// (alive), and each end, until ctx ends; it blocks. A lease that was given up is
// told within half a second; one that expired within a second more, but only when
// the connection has been there for a lease's time without a break: while the
// broker was away nobody could renew.
func (b *Bus) WatchLeases(ctx context.Context, f func(l Lease, alive bool)) error {
	known := map[string]Lease{}
	for {
		err := b.pollLeases(ctx, known, f)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the caller ended it
		}
		if err != nil {
			return fmt.Errorf("watch leases: %w", err)
		}
		_ = pause(ctx, leasePoll)
	}
}

// pollLeases compares the bucket with what is known.
func (b *Bus) pollLeases(ctx context.Context, known map[string]Lease, f func(Lease, bool)) error {
	gone := maps.Clone(known)
	link := b.Link()
	steady := link.Up && time.Since(link.Since) >= LeaseTTL
	for m, err := range b.scan(ctx, b.bucketStream(bucketNodes), b.key(bucketNodes, ">"), 1, toEnd) {
		if err != nil {
			return err
		}
		before, ok := known[m.Subject]
		if removed(m) {
			if ok {
				delete(known, m.Subject)
				f(before, false)
			}
			continue
		}
		delete(gone, m.Subject)
		var l Lease
		if err := protocol.Unmarshal(m.Data, &l); err != nil {
			b.log.WarnContext(ctx, "lease not understood", "subject", m.Subject, "err", err)
			continue
		}
		if known[m.Subject] = l; !ok || !before.equal(l) {
			f(l, true)
		}
	}
	for key, l := range gone {
		if _, ok := known[key]; ok && steady {
			delete(known, key)
			f(l, false)
		}
	}
	return nil
}

func (l Lease) equal(m Lease) bool {
	return l.Kind == m.Kind && l.ID == m.ID && l.Boot == m.Boot && bytes.Equal(l.Body, m.Body)
}
