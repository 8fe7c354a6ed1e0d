package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Names of streams and buckets, before the prefix.
const (
	streamTrace = "TRACE"
	streamCall  = "CALL"
	streamRes   = "RES"
	streamUsage = "USAGE"

	bucketNodes    = "nodes"
	bucketSessions = "sessions"
	bucketSpaces   = "ws"
	bucketTools    = "tools"
)

const day = 24 * time.Hour

// LeaseTTL is how long a lease lasts without being renewed.
const LeaseTTL = 10 * time.Second

// ErrIncompatible reports a stream that exists with another meaning.
var ErrIncompatible = errors.New("stream exists with an incompatible configuration")

// StoreOptions size what Setup makes.
type StoreOptions struct {
	// MaxStore is the file store that may be used, in bytes; the streams get
	// fractions of it. Default: what the broker allows this account, else 8 GiB.
	MaxStore int64
	// Replicas of each stream. Default 1; 3 in a cluster.
	Replicas int
}

// Setup makes the streams and buckets that are missing. It may be called by many
// at once and at every start. What exists is left as it is, its limits included;
// ErrIncompatible names a stream that can't serve.
func (b *Bus) Setup(ctx context.Context, o StoreOptions) error {
	if o.Replicas == 0 {
		o.Replicas = 1
	}
	made := map[string]bool{}
	if o.MaxStore > 0 {
		return b.setup(ctx, o, made)
	}
	info, err := b.js.AccountInfo(ctx)
	if err != nil {
		return fmt.Errorf("ask the broker for its limits: %w", err)
	}
	if o.MaxStore = info.Limits.MaxStore; o.MaxStore <= 0 {
		o.MaxStore = 8 << 30
	}
	for { // the account may have no limit where the server has one
		err := b.setup(ctx, o, made)
		if r := (*jetstream.APIError)(nil); !errors.As(err, &r) || r.ErrorCode != codeNoSpace || o.MaxStore < 16<<20 {
			return err
		}
		o.MaxStore /= 2
	}
}

// setup makes what is missing and adds its names to made. What is there already,
// made a moment ago with too much room for the others, gives of it.
func (b *Bus) setup(ctx context.Context, o StoreOptions, made map[string]bool) error {
	for _, c := range append(b.streams(o), b.buckets(o)...) {
		ensure := b.ensure
		if made[c.Name] {
			ensure = b.shrink
		}
		first, err := ensure(ctx, c)
		if err != nil {
			return fmt.Errorf("set up %s: %w", c.Name, err)
		}
		made[c.Name] = made[c.Name] || first
	}
	return nil
}

// shrink gives a new stream less room, unless it has been filled since.
func (b *Bus) shrink(ctx context.Context, c jetstream.StreamConfig) (bool, error) {
	s, err := b.js.Stream(ctx, c.Name)
	if err != nil || c.MaxBytes >= s.CachedInfo().Config.MaxBytes || s.CachedInfo().State.Bytes > uint64(c.MaxBytes)/2 { //nolint:gosec // a size
		return false, err
	}
	_, err = b.js.UpdateStream(ctx, c)
	return false, err
}

