package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"rookery/internal/bus"
	"rookery/internal/trace"
	"rookery/protocol"
)

// imports holds traces that come in pieces, until the last one is here. A trace is
// stored whole or not at all.
type imports struct {
	mu   sync.Mutex
	open map[protocol.ID][]protocol.Message
}

// importTrace takes a piece of a trace from outside. The last piece stores it as a
// session of that id, which must not exist.
func (h *Host) importTrace(sid protocol.ID, in bus.Import, respond func(protocol.Reply)) {
	h.imports.mu.Lock()
	defer h.imports.mu.Unlock()
	if in.Part == 0 {
		h.imports.open[sid] = nil
	}
	got := append(h.imports.open[sid], in.Messages...)
	if in.More {
		h.imports.open[sid] = got
		respond(protocol.Reply{Code: protocol.ReplyAccepted, Use: h.cfg.Node})
		return
	}
	delete(h.imports.open, sid)
	h.detached(func(ctx context.Context) {
		if err := h.store(ctx, sid, got); err != nil {
			respond(protocol.Reply{Code: protocol.ReplyTrace, Reason: err.Error()})
			return
		}
		respond(protocol.Reply{Code: protocol.ReplyAccepted, Use: h.cfg.Node})
	})
}

// store writes an imported trace. Its workspace is not trusted: whoever resumes it
// names one.
func (h *Host) store(ctx context.Context, sid protocol.ID, ms []protocol.Message) error {
	if len(ms) == 0 {
		return errors.New("the trace holds no message")
	}
	if _, ok := ms[0].Payload.(protocol.SessionMeta); !ok {
		return errors.New("the trace does not begin with session_meta")
	}
	own, _, err := h.bus.LastOwn(ctx, sid)
	if err != nil {
		return err
	}
	if own != nil {
		return fmt.Errorf("session %s exists already: remove it first, or import under another id", sid)
	}
	log, err := h.bus.OpenLog(ctx, sid, h.cfg.Node, h.cfg.Boot)
	if err != nil {
		return err
	}
	ms = closed(renamed(ms, sid))
	var p trace.Placer
	for i := 0; i < len(ms); {
		n, place, private := run(&p, ms[i:])
		if n == 0 {
			i++
			continue
		}
		if _, err := log.Append(ctx, place, private, ms[i:i+n]); err != nil {
			return fmt.Errorf("store message %d: %w", i+1, err)
		}
		i += n
	}
	return h.bus.PutSession(ctx, protocol.Entry{
		Session: sid, State: protocol.StateIdle, Node: h.cfg.Node, Epoch: log.Epoch(), Title: "imported",
		At: ms[len(ms)-1].Timestamp.Format("2006-01-02T15:04:05Z"),
	})
}

// renamed makes the contexts those of a session.
func renamed(ms []protocol.Message, sid protocol.ID) []protocol.Message {
	out := slices.Clone(ms)
	for i, m := range out {
		if meta, ok := m.Payload.(protocol.SessionMeta); ok && meta.SessionID != string(sid) {
			meta.SessionID = string(sid)
			out[i] = protocol.Message{Timestamp: m.Timestamp, Origin: m.Origin, Payload: meta}
		}
	}
	return out
}

// closed ends the task that a trace leaves open: what a file says to be under way is
// not gone on with, and none of its calls is run.
func closed(ms []protocol.Message) []protocol.Message {
	var p trace.Placer
	fold := trace.NewFold()
	for _, m := range ms {
		if place, _, recorded := p.Place(m); recorded {
			fold.Add(place, m)
		}
	}
	for _, last := range lastWords(fold.State().Task) {
		ms = append(ms, protocol.New(last))
	}
	return ms
}

func lastWords(t *trace.Task) (ps []protocol.Payload) {
	if t == nil {
		return nil
	}
	if t.CompactionRequest || t.Requested && t.Compaction == nil {
		ps = append(ps, protocol.RequestEnd{Status: protocol.Aborted})
	}
	if c := t.Compaction; c != nil {
		ps = append(ps, protocol.CompactionEnd{Reason: c.Reason, Mode: c.Mode, Status: protocol.Aborted})
	}
	for _, c := range t.Calls {
		if c.Output == nil && c.Decision != nil {
			text := protocol.NoteInterrupted
			if c.Decision.Decision == protocol.Deny {
				text = protocol.NoteDenied
			}
			ps = append(ps, protocol.ToolCallOutput{Role: protocol.User, Output: text, ToolCallID: c.ToolCallID, StopReason: protocol.Aborted})
		}
	}
	const why = "imported in the middle of the task"
	if t.Aborted == nil {
		ps = append(ps, protocol.AbortOf(why))
	}
	return append(ps, protocol.TaskEnd{TaskID: t.TaskID, Status: protocol.TaskAborted, Reason: why})
}

// run returns how many of ms go into one frame, and where. A message that is not
// recorded gives 0.
func run(p *trace.Placer, ms []protocol.Message) (n, place int, private bool) {
	for _, m := range ms {
		next := *p
		c, x, recorded := next.Place(m)
		if n > 0 && (!recorded || c != place || x != private) {
			return n, place, private
		}
		*p = next
		if !recorded {
			return 0, 0, false
		}
		n, place, private = n+1, c, x
	}
	return n, place, private
}
