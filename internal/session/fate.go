package session

import (
	"context"
	"errors"
	"time"

	"rookery/internal/bus"
	"rookery/internal/engine"
	"rookery/protocol"
)

const (
	askWorker   = 2 * time.Second // how long a worker may take to answer
	deadlineAdd = 5 * time.Second // what a call may take beyond its tool's timeout
	lastCancel  = 3 * time.Second // between the last cancel and giving a worker up
)

// pokeCalls has every open call look for its result: what was said while the link
// was down is lost.
func (s *session) pokeCalls(l bus.Link) {
	if !l.Up {
		return
	}
	s.callsMu.Lock()
	defer s.callsMu.Unlock()
	for _, d := range s.calls {
		select {
		case d.poke <- struct{}{}:
		default:
		}
	}
}

// gone reports that the claimant will never give a result: it came back as another
// process whose journal does not know the call, it does not know the call though it
// lives, or it stayed unreachable for too long. Being slow is not being gone.
func (d *dispatch) gone(ctx context.Context) bool {
	s := d.s
	if s.h.fleet.beating(d.claim.Worker, d.claim.Boot, string(s.id)+"/"+d.id) {
		d.unreachable, d.missing = time.Time{}, 0
		return false
	}
	actx, cancel := context.WithTimeout(ctx, askWorker)
	defer cancel()
	r, err := s.h.bus.Control(actx, d.claim.Worker, "status", protocol.Control{Session: s.id, Dispatch: []string{d.id}})
	switch {
	case ctx.Err() != nil || !s.h.bus.Connected():
		return false
	case err != nil:
		return d.beyondReach(ctx)
	}
	d.unreachable = time.Time{}
	if r.Calls[d.id] != "unknown" {
		d.missing = 0
		return false
	}
	// Another process without the call never had its result; the same one may
	// have stored it a moment ago.
	d.missing++
	return r.Boot != d.claim.Boot || d.missing >= 3
}

// beyondReach notes that the claimant can't be reached, and reports when that has
// lasted for longer than the call could have, and the grace.
func (d *dispatch) beyondReach(ctx context.Context) bool {
	now := time.Now()
	if d.unreachable.IsZero() {
		d.unreachable = now
		_ = d.s.say(ctx, protocol.CallFate{ToolCallID: d.call.ToolCallID, Fate: "unreachable", Worker: string(d.claim.Worker)})
		d.waitFor(ctx, "worker "+string(d.claim.Worker)+", which can't be reached")
	}
	deadline := d.unreachable
	if ms := d.timeout(); ms > 0 {
		deadline = d.claim.At.Add(ms + deadlineAdd)
	}
	if now.Before(deadline.Add(d.s.h.cfg.UnreachableGrace)) {
		return false
	}
	cctx, cancel := context.WithTimeout(ctx, lastCancel)
	defer cancel()
	_, err := d.s.h.bus.Control(cctx, d.claim.Worker, "cancel", protocol.Control{Session: d.s.id, Dispatch: []string{d.id}})
	if err == nil {
		d.unreachable = time.Time{} // it is back
		return false
	}
	<-cctx.Done()
	return ctx.Err() == nil
}

func (d *dispatch) timeout() time.Duration {
	return time.Duration(max(0, d.tool.TimeoutMS)) * time.Millisecond
}

// bury ends a call whose claimant is gone. One that may simply be made again is;
// of another one nobody knows whether it ran, and the model is told so.
func (d *dispatch) bury(ctx context.Context, emit func(string)) engine.Output {
	if r := d.resync(ctx); r != nil {
		return d.output(r)
	}
	s := d.s
	policy := s.h.cfg.Policy(s.state.Pool, d.call.Name)
	fate := protocol.CallFate{ToolCallID: d.call.ToolCallID, Fate: "unknown", Worker: string(d.claim.Worker)}
	again := policy.Permission == protocol.ReadOnly || policy.Idempotent
	if again {
		fate.Fate = "retried"
	}
	if err := s.keep(ctx, fate); err != nil {
		return d.unsent(ctx, err)
	}
	s.log.WarnContext(ctx, "worker of a call is gone", "call", d.id, "tool", d.call.Name, "worker", d.claim.Worker, "fate", fate.Fate)
	if again {
		return executor{session: s}.attempt(ctx, d.call, d.tool, d.attempt+1, emit)
	}
	return engine.Output{Text: onOwnLine(d.streamed.String(), protocol.NoteUnknown), Stop: protocol.Failed}
}

func onOwnLine(head, note string) string {
	if head == "" || head[len(head)-1] == '\n' {
		return head + note
	}
	return head + "\n" + note
}

// interruptedBy reports an abort of the task.
func interruptedBy(ctx context.Context) bool {
	return errors.Is(context.Cause(ctx), engine.ErrInterrupted)
}
