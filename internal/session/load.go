package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"rookery/internal/bus"
	"rookery/protocol"
)

// load makes the session ready to serve: a new one gets a workspace and its first
// owner, an existing one is folded and taken over. The reply says why not.
func (s *session) load(ctx context.Context, first order) (protocol.Reply, error) {
	own, _, err := s.h.bus.LastOwn(ctx, s.id)
	if err != nil {
		return failed(protocol.ReplyFailed, err)
	}
	if own == nil {
		return s.create(ctx, first, 0, 0)
	}
	return s.reopen(ctx, first, *own)
}

func failed(code protocol.ReplyCode, err error) (protocol.Reply, error) {
	return protocol.Reply{Code: code, Reason: err.Error()}, err
}

// create makes a session, or goes on where somebody recorded nothing but that it was
// his. The workspace is assigned by who has won the session: several may try.
func (s *session) create(ctx context.Context, first order, read, from uint64) (protocol.Reply, error) {
	if first.verb != protocol.VerbRun {
		return failed(protocol.ReplyNotFound, fmt.Errorf("there is no session %s", s.id))
	}
	if reply, ok := checkRun(first.cmd); !ok {
		return reply, errors.New(reply.Reason)
	}
	o := first.cmd.Session
	if reply, err := s.useModel(o.Model); err != nil {
		return reply, err
	}
	s.state = agentState{Model: s.model.Name, Pool: s.h.pool(o.Pool), Worker: o.Worker, Labels: o.Labels, Tools: o.Tools, Source: o.Source}
	h, err := s.h.fleet.hold(ctx, s.id, s.state, protocol.WorkspaceRef{Path: o.Workspace})
	if err != nil {
		return failed(protocol.ReplyWorkspace, err)
	}
	s.place = h.ref
	if reply, err := s.own(ctx, read, from); err != nil {
		return reply, err
	}
	if err := s.assign(ctx); err != nil {
		return failed(protocol.ReplyFailed, err)
	}
	return s.listen(ctx)
}

// reopen takes an existing session, unless its owner lives and works on it.
func (s *session) reopen(ctx context.Context, first order, own protocol.Own) (protocol.Reply, error) {
	last, err := s.read(ctx, 0)
	if err != nil {
		return failed(protocol.ReplyTrace, err)
	}
	st := s.fold.State()
	fresh := st.Meta == nil && st.Task == nil // its owner is about to begin, or never will
	if (fresh || st.Task != nil) && own.Boot != s.h.cfg.Boot && !s.h.ownerGone(ctx, s.id, own) {
		return protocol.Reply{Code: protocol.ReplyUse, Use: own.Node}, fmt.Errorf("owned by %s", own.Node)
	}
	switch {
	case fresh:
		return s.create(ctx, first, last, own.Epoch)
	case st.Meta == nil:
		return failed(protocol.ReplyTrace, fmt.Errorf("the trace of %s has no session_meta", s.id))
	}
	s.previous = own
	if err := json.Unmarshal(st.Meta.AgentState, &s.state); err != nil {
		s.log.WarnContext(ctx, "agent_state of the trace not understood", "err", err)
	}
	if reply, err := s.useModel(s.state.Model); err != nil {
		return reply, err
	}
	ref, _, ok, err := s.h.bus.Workspace(ctx, s.id)
	if err != nil {
		return failed(protocol.ReplyFailed, err)
	}
	if !ok && first.cmd.Session.Workspace == "" {
		return failed(protocol.ReplyWorkspace, fmt.Errorf("session %s has no workspace, as one that was imported; name one with -C", s.id))
	}
	s.place = ref
	if reply, err := s.own(ctx, last, own.Epoch); err != nil {
		return reply, err
	}
	return s.listen(ctx)
}

// own appends the record of ownership and folds what came in between. Whoever took
// the session meanwhile keeps it: nobody knows whether that one is gone.
func (s *session) own(ctx context.Context, read, from uint64) (protocol.Reply, error) {
	log, err := s.h.bus.TakeLog(ctx, s.id, s.h.cfg.Node, s.h.cfg.Boot, from)
	var raced *bus.RaceError
	switch {
	case errors.As(err, &raced):
		return protocol.Reply{Code: protocol.ReplyUse, Use: raced.Winner.Node}, err
	case err != nil:
		return failed(protocol.ReplyFailed, err)
	}
	if _, err := s.read(ctx, read); err != nil {
		return failed(protocol.ReplyTrace, err)
	}
	s.trace = log
	s.n = log.Last().N
	st := s.fold.State()
	s.placer.Context = st.Context
	s.placer.Compacting = st.Task != nil && st.Task.Compaction != nil
	s.live.request(s.requests.number)
	if err := s.skipForgotten(ctx); err != nil {
		return failed(protocol.ReplyFailed, err)
	}
	return protocol.Reply{}, nil
}

// listen takes commands for the session from here on.
func (s *session) listen(ctx context.Context) (reply protocol.Reply, err error) {
	if e, err := s.h.bus.Session(ctx, s.id); err == nil {
		s.title, s.untitled = e.Title, e.Untitled
		s.changed, _ = time.Parse(time.RFC3339, e.At) // zero when it can't be read
	}
	if s.unown, err = s.h.bus.WatchOwn(s.id, s.hearOwn); err != nil {
		return failed(protocol.ReplyFailed, err)
	}
	s.unwatch = s.h.bus.Watch(s.pokeCalls)
	s.serving, err = s.h.bus.ServeSession(s.id, func(_ protocol.ID, verb protocol.Verb, cmd protocol.Command, respond func(protocol.Reply)) {
		if !s.put(order{verb, cmd, respond}) {
			respond(s.h.elsewhere("the session has just been closed here"))
		}
	})
	if err != nil {
		return failed(protocol.ReplyFailed, err)
	}
	return protocol.Reply{}, nil
}

// hearOwn notices another owner, also where this one has nothing to append.
func (s *session) hearOwn(o protocol.Own) {
	if o.Epoch > s.trace.Epoch() {
		select {
		case s.deposed <- struct{}{}:
		default:
		}
	}
}

// read folds what is stored after a sequence and returns the last one.
func (s *session) read(ctx context.Context, after uint64) (uint64, error) {
	for f, err := range s.h.bus.Trace(ctx, s.id, after) {
		if err != nil {
			return after, fmt.Errorf("read the trace of %s: %w", s.id, err)
		}
		after = f.Seq
		if f.Visible() {
			s.seen = f.Seq
		}
		for _, m := range f.Messages {
			s.fold.Add(f.Context, m)
			s.requests.see(m)
			s.material.see(m)
		}
	}
	return after, nil
}

func (s *session) useModel(name string) (protocol.Reply, error) {
	m, err := s.h.cfg.Models(name)
	if err != nil {
		return failed(protocol.ReplyModel, err)
	}
	s.model = m
	return protocol.Reply{}, nil
}

func (h *Host) pool(name string) string {
	if name == "" {
		return h.cfg.Pool
	}
	return name
}
