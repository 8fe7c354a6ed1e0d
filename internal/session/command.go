package session

import (
	"context"
	"fmt"
	"strings"
	"time"

	"rookery/internal/trace"
	"rookery/protocol"
)

// command answers one command, now or when its record is stored.
func (s *session) command(ctx context.Context, o order) {
	if reply, known := s.answers[o.cmd.ID]; known && o.cmd.ID != "" {
		o.respond(reply)
		return
	}
	if s.ending && o.verb != protocol.VerbStatus && o.verb != protocol.VerbSnap {
		s.deferred = append(s.deferred, o) // its task_end is in flight
		return
	}
	switch o.verb {
	case protocol.VerbRun:
		s.runTask(ctx, o)
	case protocol.VerbCompact:
		s.compact(ctx, o)
	case protocol.VerbSteer:
		s.steer(o)
	case protocol.VerbAbort:
		s.abort(o)
	case protocol.VerbApprove:
		s.approve(o)
	case protocol.VerbTitle:
		s.rename(o)
	case protocol.VerbStatus, protocol.VerbTakeover:
		o.respond(protocol.Reply{Code: protocol.ReplyAccepted, Seq: s.seen, Status: s.status()})
	case protocol.VerbSnap:
		snap := s.live.page(s.trace.Epoch(), s.n, o.cmd.Page)
		o.respond(protocol.Reply{Code: protocol.ReplyAccepted, Seq: s.seen, Snap: &snap})
	default:
		o.respond(refuse(protocol.ReplyBadRequest, "unknown command %q", o.verb))
	}
}

func refuse(code protocol.ReplyCode, format string, args ...any) protocol.Reply {
	return protocol.Reply{Code: code, Reason: fmt.Sprintf(format, args...)}
}

// when answers an order once the record with that key is stored.
func (s *session) when(key string, o order, reply protocol.Reply) {
	s.waits[key] = append(s.waits[key], waiter{respond: func(r protocol.Reply) {
		if r.Code.Accepted() && o.cmd.ID != "" {
			s.answers[o.cmd.ID] = r
		}
		o.respond(r)
	}, reply: reply})
}

func (s *session) fire(key string) {
	ws := s.waits[key]
	delete(s.waits, key)
	for _, w := range ws {
		w.reply.Seq = s.seen
		w.respond(w.reply)
	}
}

// repeated answers a command whose task has begun as it answers, or will answer, the
// first one of that id.
func (s *session) repeated(o order) bool {
	if _, waits := s.waits["task:"+o.cmd.ID]; waits {
		s.when("task:"+o.cmd.ID, o, protocol.Reply{Code: protocol.ReplyAccepted})
		return true
	}
	if !s.fold.Known(o.cmd.ID) {
		return false
	}
	o.respond(protocol.Reply{Code: protocol.ReplyAccepted, Seq: s.seen})
	return true
}

// busy refuses what needs an idle session (L133).
func (s *session) busy(o order) bool {
	switch s.stateNow() {
	case protocol.StateRunning:
		o.respond(refuse(protocol.ReplyTaskInProgress, "session %s is working on a task: steer it, abort it, or wait", s.id))
		return true
	case protocol.StateCompacting:
		o.respond(refuse(protocol.ReplyCompacting, "session %s is being compacted: try again in a moment", s.id))
		return true
	default:
		return false
	}
}

// checkRun says what is wrong with a prompt.
func checkRun(cmd protocol.Command) (protocol.Reply, bool) {
	if _, err := protocol.ParseID(cmd.ID); err != nil {
		return refuse(protocol.ReplyBadRequest, "command id: %v", err), false
	}
	some := false
	for _, p := range cmd.Prompt {
		switch p := p.(type) {
		case protocol.Text:
			some = some || strings.TrimSpace(p.Text) != ""
			if p.Role != protocol.User {
				return refuse(protocol.ReplyBadRequest, "a prompt is user text"), false
			}
		case protocol.ImageURL:
			some = true
		default:
			return refuse(protocol.ReplyBadRequest, "a prompt holds text and images, not %s", p.Kind()), false
		}
	}
	if !some {
		return refuse(protocol.ReplyBadRequest, "the prompt is empty"), false
	}
	switch cmd.Options.Approve {
	case "", "allow-all", "deny-all", "read-only", "ask", "none":
	default:
		return refuse(protocol.ReplyBadRequest, "approve is allow-all, deny-all, read-only or ask, not %q", cmd.Options.Approve), false
	}
	switch cmd.Options.Thinking {
	case "", "none", "low", "medium", "high", "xhigh":
	default:
		return refuse(protocol.ReplyBadRequest, "thinking is none, low, medium, high or xhigh, not %q", cmd.Options.Thinking), false
	}
	return protocol.Reply{}, true
}

