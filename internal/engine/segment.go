package engine

import (
	"slices"
	"strings"

	"rookery/protocol"
)

// A segment is a streamed item of the reply that has started and is not complete:
// its start fragment and the text so far.
type segment struct {
	key  string // kind, or call id
	head protocol.Payload
	text *strings.Builder
}

// track keeps the open segments, so that an abandoned stream's can be closed.
func (t *turn) track(p protocol.Payload) {
	switch p := p.(type) {
	case protocol.PartialText:
		t.grow("text", p, p.Text)
	case protocol.PartialThinking:
		t.grow("thinking", p, p.Thinking)
	case protocol.PartialToolCall:
		t.grow(p.ToolCallID, p, p.Arguments)
	case protocol.Text:
		t.drop("text")
	case protocol.Thinking:
		t.drop("thinking")
	case protocol.ToolCall:
		t.drop(p.ToolCallID)
	default:
	}
}

func (t *turn) grow(key string, head protocol.Payload, piece string) {
	i := slices.IndexFunc(t.segments, func(s segment) bool { return s.key == key })
	if i < 0 {
		i = len(t.segments)
		t.segments = append(t.segments, segment{key, head, &strings.Builder{}})
	}
	t.segments[i].text.WriteString(piece)
}

func (t *turn) drop(key string) {
	t.segments = slices.DeleteFunc(t.segments, func(s segment) bool { return s.key == key })
}

// closeSegments closes what an abandoned stream left open: stop, then the half
// message with the same status (L081, L082).
func (t *turn) closeSegments(status protocol.StopReason) {
	for _, s := range t.segments {
		var stop, half protocol.Payload
		switch p := s.head.(type) {
		case protocol.PartialText:
			stop = protocol.PartialText{Role: p.Role, EventType: protocol.Stop, StopReason: status}
			half = protocol.Text{Role: p.Role, Text: s.text.String(), StopReason: status}
		case protocol.PartialThinking:
			stop = protocol.PartialThinking{Role: p.Role, EventType: protocol.Stop, StopReason: status}
			half = protocol.Thinking{Role: p.Role, Thinking: s.text.String(), StopReason: status}
		case protocol.PartialToolCall:
			stop = protocol.PartialToolCall{Role: p.Role, EventType: protocol.Stop, ToolCallID: p.ToolCallID, StopReason: status}
			half = protocol.ToolCall{Role: p.Role, Name: p.Name, Arguments: s.text.String(), ToolCallID: p.ToolCallID, StopReason: status}
		default:
			continue // no other is tracked
		}
		t.emit(stop)
		t.reply = append(t.reply, t.emit(half))
	}
	t.segments = nil
}
