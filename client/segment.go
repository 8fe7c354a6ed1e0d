package client

import (
	"hash/maphash"

	"rookery/protocol"
)

// A segment is a streamed item whose complete message was not shown yet. Of its
// text only the size and a hash are kept: enough to tell whether the complete
// message begins with it.
type segment struct {
	key   string
	id    string
	epoch uint64
	start protocol.Payload
	size  int
	sum   maphash.Hash
}

func newSegment(seed maphash.Seed, key, id string, epoch uint64, start protocol.Payload) *segment {
	s := &segment{key: key, id: id, epoch: epoch, start: start}
	s.sum.SetSeed(seed)
	return s
}

// add takes the next piece of the text.
func (s *segment) add(piece string) {
	_, _ = s.sum.WriteString(piece) // never fails
	s.size += len(piece)
}

// begins reports that what was shown is how text begins.
func (s *segment) begins(text string) bool {
	return s.size <= len(text) && maphash.String(s.sum.Seed(), text[:s.size]) == s.sum.Sum64()
}

// part is a fragment seen apart from its kind.
type part struct {
	key    string // which producer: text, thinking, call:<id>, out:<id>
	event  protocol.EventType
	piece  string
	images []string
}

// fragment takes a partial apart; key is empty for anything else.
func fragment(p protocol.Payload) part {
	switch p := p.(type) {
	case protocol.PartialText:
		return part{"text", p.EventType, p.Text, nil}
	case protocol.PartialThinking:
		return part{"thinking", p.EventType, p.Thinking, nil}
	case protocol.PartialToolCall:
		return part{"call:" + p.ToolCallID, p.EventType, p.Arguments, nil}
	case protocol.PartialToolCallOutput:
		return part{outputKey(p.ToolCallID), p.EventType, p.Output, p.Images}
	default:
		return part{}
	}
}

func outputKey(call string) string { return "out:" + call }

// ofModel reports a producer that ends with its request.
func ofModel(key string) bool { return len(key) < 4 || key[:4] != "out:" }

// A whole is a complete message that is streamed, taken apart the same way.
type whole struct {
	key    string
	start  protocol.Payload
	text   string
	images []string
	stop   protocol.StopReason
}

// complete takes a complete message apart; key is empty for one that is never
// streamed.
func complete(p protocol.Payload) whole {
	switch p := p.(type) {
	case protocol.Text:
		if p.Role == protocol.Assistant {
			return whole{"text", protocol.PartialText{Role: p.Role}, p.Text, nil, p.StopReason}
		}
	case protocol.Thinking:
		return whole{"thinking", protocol.PartialThinking{Role: p.Role}, p.Thinking, nil, p.StopReason}
	case protocol.ToolCall:
		return whole{"call:" + p.ToolCallID, protocol.PartialToolCall{Role: p.Role, Name: p.Name, ToolCallID: p.ToolCallID}, p.Arguments, nil, p.StopReason}
	case protocol.ToolCallOutput:
		if p.Output == protocol.NoteDenied && p.StopReason == protocol.Aborted {
			return whole{} // nothing ran (L048)
		}
		return whole{outputKey(p.ToolCallID), protocol.PartialToolCallOutput{Role: p.Role, ToolCallID: p.ToolCallID}, p.Output, p.Images, p.StopReason}
	default: // never streamed
	}
	return whole{}
}

// piece makes a fragment of the kind of start. Only a start names the tool (L023).
func piece(start protocol.Payload, e protocol.EventType, text string, images []string, stop protocol.StopReason) protocol.Payload {
	if stop == "" {
		stop = protocol.Completed
	}
	switch p := start.(type) {
	case protocol.PartialText:
		p.EventType, p.Text, p.StopReason = e, text, stop
		return p
	case protocol.PartialThinking:
		p.EventType, p.Thinking, p.StopReason = e, text, stop
		return p
	case protocol.PartialToolCall:
		if e != protocol.Start {
			p.Name = ""
		}
		p.EventType, p.Arguments, p.StopReason = e, text, stop
		return p
	case protocol.PartialToolCallOutput:
		p.EventType, p.Output, p.Images, p.StopReason = e, text, images, stop
		return p
	default:
		return start
	}
}

// maxEnded bounds how many ended producers are remembered.
const maxEnded = 256

// ended remembers which producers ended, and at which record, so that fragments
// that come late are not shown. What is forgotten is made up for by a floor.
type ended struct {
	at    map[string]uint64
	order []string
	floor uint64 // every fragment sent before this record is late
	model uint64 // every fragment of the model sent before this record is late
}

func (e *ended) add(key string, n uint64) {
	if _, known := e.at[key]; !known {
		if len(e.order) == maxEnded {
			e.floor = max(e.floor, e.at[e.order[0]])
			delete(e.at, e.order[0])
			e.order = e.order[1:]
		}
		e.order = append(e.order, key)
	}
	if e.at == nil {
		e.at = map[string]uint64{}
	}
	e.at[key] = n
}

// late reports a fragment of a producer that has ended: a later one of the same
// key is sent after the complete message of the one before.
func (e *ended) late(key string, after uint64) bool {
	return after < e.floor || after < e.at[key] || ofModel(key) && after < e.model
}
