package session

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"rookery/protocol"
)

// beatEvery and coalesce pace what viewers get beside the records.
const coalesce = 33 * time.Millisecond

// A live is the session's side of rk.out.<sid>.d: the segments that are open, and
// what of them was not sent yet. It belongs to the owner.
type live struct {
	open  []*segment
	timer *time.Timer
	armed bool
	k     int // segments of the running request
	r     int // its number
}

// A segment is one streamed item between its start and its complete message.
type segment struct {
	id      string
	key     string
	start   protocol.Message
	text    []byte
	sent    int
	last    time.Time
	stopped bool
}

// due fires when held back deltas should go out.
func (l *live) due() <-chan time.Time {
	if !l.armed {
		return nil
	}
	return l.timer.C
}

func (l *live) arm() {
	switch {
	case l.armed:
	case l.timer == nil:
		l.timer, l.armed = time.NewTimer(coalesce), true
	default:
		l.timer.Reset(coalesce)
		l.armed = true
	}
}

// say sends a message that is not recorded: partials coalesced, others at once.
func (l *live) say(s *session, m protocol.Message) {
	key, event, piece, plain := fragment(m.Payload)
	if key == "" {
		s.publish(protocol.Live{Message: &m})
		return
	}
	switch event {
	case protocol.Start:
		seg := &segment{id: s.segmentID(key), key: key, start: m}
		l.open = append(l.open, seg)
		s.publish(protocol.Live{Segment: seg.id, Message: &m})
		if piece != "" {
			l.grow(s, seg, piece)
		}
	case protocol.Delta:
		if seg := l.find(key); seg != nil && plain {
			l.grow(s, seg, piece)
		} else if seg != nil {
			l.send(s, seg)
			s.publish(protocol.Live{Segment: seg.id, Offset: seg.sent, Message: &m})
		}
	case protocol.Stop:
		if seg := l.find(key); seg != nil {
			l.send(s, seg)
			seg.stopped = true
			s.publish(protocol.Live{Segment: seg.id, Offset: seg.sent, Message: &m})
		}
	}
}

func (l *live) grow(s *session, seg *segment, piece string) {
	seg.text = append(seg.text, piece...)
	if time.Since(seg.last) >= coalesce {
		l.send(s, seg)
	} else {
		l.arm()
	}
}

// send publishes what of a segment was held back.
func (l *live) send(s *session, seg *segment) {
	if seg.sent == len(seg.text) {
		return
	}
	m := protocol.New(delta(seg.start.Payload, string(seg.text[seg.sent:])))
	s.publish(protocol.Live{Segment: seg.id, Offset: seg.sent, Message: &m})
	seg.sent, seg.last = len(seg.text), time.Now()
}

// flush sends everything that was held back.
func (l *live) flush(s *session) {
	l.armed = false
	for _, seg := range l.open {
		if !seg.stopped {
			l.send(s, seg)
		}
	}
}

// completed drops the segment whose complete message is recorded.
func (l *live) completed(p protocol.Payload) {
	key := completeKey(p)
	if key == "" {
		return
	}
	for i, seg := range l.open {
		if seg.key == key {
			l.open = append(l.open[:i], l.open[i+1:]...)
			return
		}
	}
}

func (l *live) find(key string) *segment {
	for _, seg := range l.open {
		if seg.key == key && !seg.stopped {
			return seg
		}
	}
	return nil
}

// reset forgets the segments of a task that is over.
func (l *live) reset() {
	l.open, l.armed = nil, false
	if l.timer != nil {
		l.timer.Stop()
	}
}

const maxSnapPage = 512 << 10

// page returns one page of the open segments; long texts are cut over pages.
func (l *live) page(epoch, after uint64, n int) protocol.Snap {
	snap := protocol.Snap{Epoch: epoch}
	size, page := 0, 0
	for _, seg := range l.open {
		if seg.stopped {
			continue
		}
		for off := 0; ; {
			end := cut(seg.text, off+maxSnapPage/2)
			if page == n {
				snap.Segments = append(snap.Segments, protocol.Segment{
					ID: seg.id, After: after, Start: seg.start, Text: string(seg.text[off:end]), Offset: off,
				})
			}
			if size += end - off + 1024; size > maxSnapPage/2 {
				size = 0
				page++
			}
			if off = end; off >= len(seg.text) {
				break
			}
		}
	}
	snap.More = page > n
	return snap
}

// cut is the last rune boundary of b up to n.
func cut(b []byte, n int) int {
	if n >= len(b) {
		return len(b)
	}
	for n > 0 && !utf8.RuneStart(b[n]) {
		n--
	}
	return n
}

// publish sends one live message; it is lossy by contract.
func (s *session) publish(l protocol.Live) {
	l.Epoch, l.After = s.trace.Epoch(), s.n
	if err := s.h.bus.PublishLive(s.id, l); err != nil {
		s.log.Debug("live message dropped", "err", err)
	}
}

func (s *session) beat() {
	if s.trace == nil {
		return
	}
	s.publish(protocol.Live{Beat: &protocol.Beat{Seq: s.seen, State: s.stateNow()}})
}

// fragment says which segment a partial belongs to, and its increment; plain is
// false for one that carries more than text.
func fragment(p protocol.Payload) (key string, e protocol.EventType, piece string, plain bool) {
	switch p := p.(type) {
	case protocol.PartialText:
		return "text", p.EventType, p.Text, true
	case protocol.PartialThinking:
		return "thinking", p.EventType, p.Thinking, true
	case protocol.PartialToolCall:
		return "call:" + p.ToolCallID, p.EventType, p.Arguments, true
	case protocol.PartialToolCallOutput:
		return "out:" + p.ToolCallID, p.EventType, p.Output, len(p.Images) == 0
	default:
		return "", "", "", false
	}
}

func completeKey(p protocol.Payload) string {
	switch p := p.(type) {
	case protocol.Text:
		if p.Role == protocol.Assistant {
			return "text"
		}
	case protocol.Thinking:
		return "thinking"
	case protocol.ToolCall:
		return "call:" + p.ToolCallID
	case protocol.ToolCallOutput:
		return "out:" + p.ToolCallID
	default:
	}
	return ""
}

func delta(start protocol.Payload, piece string) protocol.Payload {
	switch p := start.(type) {
	case protocol.PartialText:
		return protocol.PartialText{Role: p.Role, EventType: protocol.Delta, Text: piece, StopReason: protocol.Completed}
	case protocol.PartialThinking:
		return protocol.PartialThinking{Role: p.Role, EventType: protocol.Delta, Thinking: piece, StopReason: protocol.Completed}
	case protocol.PartialToolCall:
		return protocol.PartialToolCall{Role: p.Role, EventType: protocol.Delta, Arguments: piece, ToolCallID: p.ToolCallID, StopReason: protocol.Completed}
	case protocol.PartialToolCallOutput:
		return protocol.PartialToolCallOutput{Role: p.Role, EventType: protocol.Delta, Output: piece, ToolCallID: p.ToolCallID, StopReason: protocol.Completed}
	default:
		return start
	}
}

// request begins the numbering of a request's segments.
func (l *live) request(n int) { l.r, l.k = n, 0 }

// segmentID names a segment: <request>.<k>, or the call for a tool's output.
func (s *session) segmentID(key string) string {
	if id, ok := strings.CutPrefix(key, "out:"); ok {
		if r, p, ok := s.fold.Position(id); ok {
			return fmt.Sprintf("%d-%d", r, p)
		}
		return id
	}
	s.live.k++
	return fmt.Sprintf("%d.%d", s.live.r, s.live.k)
}
