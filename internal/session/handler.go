package session

import (
	"context"
	"errors"
	"strconv"
	"time"

	"rookery/internal/bus"
	"rookery/internal/trace"
	"rookery/protocol"
)

// handler answers what is asked of this orchestrator.
func (h *Host) handler() bus.Orchestrator {
	return bus.Orchestrator{
		Command:  h.command,
		Remove:   h.remove,
		Import:   h.importTrace,
		Register: h.register,
	}
}

// command takes a command for a session that nobody owns, or that was sent here by
// name. Reads never take ownership.
func (h *Host) command(sid protocol.ID, verb protocol.Verb, cmd protocol.Command, respond func(protocol.Reply)) {
	h.mu.Lock()
	_, open := h.sessions[sid]
	h.mu.Unlock()
	switch {
	case open, verb == protocol.VerbRun, verb == protocol.VerbCompact, verb == protocol.VerbTitle, verb == protocol.VerbTakeover:
		h.deliver(sid, verb, cmd, respond)
	default:
		h.detached(func(ctx context.Context) { h.read(ctx, sid, verb, cmd, respond) })
	}
}

// read answers from the trace. A running task whose owner is gone is taken over by
// what asks it to do something.
func (h *Host) read(ctx context.Context, sid protocol.ID, verb protocol.Verb, cmd protocol.Command, respond func(protocol.Reply)) {
	own, seq, err := h.bus.LastOwn(ctx, sid)
	if err != nil {
		respond(protocol.Reply{Code: protocol.ReplyFailed, Reason: err.Error()})
		return
	}
	if own == nil {
		respond(refuse(protocol.ReplyNotFound, "there is no session %s", sid))
		return
	}
	fold := trace.NewFold()
	for f, err := range h.bus.Trace(ctx, sid, 0) {
		if err != nil {
			respond(protocol.Reply{Code: protocol.ReplyTrace, Reason: err.Error()})
			return
		}
		seq = f.Seq
		for _, m := range f.Messages {
			fold.Add(f.Context, m)
		}
	}
	st := fold.State()
	if st.Task != nil && verb != protocol.VerbStatus && verb != protocol.VerbSnap {
		h.deliver(sid, verb, cmd, respond)
		return
	}
	respond(idleReply(ctx, h, sid, *own, seq, verb, fold))
}

func idleReply(ctx context.Context, h *Host, sid protocol.ID, own protocol.Own, seq uint64, verb protocol.Verb, fold *trace.Fold) protocol.Reply {
	switch verb {
	case protocol.VerbAbort:
		return protocol.Reply{Code: protocol.ReplyIdle, Seq: seq}
	case protocol.VerbSteer:
		return refuse(protocol.ReplyNotRunning, "session %s runs no task", sid)
	case protocol.VerbApprove:
		return refuse(protocol.ReplyUnknownCall, "session %s awaits no decision", sid)
	case protocol.VerbSnap:
		return protocol.Reply{Code: protocol.ReplyAccepted, Seq: seq, Snap: &protocol.Snap{Epoch: own.Epoch}}
	default: // status
	}
	st := &protocol.Status{Session: sid, State: protocol.StateIdle, Owner: own.Node, Epoch: own.Epoch, Compactable: h.compactability(fold)}
	if s := fold.State(); s.Task != nil {
		st.State, st.TaskID = protocol.StateRunning, s.Task.TaskID
	}
	if e, err := h.bus.Session(ctx, sid); err == nil {
		st.Title, st.Model, st.Workspace, st.Worker, st.At = e.Title, e.Model, e.Workspace.Path, e.Workspace.Worker, e.At
		st.Background = h.fleet.background(sid, st.Worker)
	}
	return protocol.Reply{Code: protocol.ReplyAccepted, Seq: seq, Status: st}
}

// detached runs f off the bus's goroutine, bounded, and Run waits for it.
func (h *Host) detached(f func(ctx context.Context)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopping {
		return
	}
	h.open.Go(func() {
		ctx, cancel := context.WithTimeout(h.ctx, 30*time.Second)
		defer cancel()
		f(ctx)
	})
}

// remove deletes a session that is idle.
func (h *Host) remove(sid protocol.ID, respond func(protocol.Reply)) {
	h.detached(func(ctx context.Context) {
		reply, err := h.bus.Command(ctx, sid, protocol.VerbStatus, protocol.Command{ID: protocol.Token(8)})
		switch {
		case err != nil:
			respond(protocol.Reply{Code: protocol.ReplyFailed, Reason: err.Error()})
			return
		case reply.Code == protocol.ReplyNotFound:
			respond(reply)
			return
		case reply.Status != nil && reply.Status.State != protocol.StateIdle:
			respond(refuse(protocol.ReplyTaskInProgress, "session %s is working: abort it first", sid))
			return
		}
		ref, _, held, err := h.bus.Workspace(ctx, sid)
		if err = errors.Join(err, h.bus.Purge(ctx, sid), h.bus.DeleteSession(ctx, sid)); err != nil {
			respond(protocol.Reply{Code: protocol.ReplyFailed, Reason: err.Error()})
			return
		}
		if held { // its scratch files go; a worker that is away tidies by their age
			if _, err := h.fleet.ask(ctx, ref.Worker, "release", protocol.Control{Session: sid}); err != nil {
				h.log.InfoContext(ctx, "session not released", "session", sid, "worker", ref.Worker, "err", err)
			}
		}
		respond(protocol.Reply{Code: protocol.ReplyAccepted})
	})
}

// register takes a worker.
func (h *Host) register(w protocol.WorkerInfo, respond func(protocol.Reply)) {
	h.detached(func(ctx context.Context) {
		if err := h.fleet.register(ctx, w); err != nil {
			h.log.WarnContext(ctx, "worker refused", "worker", w.Worker, "err", err)
			respond(protocol.Reply{Code: protocol.ReplyBadRequest, Reason: err.Error()})
			return
		}
		h.log.InfoContext(ctx, "worker signed on", "worker", w.Worker, "slots", w.Slots, "tools", strconv.Itoa(len(w.Tools)))
		respond(protocol.Reply{Code: protocol.ReplyAccepted})
	})
}
