package llm

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Bounds of one event of a stream, in bytes and in data lines.
const (
	maxEvent = 32 << 20
	maxLines = 1024
)

var errTooLarge = fmt.Errorf("an event is larger than %d MiB or %d lines", maxEvent>>20, maxLines)

// An event is one server-sent event that has data.
type event struct {
	name string
	data []byte // valid until the next call of next
}

// events reads server-sent events as the standard has them, and as servers write
// them: any line ending, events without a blank line between, a last line without
// an end, blanks in front of a field.
type events struct {
	br     *bufio.Reader
	begun  bool
	skipLF bool // the last line ended with CR: an LF that follows is part of it
	line   []byte
	name   string
	data   []byte
	lines  int    // of data
	spare  []byte // the buffer of the event that was returned last
	// comments reports that there were some: the server is at work.
	comments bool
}

func newEvents(br *bufio.Reader) *events { return &events{br: br} }

// next returns the next event with data, or io.EOF after the last.
func (s *events) next() (event, error) {
	for {
		line, err := s.readLine()
		if err != nil {
			if errors.Is(err, io.EOF) && s.lines > 0 {
				return s.take(), nil
			}
			return event{}, err
		}
		if !s.begun {
			s.begun = true
			line = bytes.TrimPrefix(line, []byte("\ufeff"))
		}
		if len(line) == 0 {
			if s.lines > 0 {
				return s.take(), nil
			}
			s.name = ""
			continue
		}
		ev, ok, err := s.field(bytes.TrimLeft(line, " \t"))
		if err != nil || ok {
			return ev, err
		}
	}
}

// field takes one line; it returns an event when the line begins another one.
func (s *events) field(line []byte) (ev event, ok bool, err error) {
	key, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(key) {
	case "":
		s.comments = true
	case "event":
		if s.lines > 0 && whole(s.data) {
			ev, ok = s.take(), true
		}
		s.name = string(value)
	case "data":
		if s.lines > 0 && whole(s.data) {
			ev, ok = s.take(), true
		}
		if s.lines > 0 {
			s.data = append(s.data, '\n')
		}
		s.data = append(s.data, value...)
		if s.lines++; len(s.data) > maxEvent || s.lines > maxLines {
			return event{}, false, errTooLarge
		}
	}
	return ev, ok, nil
}

func (s *events) take() event {
	ev := event{name: s.name, data: s.data}
	s.data, s.spare = s.spare[:0], s.data
	s.name, s.lines = "", 0
	return ev
}

// whole reports data that can't go on in another line.
func whole(b []byte) bool {
	b = bytes.TrimSpace(b)
	return bytes.HasPrefix(b, []byte("[DONE]")) || len(b) > 1 && b[0] == '{' && b[len(b)-1] == '}' && json.Valid(b)
}

// readLine returns the next line without its end, valid until the next call. A
// last line without an end counts.
func (s *events) readLine() ([]byte, error) {
	s.line = s.line[:0]
	for {
		if s.br.Buffered() == 0 {
			if _, err := s.br.Peek(1); err != nil {
				if errors.Is(err, io.EOF) && len(s.line) > 0 {
					return s.line, nil
				}
				return nil, err
			}
		}
		b, _ := s.br.Peek(s.br.Buffered())
		if s.skipLF {
			s.skipLF = false
			if b[0] == '\n' {
				_, _ = s.br.Discard(1)
				continue
			}
		}
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			i = len(b)
		}
		if j := bytes.IndexByte(b[:i], '\r'); j >= 0 {
			i = j
		}
		s.line = append(s.line, b[:i]...)
		if len(s.line) > maxEvent {
			return nil, errTooLarge
		}
		if i == len(b) {
			_, _ = s.br.Discard(i)
			continue
		}
		s.skipLF = b[i] == '\r'
		_, _ = s.br.Discard(i + 1)
		return s.line, nil
	}
}
