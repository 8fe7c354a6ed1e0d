package session

import (
	"context"
	"errors"
	"time"

	"rookery/internal/bus"
	"rookery/internal/engine"
	"rookery/internal/resume"
	"rookery/protocol"
)

// takeOver goes on with a task whose owner is gone (the takeover table). An abort
// needs no worker: it may be what ends a task whose worker is gone, too.
func (s *session) takeOver(ctx context.Context, first order) error {
	st := s.fold.State()
	failing := s.h.failing(s.id, s.previous)
	if st.Task == nil {
		return nil
	}
	abort := first.verb == protocol.VerbAbort || st.Task.AbortRequested != nil || failing != ""
	if err := s.prepare(ctx, first.cmd.Session); err != nil && !abort {
		return err
	}
	s.record(protocol.New(protocol.Takeover{
		From: string(s.previous.Node), To: string(s.h.cfg.Node), Epoch: s.trace.Epoch(),
	}))
	if first.verb == protocol.VerbAbort && st.Task.AbortRequested == nil {
		s.record(protocol.New(protocol.AbortRequested{By: orWord(first.cmd.By, "user")}))
	}
	s.task = st.Task.TaskID
	s.abortStored = st.Task.AbortRequested != nil // the record of first answers first
	in := engine.Input{TaskID: st.Task.TaskID, Options: st.Task.Options}
	s.log.InfoContext(ctx, "task taken over", "task", in.TaskID, "from", s.previous.Node)
	from := resume.Of(s.fold)
	from.Task.Failing = failing
	if err := s.start(ctx, st.Task.Of, from, in); err != nil {
		return err
	}
	if s.lost != "" && s.engine.Steer(protocol.Token(8), protocol.NoteReplaced(s.lost)) {
		s.lost = ""
	}
	s.enter()
	return nil
}

// resume learns the fate of a dispatch that another process made: its result, its
// claimant, or that nobody can take it any more and a new attempt may be made.
func (x executor) resume(ctx context.Context, c engine.Call, tool protocol.Tool, emit func(string)) engine.Output {
	s := x.session
	dest, err := bus.ParseDestination(c.Prior.Destination)
	if err != nil {
		return engine.Output{Text: protocol.NoteError(err.Error()), Stop: protocol.Failed}
	}
	d := s.newDispatch(c, tool, c.Prior.Attempt, dest)
	defer d.forget()
	d.gap = true // what was streamed before is not known
	if interruptedBy(ctx) {
		return d.interrupted(emit)
	}
	if r := d.resync(ctx); r != nil {
		return d.output(r)
	}
	if d.claim != nil && d.gone(ctx) {
		return d.bury(ctx, emit)
	}
	if d.claim != nil {
		return d.await(ctx, emit)
	}
	if err := s.keep(ctx, protocol.CallFate{ToolCallID: c.ToolCallID, Fate: "retried"}); err != nil {
		return d.unsent(ctx, err)
	}
	if !d.revoke(ctx, "takeover") {
		return d.await(ctx, emit) // a worker was faster, or it is not known yet
	}
	return x.attempt(ctx, c, tool, c.Prior.Attempt+1, emit)
}

// ownerGone reports that a recorded owner does not run any more: it let go of the
// session, its node lives again as another process, its lease is gone, or nobody is
// at its address, twice. After a broker restart the last two prove nothing for the
// life of a lease, so ownerGone waits that long for an answer unless it knew the node
// before. An owner that is merely slow keeps its lease.
func (h *Host) ownerGone(ctx context.Context, sid protocol.ID, own protocol.Own) bool {
	ctx, cancel := context.WithTimeout(ctx, bus.LeaseTTL+5*time.Second)
	defer cancel()
	for missed := 0; ; {
		if h.released(ctx, sid, own) {
			return true
		}
		switch h.lease(ctx, own) {
		case leaseOfAnother:
			return true
		case leaseGone:
			if h.settled(ctx) {
				return true
			}
		case leaseHeld, leaseUnknown:
		}
		pctx, stop := context.WithTimeout(ctx, 2*time.Second)
		err := h.bus.Ping(pctx, own.Node)
		stop()
		switch {
		case err == nil:
			return false
		case errors.Is(err, bus.ErrGone):
			missed++
		}
		if missed >= 2 && (h.knew(own.Node) || h.settled(ctx)) {
			return true
		}
		if !sleep(ctx, 100*time.Millisecond) {
			return false
		}
	}
}

// settled reports that the broker has been there for the life of a lease, or this
// process connected to it: whoever has not come back by now is gone.
func (h *Host) settled(ctx context.Context) bool {
	link := h.bus.Link()
	if link.Up && time.Since(link.Since) >= bus.LeaseTTL {
		return true
	}
	kept, err := h.bus.LeasesKept(ctx)
	return err == nil && kept >= bus.LeaseTTL
}

// released reports that the owner said that it let go.
func (h *Host) released(ctx context.Context, sid protocol.ID, own protocol.Own) bool {
	e, err := h.bus.Session(ctx, sid)
	return err == nil && e.Epoch == own.Epoch && e.Node == ""
}

// What the leases say of an owner.
type leaseState int

const (
	leaseUnknown leaseState = iota
	leaseHeld
	leaseOfAnother // the node lives, as another process than the owner
	leaseGone
)

func (h *Host) lease(ctx context.Context, own protocol.Own) leaseState {
	leases, err := h.bus.Leases(ctx)
	if err != nil {
		return leaseUnknown
	}
	for _, l := range leases {
		switch {
		case l.Kind != bus.LeaseOrchestrator || l.ID != own.Node:
		case l.Boot == own.Boot:
			return leaseHeld
		default:
			return leaseOfAnother
		}
	}
	return leaseGone
}