func (s *session) runTask(ctx context.Context, o order) {
	if s.repeated(o) || s.busy(o) {
		return
	}
	if reply, ok := checkRun(o.cmd); !ok {
		o.respond(reply)
		return
	}
	if err := s.prepare(ctx, o.cmd.Session); err != nil {
		o.respond(protocol.Reply{Code: protocol.ReplyWorkspace, Reason: err.Error()})
		return
	}
	if err := s.begin(ctx, "run", o.cmd); err != nil {
		o.respond(protocol.Reply{Code: protocol.ReplyFailed, Reason: err.Error()})
		return
	}
	s.when("task:"+o.cmd.ID, o, protocol.Reply{Code: protocol.ReplyAccepted})
}

func (s *session) compact(ctx context.Context, o order) {
	if s.repeated(o) || s.busy(o) {
		return
	}
	if why := s.h.compactability(s.fold); why != "ok" {
		o.respond(refuse(protocol.ReplyNothing, "%s", why))
		return
	}
	if err := s.prepare(ctx, protocol.SessionOptions{}); err != nil {
		o.respond(protocol.Reply{Code: protocol.ReplyWorkspace, Reason: err.Error()})
		return
	}
	if err := s.begin(ctx, "compact", o.cmd); err != nil {
		o.respond(protocol.Reply{Code: protocol.ReplyFailed, Reason: err.Error()})
		return
	}
	s.when("task:"+o.cmd.ID, o, protocol.Reply{Code: protocol.ReplyAccepted})
}

// compactability says whether there is something to compact, or why not (L128).
func (h *Host) compactability(f *trace.Fold) string {
	if h.cfg.Settings.NoCompaction {
		return "unsupported"
	}
	return f.Compactability()
}

// steer queues a text for the running task (L084, L096).
func (s *session) steer(o order) {
	text := strings.TrimSpace(protocol.Clean(o.cmd.Text))
	switch {
	case s.fold.Known(o.cmd.ID):
		o.respond(protocol.Reply{Code: protocol.ReplyAccepted, Seq: s.seen})
	case text == "":
		o.respond(refuse(protocol.ReplyBadRequest, "the text is empty"))
	case s.engine == nil || !s.engine.Steer(o.cmd.ID, text):
		o.respond(refuse(protocol.ReplyNotRunning, "session %s runs no task", s.id))
	default:
		s.when("steer:"+o.cmd.ID, o, protocol.Reply{Code: protocol.ReplyAccepted})
	}
}

// abort interrupts what runs (L135).
func (s *session) abort(o order) {
	t := s.fold.State().Task
	asked := t != nil && t.AbortRequested != nil
	switch {
	case asked && s.abortStored:
		o.respond(protocol.Reply{Code: protocol.ReplyAborting, Seq: s.seen})
	case asked, s.engine != nil && s.engine.Abort(orWord(o.cmd.By, "user")):
		s.when("abort", o, protocol.Reply{Code: protocol.ReplyAborting})
	default:
		o.respond(protocol.Reply{Code: protocol.ReplyIdle, Seq: s.seen})
	}
}

// approve decides on a pending call; the first decision wins (L136).
func (s *session) approve(o order) {
	id := o.cmd.ToolCallID
	if o.cmd.Decision != protocol.Allow && o.cmd.Decision != protocol.Deny {
		o.respond(refuse(protocol.ReplyBadRequest, "the decision is allow or deny"))
		return
	}
	p := s.pending[id]
	if p == nil {
		o.respond(s.undecidable(id))
		return
	}
	delete(s.pending, id)
	s.when("decision:"+id, o, protocol.Reply{Code: protocol.ReplyAccepted})
	p.decide(o.cmd)
}

// undecidable says why there is nothing to decide about a call.
func (s *session) undecidable(id string) protocol.Reply {
	d, at, ok := s.fold.Decision(id)
	if !ok {
		return refuse(protocol.ReplyUnknownCall, "no call %q awaits a decision", id)
	}
	return refuse(protocol.ReplyDecided, "%s by %s at %s", d.Decision, orWord(d.By, "policy"), at.Format(time.RFC3339))
}

func orWord(s, or string) string {
	if s == "" {
		return or
	}
	return s
}

// status tells of the session (L138).
func (s *session) status() *protocol.Status {
	st := &protocol.Status{
		Session: s.id, State: s.stateNow(), Owner: s.h.cfg.Node, Epoch: s.trace.Epoch(), Title: s.title,
		Model: s.model.Name, Workspace: s.place.Path, Worker: s.place.Worker, Sandbox: s.state.Sandbox,
		Compactable: s.h.compactability(s.fold),
	}
	if t := s.fold.State().Task; t != nil {
		st.TaskID = t.TaskID
	}
	st.Background = s.h.fleet.background(s.id, s.place.Worker)
	for _, p := range s.pending {
		st.Pending = append(st.Pending, protocol.Pending{ToolCallID: p.call.ToolCallID, Name: p.call.Name, Arguments: p.call.Arguments})
	}
	return st
}
