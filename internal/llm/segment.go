package llm

import (
	"encoding/json"
	"strings"

	"rookery/protocol"
)

type kind int

const (
	text kind = iota
	thinking
	call
)

// A segment is one item of a reply while it is written.
type segment struct {
	kind   kind
	live   bool // its start was emitted
	sealed bool // nothing more comes: another kind of segment began (L034)
	signed bool // complete by a signature: what follows is another segment
	closed bool
	body   strings.Builder
	sent   int // bytes of body that were emitted
	fid    fidelity
	list   detailList

	name, id   string // of a call; id is ours
	providerID string
	index      int
	hasIndex   bool
}

// A queue holds the segments of a reply that are not closed yet, in generation
// order, and emits them: a segment is closed only after all before it (L034), and
// of two texts or two thinkings only the first is live.
type queue struct {
	cfg  *Config
	emit func(protocol.Payload) error
	err  error // of emit: nothing is emitted any more
	ids  *protocol.CallIDs
	open []*segment
	last *segment // what was written last
	any  bool     // a segment was opened
}

func (q *queue) send(p protocol.Payload) {
	if q.err == nil {
		q.err = q.emit(p)
	}
}

// begin opens a segment behind the others; a text or thinking before it is sealed.
func (q *queue) begin(k kind) *segment {
	q.seal()
	s := &segment{kind: k}
	q.open = append(q.open, s)
	q.last, q.any = s, true
	return s
}

// seal ends the text or thinking that is being written.
func (q *queue) seal() {
	if n := len(q.open); n > 0 && q.open[n-1].kind != call {
		q.open[n-1].sealed = true
	}
	for len(q.open) > 0 && q.open[0].sealed {
		q.close(q.open[0], protocol.Completed)
		q.open = q.open[1:]
	}
}

// current returns the segment of kind k that is being written, or a new one.
func (q *queue) current(k kind) *segment {
	if n := len(q.open); n > 0 && q.open[n-1].kind == k && !q.open[n-1].sealed && !q.open[n-1].signed {
		return q.open[n-1]
	}
	return q.begin(k)
}

// write adds to a segment and emits what may go out.
func (q *queue) write(s *segment, piece string) {
	if piece != "" {
		q.last = s
		s.body.WriteString(piece)
	}
	if s.live || q.mayStart(s) {
		q.flush(s)
	}
}

func (q *queue) mayStart(s *segment) bool {
	if s.kind == call {
		return s.name != "" && !undecided(s.body.String())
	}
	for _, o := range q.open {
		if o == s {
			return true
		}
		if o.kind == s.kind {
			return false
		}
	}
	return true
}

// undecided reports arguments that are blank or null, or may yet be: such a call
// has none.
func undecided(args string) bool {
	return strings.HasPrefix("null", strings.TrimSpace(args))
}

// flush emits the start, once, and what of the body was not emitted yet.
func (q *queue) flush(s *segment) {
	if !s.live {
		s.live = true
		if s.kind == call {
			s.id = q.ids.Unique(s.providerID)
		}
		q.send(s.partial(protocol.Start, "", protocol.Completed))
	}
	if body := s.body.String(); len(body) > s.sent {
		q.send(s.partial(protocol.Delta, body[s.sent:], protocol.Completed))
		s.sent = len(body)
	}
}

// close emits the rest of s, its stop and its complete payload. A call that
// never got a name is left out: nobody saw it.
func (q *queue) close(s *segment, stop protocol.StopReason) {
	s.closed = true
	if s.kind == call && s.name == "" {
		return
	}
	q.flush(s)
	q.send(s.partial(protocol.Stop, "", stop))
	q.send(s.complete(q.cfg, stop))
}

// closeAll closes what is open: sealed segments are completed, of the others each
// has the stop reason that stop says.
func (q *queue) closeAll(stop func(*segment) protocol.StopReason) {
	for _, s := range q.open {
		if s.sealed {
			q.close(s, protocol.Completed)
		} else {
			q.close(s, stop(s))
		}
	}
	q.open = nil
}

func (s *segment) partial(at protocol.EventType, piece string, stop protocol.StopReason) protocol.Payload {
	switch s.kind {
	case text:
		return protocol.PartialText{Role: protocol.Assistant, EventType: at, Text: piece, StopReason: stop}
	case thinking:
		return protocol.PartialThinking{Role: protocol.Assistant, EventType: at, Thinking: piece, StopReason: stop}
	case call:
	}
	p := protocol.PartialToolCall{Role: protocol.Assistant, EventType: at, Arguments: piece, ToolCallID: s.id, StopReason: stop}
	if at == protocol.Start {
		p.Name = s.name
	}
	return p
}

func (s *segment) complete(cfg *Config, stop protocol.StopReason) protocol.Payload {
	f := s.fid
	if s.list.items != nil {
		f.Details = s.list.encode()
	}
	switch s.kind {
	case text:
		return protocol.Text{Role: protocol.Assistant, Text: s.body.String(), StopReason: stop, Fidelity: f.encode(cfg)}
	case thinking:
		return protocol.Thinking{Role: protocol.Assistant, Thinking: s.body.String(), StopReason: stop, Fidelity: f.encode(cfg)}
	case call:
	}
	if s.providerID != "" && protocol.ProviderCallID(s.id) != s.providerID {
		f.ID = s.providerID
	}
	return protocol.ToolCall{
		Role: protocol.Assistant, Name: s.name, Arguments: s.body.String(), ToolCallID: s.id,
		StopReason: stop, Fidelity: f.encode(cfg),
	}
}

// settleArguments gives a call without arguments the empty object.
func (s *segment) settleArguments() {
	if args := strings.TrimSpace(s.body.String()); s.sent == 0 && (args == "" || args == "null") {
		s.body.Reset()
		s.body.WriteString("{}")
	}
}

// object reports arguments that are a JSON object.
func object(args string) bool {
	var m map[string]json.RawMessage
	return json.Unmarshal([]byte(args), &m) == nil && m != nil
}
