package worker

import (
	"sync"
	"time"
	"unicode/utf8"

	"rookery/protocol"
)

// The pace of a call's deltas: the first at once, then at most thirty a second.
const (
	deltaEvery = time.Second / 30
	deltaBytes = 64 << 10
)

// A stream sends a call's output while it comes. It never blocks the tool.
type stream struct {
	send func(protocol.ToolDelta)
	boot string

	mu     sync.Mutex
	text   []byte // not sent yet
	offset int    // of text in the output
	timer  *time.Timer
	armed  bool
	closed bool
}

func newStream(boot string, send func(protocol.ToolDelta)) *stream {
	s := &stream{send: send, boot: boot}
	s.timer = time.AfterFunc(time.Hour, s.tick)
	s.timer.Stop()
	return s
}

// write takes a piece of the output.
func (s *stream) write(piece string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, piece...)
	if !s.armed && !s.closed {
		s.flush()
	}
}

// tick runs on the timer's goroutine.
func (s *stream) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = false
	if !s.closed && len(s.text) > 0 {
		s.flush()
	}
}

// flush sends what there is and waits for the next turn; the caller holds mu.
func (s *stream) flush() {
	for len(s.text) > 0 {
		n := cut(s.text, deltaBytes)
		s.send(protocol.ToolDelta{Boot: s.boot, Offset: s.offset, Text: string(s.text[:n])})
		s.offset += n
		s.text = s.text[n:]
	}
	s.text = nil
	s.armed = true
	s.timer.Reset(deltaEvery)
}

// close sends the rest.
func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flush()
	s.closed = true
	s.timer.Stop()
}

// cut returns at most limit, at a rune's border.
func cut(b []byte, limit int) int {
	if len(b) <= limit {
		return len(b)
	}
	for n := limit; n > limit-utf8.UTFMax; n-- {
		if utf8.RuneStart(b[n]) {
			return n
		}
	}
	return limit
}
