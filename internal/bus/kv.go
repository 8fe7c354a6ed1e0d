package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rookery/protocol"
)

// ErrConflict reports that a value is not what the writer believed.
var ErrConflict = errors.New("changed by somebody else")

// Marks of a deleted or expired key.
const (
	hdrOperation = "KV-Operation"
	hdrReason    = "Nats-Marker-Reason"
)

func removed(m *nats.Msg) bool {
	return m.Header.Get(hdrOperation) != "" || m.Header.Get(hdrReason) != ""
}

// put writes a key; with a revision only over that one, 0 for a new key.
func (b *Bus) put(ctx context.Context, bucket, key string, v any, revision *uint64) (uint64, error) {
	m := message(b.key(bucket, key), protocol.Encode(v), "")
	if revision != nil {
		m.Header.Set(nats.ExpectedLastSubjSeqHdr, strconv.FormatUint(*revision, 10))
	}
	return b.putMessage(ctx, bucket, m)
}

func (b *Bus) putMessage(ctx context.Context, bucket string, m *nats.Msg) (uint64, error) {
	a, err := b.store(ctx, m)
	if r := refused(err); r != nil && (r.Code == codeConflict || r.Code == codeBusy) {
		err = ErrConflict
		if a.repeated { // an earlier attempt may be what it conflicts with
			if have, e := b.last(ctx, b.bucketStream(bucket), m.Subject); e == nil && bytes.Equal(have.Data, m.Data) {
				return number(have, hdrSequence), nil
			}
		}
	}
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", m.Subject, err)
	}
	return a.Seq, nil
}

func (b *Bus) remove(ctx context.Context, bucket, key string) error {
	m := message(b.key(bucket, key), nil, "")
	m.Header.Set(hdrOperation, "DEL")
	_, err := b.putMessage(ctx, bucket, m)
	return err
}

// value reads a key; the revision is that of a deletion where ok is false.
func value[T any](ctx context.Context, b *Bus, bucket, key string) (v T, revision uint64, ok bool, err error) {
	m, err := b.last(ctx, b.bucketStream(bucket), b.key(bucket, key))
	if errors.Is(err, errNotStored) {
		return v, 0, false, nil
	} else if err != nil {
		return v, 0, false, err
	}
	revision = number(m, hdrSequence)
	if removed(m) {
		return v, revision, false, nil
	}
	if err := protocol.Unmarshal(m.Data, &v); err != nil {
		return v, revision, false, fmt.Errorf("read %s: %w", m.Subject, err)
	}
	return v, revision, true, nil
}

// values reads a bucket, each key once.
func values[T any](ctx context.Context, b *Bus, bucket string) ([]T, error) {
	var all []T
	place := map[string]int{}
	for it, err := range readRows[T](ctx, b, b.bucketStream(bucket), b.key(bucket, ">"), 0) {
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", b.bucket(bucket), err)
		}
		if i, ok := place[it.key]; ok {
			all[i] = it.row
			continue
		}
		place[it.key] = len(all)
		all = append(all, it.row)
	}
	return all, nil
}

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
// waits for its expiry. It goes on when the broker is away.
func (b *Bus) KeepLease(ctx context.Context, l Lease) error {
	if err := checkIDs(l.ID, protocol.ID(l.Kind)); err != nil {
		return err
	}
	for {
		if _, err := b.put(ctx, bucketNodes, l.key(), l, nil); err != nil && ctx.Err() == nil {
			b.log.WarnContext(ctx, "lease not renewed", "lease", l.key(), "err", err)
		}
		if pause(ctx, leaseEvery) != nil {
			break
		}
	}
	if !b.Connected() {
		return nil // it expires
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout)
	defer cancel()
	return b.remove(ctx, bucketNodes, l.key())
}

// Leases reads who lives.
func (b *Bus) Leases(ctx context.Context) ([]Lease, error) {
	return values[Lease](ctx, b, bucketNodes)
}

// WatchLeases calls f with each lease there is, then with each renewal (alive)
// and each end, until ctx ends. It blocks. An end comes at most half a second
// late; after a broker restart the bucket is empty, which is no end of anybody.
func (b *Bus) WatchLeases(ctx context.Context, f func(l Lease, alive bool)) error {
	kv, err := b.js.KeyValue(ctx, b.bucket(bucketNodes))
	if err != nil {
		return fmt.Errorf("watch leases: %w", err)
	}
	w, err := kv.WatchAll(ctx)
	if err != nil {
		return fmt.Errorf("watch leases: %w", err)
	}
	defer func() { _ = w.Stop() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-w.Updates():
			if !ok {
				return nil
			}
			if e != nil {
				b.tellLease(e, f)
			}
		}
	}
}

