package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"

	"github.com/nats-io/nats.go"

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

// remove deletes a key; with a revision only that one.
func (b *Bus) remove(ctx context.Context, bucket, key string, revision *uint64) error {
	m := message(b.key(bucket, key), nil, "")
	m.Header.Set(hdrOperation, "DEL")
	if revision != nil {
		m.Header.Set(nats.ExpectedLastSubjSeqHdr, strconv.FormatUint(*revision, 10))
	}
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
	return b.remove(ctx, bucketSessions, string(sid), nil)
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
	return b.remove(ctx, bucketTools, string(wid), nil)
}