func (b *Bus) streams(o StoreOptions) []jetstream.StreamConfig {
	trace := jetstream.StreamConfig{
		Name: b.stream(streamTrace), Subjects: []string{b.join("trace", ">")},
		Duplicates: 10 * time.Second, DenyDelete: true, MaxBytes: o.MaxStore / 100 * 60,
		// own and contexts, but not their private side: it has a token more
		RePublish: &jetstream.RePublish{Source: b.join("trace", "*", "*"), Destination: b.join("out", "{{wildcard(1)}}", "m", "{{wildcard(2)}}")},
	}
	call := jetstream.StreamConfig{
		Name: b.stream(streamCall), Subjects: []string{b.join("call", ">")},
		Retention: jetstream.WorkQueuePolicy, MaxAge: 7 * day, MaxConsumers: 4096,
		Duplicates: 2 * time.Minute, MaxBytes: o.MaxStore / 100 * 10,
	}
	res := jetstream.StreamConfig{
		Name: b.stream(streamRes), Subjects: []string{b.join("res", ">")},
		MaxMsgsPerSubject: 1, DiscardNewPerSubject: true, MaxAge: 14 * day,
		Duplicates: 2 * time.Minute, MaxBytes: o.MaxStore / 100 * 15,
		RePublish: &jetstream.RePublish{Source: b.join("res", ">"), Destination: b.join("done", ">")},
	}
	usage := jetstream.StreamConfig{
		Name: b.stream(streamUsage), Subjects: []string{b.join("usage", ">")},
		MaxMsgsPerSubject: 1, DiscardNewPerSubject: true,
		Duplicates: 2 * time.Minute, MaxBytes: o.MaxStore / 100 * 5,
	}
	all := []jetstream.StreamConfig{trace, call, res, usage}
	for i := range all {
		c := &all[i]
		c.Storage, c.Discard, c.Replicas = jetstream.FileStorage, jetstream.DiscardNew, o.Replicas
		c.AllowDirect, c.MaxMsgSize = true, 1<<20
		if c.MaxConsumers == 0 {
			c.MaxConsumers = 1000
		}
	}
	return all
}

// bucketConfig is a stream in the shape that key-value clients expect.
func (b *Bus) bucketConfig(name string, replicas int, size int64) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: b.bucketStream(name), Subjects: []string{b.key(name, ">")},
		MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, AllowRollup: true, DenyDelete: true, AllowDirect: true,
		Storage: jetstream.FileStorage, Replicas: replicas, MaxConsumers: 4096,
		Duplicates: 2 * time.Minute, MaxMsgSize: 1 << 20, MaxBytes: size,
	}
}

// nodes is the bucket of leases, in memory.
func (b *Bus) nodes(replicas int) jetstream.StreamConfig {
	c := b.bucketConfig(bucketNodes, replicas, 16<<20)
	c.Storage, c.MaxAge, c.Duplicates = jetstream.MemoryStorage, LeaseTTL, LeaseTTL
	return c
}

func (b *Bus) buckets(o StoreOptions) []jetstream.StreamConfig {
	return []jetstream.StreamConfig{
		b.nodes(o.Replicas),
		b.bucketConfig(bucketSessions, o.Replicas, o.MaxStore/100*3),
		b.bucketConfig(bucketSpaces, o.Replicas, o.MaxStore/100*2),
		b.bucketConfig(bucketTools, o.Replicas, o.MaxStore/100*2),
	}
}

// ensure makes a stream that is missing. It looks first: the broker refuses a
// second one for its size before it sees that it is there.
func (b *Bus) ensure(ctx context.Context, c jetstream.StreamConfig) (made bool, err error) {
	s, err := b.js.Stream(ctx, c.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if s, err = b.js.CreateStream(ctx, c); errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			s, err = b.js.Stream(ctx, c.Name)
		} else {
			made = err == nil
		}
	}
	if err != nil {
		return false, err
	}
	if what := differs(s.CachedInfo().Config, c); what != "" {
		return made, fmt.Errorf("%w: %s differs", ErrIncompatible, what)
	}
	return made, nil
}

// differs names a setting that changes what the stream promises; limits do not.
func differs(have, want jetstream.StreamConfig) string {
	republish := func(c jetstream.StreamConfig) jetstream.RePublish {
		if c.RePublish == nil {
			return jetstream.RePublish{}
		}
		return *c.RePublish
	}
	for _, d := range []struct {
		what string
		bad  bool
	}{
		{"subjects", !slices.Equal(have.Subjects, want.Subjects)},
		{"retention", have.Retention != want.Retention},
		{"storage", have.Storage != want.Storage},
		{"discard policy", have.Discard != want.Discard || have.DiscardNewPerSubject != want.DiscardNewPerSubject},
		{"messages per subject", max(have.MaxMsgsPerSubject, 0) != want.MaxMsgsPerSubject},
		{"roll-ups", have.AllowRollup != want.AllowRollup},
		{"direct gets", !have.AllowDirect},
		{"republishing", republish(have) != republish(want)},
	} {
		if d.bad {
			return d.what
		}
	}
	return ""
}