func (b *Bus) tellLease(e jetstream.KeyValueEntry, f func(Lease, bool)) {
	var l Lease
	if e.Operation() == jetstream.KeyValuePut {
		if err := protocol.Unmarshal(e.Value(), &l); err != nil {
			b.log.Warn("lease not understood", "key", e.Key(), "err", err)
			return
		}
		f(l, true)
		return
	}
	kind, id, _ := strings.Cut(e.Key(), ".")
	f(Lease{Kind: LeaseKind(kind), ID: protocol.ID(id)}, false)
}

// PutSession writes a session's line of the directory.
func (b *Bus) PutSession(ctx context.Context, e protocol.Entry) error {
	if err := checkIDs(e.Session); err != nil {
		return err
	}
	_, err := b.put(ctx, bucketSessions, string(e.Session), e, nil)
	return err
}

// Session reads a session's line; ErrNoSession when it has none.
func (b *Bus) Session(ctx context.Context, sid protocol.ID) (protocol.Entry, error) {
	if err := checkIDs(sid); err != nil {
		return protocol.Entry{}, err
	}
	e, _, ok, err := value[protocol.Entry](ctx, b, bucketSessions, string(sid))
	if err == nil && !ok {
		err = fmt.Errorf("%w: %s", ErrNoSession, sid)
	}
	return e, err
}

// Sessions yields the directory, the line that changed last at the end. A line
// that changes meanwhile may come twice, the newer one later.
func (b *Bus) Sessions(ctx context.Context) iter.Seq2[protocol.Entry, error] {
	return list(ctx, b, b.orch("ls"), b.entries)
}

func (b *Bus) entries(ctx context.Context, after uint64) iter.Seq2[item[protocol.Entry], error] {
	return readRows[protocol.Entry](ctx, b, b.bucketStream(bucketSessions), b.key(bucketSessions, ">"), after)
}

// DeleteSession removes a session's line.
func (b *Bus) DeleteSession(ctx context.Context, sid protocol.ID) error {
	if err := checkIDs(sid); err != nil {
		return err
	}
	return b.remove(ctx, bucketSessions, string(sid))
}

// Workspace reads where a session's tools work; ok is false when that is not
// decided. The revision is for PutWorkspace.
func (b *Bus) Workspace(ctx context.Context, sid protocol.ID) (w protocol.WorkspaceRef, revision uint64, ok bool, err error) {
	if err := checkIDs(sid); err != nil {
		return w, 0, false, err
	}
	return value[protocol.WorkspaceRef](ctx, b, bucketSpaces, string(sid))
}

// PutWorkspace assigns a workspace if the assignment is still the one read with
// that revision (0: none yet); ErrConflict otherwise.
func (b *Bus) PutWorkspace(ctx context.Context, sid protocol.ID, w protocol.WorkspaceRef, revision uint64) (uint64, error) {
	if err := checkIDs(sid); err != nil {
		return 0, err
	}
	return b.put(ctx, bucketSpaces, string(sid), w, &revision)
}

// PutWorker writes what a worker offers into the catalogue. It counts while the
// worker's lease lives.
func (b *Bus) PutWorker(ctx context.Context, w protocol.WorkerInfo) error {
	if err := checkIDs(w.Worker); err != nil {
		return err
	}
	_, err := b.put(ctx, bucketTools, string(w.Worker), w, nil)
	return err
}

// Worker reads what one worker offers; ErrGone when it never signed on.
func (b *Bus) Worker(ctx context.Context, wid protocol.ID) (protocol.WorkerInfo, error) {
	if err := checkIDs(wid); err != nil {
		return protocol.WorkerInfo{}, err
	}
	w, _, ok, err := value[protocol.WorkerInfo](ctx, b, bucketTools, string(wid))
	if err == nil && !ok {
		err = fmt.Errorf("worker %s: %w", wid, ErrGone)
	}
	return w, err
}

// Workers reads the catalogue, workers without a lease included.
func (b *Bus) Workers(ctx context.Context) ([]protocol.WorkerInfo, error) {
	return values[protocol.WorkerInfo](ctx, b, bucketTools)
}

// DeleteWorker removes a worker from the catalogue.
func (b *Bus) DeleteWorker(ctx context.Context, wid protocol.ID) error {
	if err := checkIDs(wid); err != nil {
		return err
	}
	return b.remove(ctx, bucketTools, string(wid))
}
