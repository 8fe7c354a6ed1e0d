package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rookery/protocol"
)

// The owner's side of tool calls.

// EnsureConsumer makes the queue of a worker or pool. Orchestrators do that when a
// worker signs on; workers never do.
func (b *Bus) EnsureConsumer(ctx context.Context, d Destination) error {
	if err := checkIDs(d.ID); err != nil {
		return err
	}
	c := jetstream.ConsumerConfig{
		Durable: d.durable(), FilterSubject: b.callFilter(d),
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: 10 * time.Second, MaxDeliver: -1,
		MaxAckPending: 10_000, MaxWaiting: 4096,
	}
	if !d.Pool {
		c.InactiveThreshold = 10 * time.Minute // the queue goes, its calls stay
	}
	if _, err := b.js.CreateConsumer(ctx, b.stream(streamCall), c); err != nil {
		return fmt.Errorf("make the queue of %s: %w", d, err)
	}
	return nil
}

// Dispatch queues a call for a worker or pool; a repetition is harmless. It
// repeats until the call is stored or ctx ends.
func (b *Bus) Dispatch(ctx context.Context, d Destination, c protocol.Call) error {
	if err := errors.Join(checkIDs(d.ID, c.Session), checkDispatch(c.Dispatch)); err != nil {
		return err
	}
	body := protocol.Encode(c)
	if len(body) > protocol.MaxBody {
		return fmt.Errorf("dispatch %s/%s: %w: %d bytes", c.Session, c.Dispatch, ErrTooLarge, len(body))
	}
	id := string(c.Session) + "/" + c.Dispatch
	if _, err := b.store(ctx, message(b.call(d, c.Session, c.Dispatch), body, id)); err != nil {
		return fmt.Errorf("dispatch %s to %s: %w", id, d, err)
	}
	return nil
}

// Revoke claims a dispatch for the owner, so that no worker can take it any more.
// When somebody was first it returns that claim and no error. c.Boot must be the
// owner's.
func (b *Bus) Revoke(ctx context.Context, d Destination, sid protocol.ID, dispatch string, c protocol.Claim) (existing *protocol.Claim, err error) {
	c.Revoked = true
	won, err := b.claimOnce(ctx, d, sid, dispatch, c)
	if err != nil || won {
		return nil, err
	}
	existing, err = b.Claim(ctx, d, sid, dispatch)
	if err == nil && existing == nil {
		err = fmt.Errorf("claim of %s/%s is taken but can't be read", sid, dispatch)
	}
	if err == nil && existing.Revoked && existing.Boot == c.Boot {
		return nil, nil //nolint:nilnil // ours from before: revoked, by us
	}
	return existing, err
}

// claimOnce writes a claim; won reports that the stored one is this or an earlier
// copy of it.
func (b *Bus) claimOnce(ctx context.Context, d Destination, sid protocol.ID, dispatch string, c protocol.Claim) (won bool, err error) {
	a, mine, err := b.writeClaim(ctx, d, sid, dispatch, c)
	if err != nil || mine || !a.repeated {
		return mine, err
	}
	have, err := b.Claim(ctx, d, sid, dispatch)
	return have != nil && have.Boot == c.Boot && have.Revoked == c.Revoked, err
}

func (b *Bus) writeClaim(ctx context.Context, d Destination, sid protocol.ID, dispatch string, c protocol.Claim) (a ack, mine bool, err error) {
	if err := errors.Join(checkIDs(d.ID, sid, protocol.ID(c.Boot)), checkDispatch(dispatch)); err != nil {
		return ack{}, false, err
	}
	id := fmt.Sprintf("%s/%s/c/%s", sid, dispatch, c.Boot)
	a, mine, err = b.first(ctx, message(b.names.claim(d, sid, dispatch), protocol.Encode(c), id))
	if err != nil {
		err = fmt.Errorf("claim %s/%s: %w", sid, dispatch, err)
	}
	return a, mine, err
}

