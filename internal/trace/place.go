package trace

import "rookery/protocol"

// A Placer says where each message of a session belongs. Feed it every message in
// output order; it is a small state machine, so a successor starts one with what
// the fold says.
type Placer struct {
	// Context is the number of the current trace context, 0 before the first.
	Context int
	// Compacting is true between compaction_begin and compaction_end.
	Compacting bool

	fresh bool // the last record was a session_meta
}

// Place returns the context a message is recorded in, whether viewers are kept
// from it (L008), and whether it is recorded at all: partials, waiting and
// messages of child sessions are not (L004).
func (p *Placer) Place(m protocol.Message) (context int, private, recorded bool) {
	fresh := p.fresh
	p.fresh = false
	if len(m.Origin) > 0 || protocol.IsPartial(m.Payload) {
		p.fresh = fresh
		return p.Context, false, false
	}
	switch v := m.Payload.(type) {
	case protocol.Waiting:
		p.fresh = fresh
		return p.Context, false, false
	case protocol.SessionMeta:
		p.Context++
		p.Compacting = false
		p.fresh = true
		return p.Context, true, true
	case protocol.Subagent, protocol.ReplyReceived:
		return p.Context, true, true
	case protocol.CompactionBegin:
		p.Compacting = true
		return p.Context, false, true
	case protocol.CompactionEnd:
		p.Compacting = false
		return p.Context, false, true
	case protocol.TaskEnd:
		p.Compacting = false
		return p.Context, false, true
	case protocol.Text:
		if fresh && v.Role == protocol.User {
			if _, ok := protocol.ParseContextSummary(v.Text); ok {
				return p.Context, true, true
			}
		}
		return p.Context, p.Compacting, true
	case protocol.Thinking, protocol.ToolCall, protocol.InlineData, protocol.InlineThinking, protocol.ImageURL,
		protocol.RequestBegin, protocol.RequestEnd:
		return p.Context, p.Compacting, true
	default:
		return p.Context, false, true
	}
}
