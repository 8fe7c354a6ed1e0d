package enginetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"rookery/internal/engine"
	"rookery/protocol"
)

// A Model answers requests with scripted replies, in order. It keeps what it was
// asked; safe for concurrent use.
type Model struct {
	// Gates are where holds wait; required.
	Gates *Gates
	// Fault is told of what the script can't mean: no reply left, a half item in a
	// reply that nobody aborts. Required.
	Fault func(line int, format string, args ...any)
	// Pick says which reply a request gets, from 0. nil: they come in order.
	Pick func(engine.Request) int

	mu       sync.Mutex
	replies  []Reply
	requests []engine.Request
}

var _ engine.Model = (*Model)(nil)

// NewModel returns a model with these replies.
func NewModel(replies []Reply, gates *Gates, fault func(line int, format string, args ...any)) *Model {
	return &Model{replies: replies, Gates: gates, Fault: fault}
}

// Script returns a model whose replies are the texts "1", "2", … with these
// statuses, half where the status is not completed. A request beyond the last one
// fails.
func Script(statuses ...protocol.StopReason) *Model {
	replies := make([]Reply, len(statuses))
	for i, s := range statuses {
		it := Item{Kind: ItemText, Pieces: []string{fmt.Sprint(i + 1)}, Half: s != protocol.Completed}
		replies[i] = Reply{Items: []Item{it}, End: &End{Status: s}}
	}
	return NewModel(replies, &Gates{}, func(int, string, ...any) {})
}

// Requests returns what was asked so far, in order; the slices in it are copies.
func (m *Model) Requests() []engine.Request {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.requests)
}

// next takes the reply of this request.
func (m *Model) next(req engine.Request) (Reply, int, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	req.History, req.Input = slices.Clone(req.History), slices.Clone(req.Input)
	m.requests = append(m.requests, req)
	n := len(m.requests)
	at := n - 1
	if m.Pick != nil {
		at = m.Pick(req)
	}
	if at >= len(m.replies) {
		return Reply{}, n, false
	}
	return m.replies[at], n, true
}

// Stream implements engine.Model.
func (m *Model) Stream(ctx context.Context, req engine.Request, emit func(protocol.Payload) error) engine.Outcome {
	reply, n, ok := m.next(req)
	if !ok {
		m.Fault(0, "request %d has no scripted reply", n)
		return engine.Outcome{Status: protocol.Failed, Message: "no scripted reply"}
	}
	s := &stream{model: m, ctx: ctx, ids: req.IDs, emit: emit, clock: time.Now()}
	return s.play(reply)
}

// stream is one reply under way.
type stream struct {
	model *Model
	ctx   context.Context //nolint:containedctx // lives as long as one Stream
	ids   *protocol.CallIDs
	emit  func(protocol.Payload) error
	clock time.Time // when the next item is due
	open  []segment
	lost  bool // emit refused: nothing more is sent
}

func (s *stream) play(r Reply) engine.Outcome {
	for _, it := range r.Items {
		if !s.item(it) {
			return s.close(protocol.Aborted, engine.Outcome{Status: protocol.Aborted})
		}
	}
	out := engine.Outcome{Status: protocol.Completed, Finish: "stop"}
	if n := len(r.Usages); n > 0 {
		u := r.Usages[n-1]
		out.Usage = &u
	}
	half := protocol.Completed
	switch e := r.End; {
	case e == nil && r.Half():
		return s.unfinished(r)
	case e == nil:
	case e.Length:
		half, out.Finish = protocol.Failed, "length"
	default:
		half = e.Status
		out.Status, out.Message, out.Code, out.RetryAfter = e.Status, e.Message, e.Code, e.RetryAfter
		if e.Status != protocol.Completed {
			out.Finish = ""
		}
	}
	return s.close(half, out)
}

// unfinished ends a reply that has a half item and no end: it is right only when
// the run is aborted. All that is due at this instant may happen first.
func (s *stream) unfinished(r Reply) engine.Outcome {
	if sleepUntil(s.ctx, time.Now().Add(1)) {
		s.model.Fault(r.Line, "the reply leaves an item half, but has no end and the run is not aborted")
	}
	return s.close(protocol.Aborted, engine.Outcome{Status: protocol.Aborted})
}

// item plays one; false means that the abort was noticed.
func (s *stream) item(it Item) bool {
	switch it.Kind {
	case ItemWait:
		s.clock = s.clock.Add(it.For)
		return sleepUntil(s.ctx, s.clock) && !s.lost
	case ItemHold:
		if s.model.Gates.Wait(s.ctx, it.Gate) != nil {
			return false
		}
		s.clock = time.Now()
		return !s.lost
	case ItemThink, ItemText, ItemCall:
	}
	seg := s.segment(it)
	s.send(seg.fragment(protocol.Start, "", protocol.Completed))
	for _, p := range it.Pieces {
		if p != "" {
			s.send(seg.fragment(protocol.Delta, p, protocol.Completed))
		}
	}
	if it.Half {
		s.open = append(s.open, seg)
		return !s.lost
	}
	s.end(seg, protocol.Completed)
	return !s.lost
}

func (s *stream) segment(it Item) segment {
	seg := segment{kind: it.Kind, body: strings.Join(it.Pieces, ""), name: it.Name}
	if it.Kind == ItemCall {
		seg.id = s.ids.Unique(it.ID)
	}
	return seg
}

func (s *stream) close(status protocol.StopReason, out engine.Outcome) engine.Outcome {
	for _, seg := range s.open {
		s.end(seg, status)
	}
	return out
}

func (s *stream) end(seg segment, status protocol.StopReason) {
	s.send(seg.fragment(protocol.Stop, "", status))
	s.send(seg.complete(status))
}

func (s *stream) send(p protocol.Payload) {
	if !s.lost {
		s.lost = s.emit(p) != nil
	}
}

// segment is one streamed item.
type segment struct {
	kind           ItemKind
	id, name, body string
}

func (g segment) fragment(e protocol.EventType, piece string, stop protocol.StopReason) protocol.Payload {
	switch g.kind {
	case ItemThink:
		return protocol.PartialThinking{Role: protocol.Assistant, EventType: e, Thinking: piece, StopReason: stop}
	case ItemCall:
		p := protocol.PartialToolCall{Role: protocol.Assistant, EventType: e, Arguments: piece, ToolCallID: g.id, StopReason: stop}
		if e == protocol.Start {
			p.Name = g.name
		}
		return p
	case ItemText, ItemWait, ItemHold:
	}
	return protocol.PartialText{Role: protocol.Assistant, EventType: e, Text: piece, StopReason: stop}
}

func (g segment) complete(stop protocol.StopReason) protocol.Payload {
	switch g.kind {
	case ItemThink:
		return protocol.Thinking{Role: protocol.Assistant, Thinking: g.body, StopReason: stop}
	case ItemCall:
		return protocol.ToolCall{Role: protocol.Assistant, Name: g.name, Arguments: g.body, ToolCallID: g.id, StopReason: stop}
	case ItemText, ItemWait, ItemHold:
	}
	return protocol.Text{Role: protocol.Assistant, Text: g.body, StopReason: stop}
}