// Claim reads who has a dispatch; nil when nobody.
func (b *Bus) Claim(ctx context.Context, d Destination, sid protocol.ID, dispatch string) (*protocol.Claim, error) {
	if err := errors.Join(checkIDs(d.ID, sid), checkDispatch(dispatch)); err != nil {
		return nil, err
	}
	return stored[protocol.Claim](ctx, b, b.names.claim(d, sid, dispatch))
}

// LastClaim reads which dispatch of a session was claimed last, by whom ever, and the
// claim's place in its stream, which only grows; "" when none was.
func (b *Bus) LastClaim(ctx context.Context, sid protocol.ID) (dispatch string, seq uint64, err error) {
	if err := checkIDs(sid); err != nil {
		return "", 0, err
	}
	m, err := b.last(ctx, b.stream(streamRes), b.join("res", "*", "*", string(sid), "*", tokenClaim))
	if errors.Is(err, errNotStored) {
		return "", 0, nil
	} else if err != nil {
		return "", 0, fmt.Errorf("last claim of %s: %w", sid, err)
	}
	t, ok := b.split(m.Subject, "res", 5)
	if !ok {
		return "", 0, fmt.Errorf("last claim of %s: %.80q is no subject of a claim", sid, m.Subject)
	}
	return t[3], number(m, hdrSequence), nil
}

// Result reads the result that a worker stored for a dispatch; nil when there is
// none. It counts only with worker and boot of the claim.
func (b *Bus) Result(ctx context.Context, wid, sid protocol.ID, dispatch string) (*protocol.Result, error) {
	if err := errors.Join(checkIDs(wid, sid), checkDispatch(dispatch)); err != nil {
		return nil, err
	}
	return stored[protocol.Result](ctx, b, b.names.result(wid, sid, dispatch))
}

// stored reads a message of RES.
func stored[T any](ctx context.Context, b *Bus, subject string) (*T, error) {
	m, err := b.last(ctx, b.stream(streamRes), subject)
	if errors.Is(err, errNotStored) {
		return nil, nil //nolint:nilnil // said in the callers' contract
	} else if err != nil {
		return nil, fmt.Errorf("read %s: %w", subject, err)
	}
	v := new(T)
	if err := protocol.Unmarshal(m.Data, v); err != nil {
		return nil, fmt.Errorf("read %s: %w", subject, err)
	}
	return v, nil
}

// A CallEvent is news of a dispatch: exactly one of Claim, Result and Delta.
type CallEvent struct {
	Dispatch string
	// Dest is where it went; unknown (zero) for a Delta.
	Dest Destination
	// Worker sent a Result or Delta; a Claim names its own.
	Worker protocol.ID
	Claim  *protocol.Claim
	Result *protocol.Result
	Delta  *protocol.ToolDelta
}

// WatchCalls calls f with the news of a session's calls, one at a time, until
// stop. News can be lost while the connection is down: read Claim and Result again
// when it is back. f must not block.
func (b *Bus) WatchCalls(sid protocol.ID, f func(CallEvent)) (stop func(), err error) {
	if err := checkIDs(sid); err != nil {
		return nil, err
	}
	var mu sync.Mutex // two subscriptions, one f
	tell := func(parse func(*nats.Msg) (CallEvent, error)) func(*nats.Msg) {
		return func(m *nats.Msg) {
			e, err := parse(m)
			if err != nil {
				b.log.Warn("news of a call not understood", "subject", m.Subject, "err", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			f(e)
		}
	}
	stopDone, err := b.subscribe(b.life, b.done(sid), "", tell(b.parseDone))
	if err != nil {
		return nil, err
	}
	stopTool, err := b.subscribe(b.life, b.tool("*", sid, "*"), "", tell(b.parseDelta))
	if err != nil {
		stopDone()
		return nil, err
	}
	return func() { stopDone(); stopTool() }, nil
}

// WatchOwn calls f with each record of ownership of a session as it is stored, until
// stop. f must not block.
func (b *Bus) WatchOwn(sid protocol.ID, f func(protocol.Own)) (stop func(), err error) {
	if err := checkIDs(sid); err != nil {
		return nil, err
	}
	return b.subscribe(b.life, b.outOwn(sid), "", func(m *nats.Msg) {
		var own protocol.Own
		if err := protocol.Unmarshal(m.Data, &own); err != nil {
			b.log.Warn("record of ownership not understood", "subject", m.Subject, "err", err)
			return
		}
		f(own)
	})
}

// parseDone reads rk.done.{w.<wid>|p.<pool>}.<sid>.<cid>.{c|d}.
func (b *Bus) parseDone(m *nats.Msg) (CallEvent, error) {
	t, ok := b.split(m.Subject, "done", 5)
	if !ok {
		return CallEvent{}, fmt.Errorf("%.80q is no subject of a result", m.Subject)
	}
	d, err := ParseDestination(t[0] + "." + t[1])
	if err != nil {
		return CallEvent{}, err
	}
	e := CallEvent{Dispatch: t[3], Dest: d}
	switch {
	case t[4] == tokenClaim:
		e.Claim = &protocol.Claim{}
		err = protocol.Unmarshal(m.Data, e.Claim)
		e.Worker = e.Claim.Worker
	case t[4] == tokenResult && !d.Pool:
		e.Result, e.Worker = &protocol.Result{}, d.ID
		err = protocol.Unmarshal(m.Data, e.Result)
	default:
		err = fmt.Errorf("%.80q is neither claim nor result", m.Subject)
	}
	return e, errors.Join(err, checkDispatch(e.Dispatch))
}

// parseDelta reads rk.tool.<wid>.<sid>.<cid>.
func (b *Bus) parseDelta(m *nats.Msg) (CallEvent, error) {
	t, ok := b.split(m.Subject, "tool", 3)
	if !ok {
		return CallEvent{}, fmt.Errorf("%.80q is no subject of a delta", m.Subject)
	}
	e := CallEvent{Dispatch: t[2], Worker: protocol.ID(t[0]), Delta: &protocol.ToolDelta{}}
	return e, errors.Join(checkIDs(e.Worker), checkDispatch(e.Dispatch), protocol.Unmarshal(m.Data, e.Delta))
}

// Control asks a worker. ErrGone: nobody listens under its id.
func (b *Bus) Control(ctx context.Context, wid protocol.ID, verb string, c protocol.Control) (protocol.ControlReply, error) {
	if err := checkIDs(wid, protocol.ID(verb)); err != nil {
		return protocol.ControlReply{}, err
	}
	r, err := askAgain[protocol.ControlReply](ctx, b, b.control(wid, verb), c)
	if err != nil {
		return r, fmt.Errorf("%s worker %s: %w", verb, wid, err)
	}
	return r, nil
}

// WatchHeartbeats calls f with each worker's state, one at a time, until stop.
func (b *Bus) WatchHeartbeats(f func(protocol.Heartbeat)) (stop func(), err error) {
	return b.subscribe(b.life, b.heartbeat("*"), "", func(m *nats.Msg) {
		var h protocol.Heartbeat
		if err := protocol.Unmarshal(m.Data, &h); err != nil || !strings.HasSuffix(m.Subject, "."+string(h.Worker)) {
			b.log.Warn("heartbeat not understood", "subject", m.Subject, "err", err)
			return
		}
		f(h)
	})
}

// Purge removes a session's trace, calls and results. The ledger stays. Whoever
// still owns the session is fenced.
func (b *Bus) Purge(ctx context.Context, sid protocol.ID) error {
	if err := checkIDs(sid); err != nil {
		return err
	}
	for _, p := range []struct{ stream, filter string }{
		{streamTrace, b.traceAll(sid)},
		{streamCall, b.join("call", "*", "*", string(sid), ">")},
		{streamRes, b.join("res", "*", "*", string(sid), ">")},
	} {
		s, err := b.js.Stream(ctx, b.stream(p.stream))
		if err == nil {
			err = s.Purge(ctx, jetstream.WithPurgeSubject(p.filter))
		}
		if err != nil {
			return fmt.Errorf("remove %s from %s: %w", sid, p.stream, err)
		}
	}
	if err := b.remove(ctx, bucketSpaces, string(sid), nil); err != nil {
		return err
	}
	return b.DeleteSession(ctx, sid)
}
