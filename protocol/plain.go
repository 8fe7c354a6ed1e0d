package protocol

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strconv"
	"time"
	"unicode/utf8"
)

// The plain form of messages is how this package writes them: members in a fixed
// order, no white space, no origin. It is written and read without going over the
// bytes several times, as encoding/json has to for what it knows nothing of. Any
// other form, and what is wrong with one, is left to encoding/json.

const (
	plainTime    = `{"timestamp":"`
	plainClass   = `","type":"`
	plainPayload = `","payload":`
	plainKind    = `{"type":"`
)

// encodePlain is nil for a message that has no plain form.
func (m Message) encodePlain() []byte {
	if _, unknown := m.Payload.(Unknown); unknown || m.Payload == nil || len(m.Origin) > 0 {
		return nil
	}
	payload := EncodePayload(m.Payload)
	b := make([]byte, 0, len(payload)+96)
	b = append(b, plainTime...)
	b = m.Timestamp.UTC().AppendFormat(b, timeLayout)
	b = append(append(b, plainClass...), m.Type()...)
	b = append(append(b, plainPayload...), payload...)
	return append(b, '}')
}

// decodePlain reads a message in its plain form; ok is false for any other line.
func decodePlain(line []byte) (m Message, ok bool) {
	stamp, rest, ok := cutPlain(line, len(timeLayout))
	if !ok || !utf8.Valid(line) || bytes.IndexByte(line, '\n') >= 0 || bytes.IndexByte(line, '\r') >= 0 {
		return m, false
	}
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return m, false
	}
	class, rest, ok := bytes.Cut(rest, []byte(plainPayload))
	if !ok || len(rest) < 2 || rest[len(rest)-1] != '}' {
		return m, false
	}
	p, ok := payloadPlain(string(class), rest[:len(rest)-1])
	return Message{Timestamp: at.UTC(), Payload: p, line: line}, ok
}

// cutPlain returns the time and what follows the beginning of the class.
func cutPlain(line []byte, n int) (stamp, rest []byte, ok bool) {
	rest, ok = bytes.CutPrefix(line, []byte(plainTime))
	if !ok || len(rest) < n {
		return nil, nil, false
	}
	stamp = rest[:n]
	rest, ok = bytes.CutPrefix(rest[n:], []byte(plainClass))
	return stamp, rest, ok
}

// payloadPlain reads a payload whose first member is its type. The decoder sees to
// it that raw is one value and nothing more.
func payloadPlain(class string, raw []byte) (Payload, bool) {
	kind := TypeSessionMeta
	if class != TypeSessionMeta {
		word, ok := bytes.CutPrefix(raw, []byte(plainKind))
		if !ok {
			return nil, false
		}
		word, _, ok = bytes.Cut(word, []byte(`"`))
		if !ok {
			return nil, false
		}
		kind = string(word)
	}
	t, ok := known[[2]string{class, kind}]
	if !ok || raw[0] != '{' {
		return nil, false
	}
	if t == reflect.TypeFor[PartialText]() { // the many
		if p, ok := partialTextPlain(raw); ok {
			return p, true
		}
	}
	v := reflect.New(t)
	if json.Unmarshal(raw, v.Interface()) != nil {
		return nil, false
	}
	return v.Elem().Interface().(Payload), true
}

// partialTextPlain reads a partial without escapes and without other members.
func partialTextPlain(raw []byte) (p PartialText, ok bool) {
	rest := raw[1:]
	for {
		key, value, tail, ok := cutMember(rest)
		if !ok || len(tail) == 0 {
			return p, false
		}
		switch string(key) {
		case "type":
		case "role":
			p.Role = Role(value)
		case "event_type":
			p.EventType = EventType(value)
		case "text":
			p.Text = string(value)
		case "stop_reason":
			p.StopReason = StopReason(value)
		default:
			return p, false
		}
		if rest = tail[1:]; tail[0] != ',' {
			return p, tail[0] == '}' && len(rest) == 0
		}
	}
}

// cutMember reads "key":"value" where neither has an escape.
func cutMember(b []byte) (key, value, rest []byte, ok bool) {
	if key, rest, ok = cutString(b); !ok || len(rest) == 0 || rest[0] != ':' {
		return nil, nil, nil, false
	}
	value, rest, ok = cutString(rest[1:])
	return key, value, rest, ok
}

func cutString(b []byte) (s, rest []byte, ok bool) {
	if len(b) == 0 || b[0] != '"' {
		return nil, nil, false
	}
	for i, c := range b[1:] {
		switch {
		case c == '"':
			return b[1 : i+1], b[i+2:], true
		case c == '\\' || c < ' ':
			return nil, nil, false
		}
	}
	return nil, nil, false
}

const (
	liveEpoch   = `{"epoch":`
	liveAfter   = `,"after":`
	liveSegment = `,"segment":"`
	liveOffset  = `,"offset":`
	liveMessage = `,"message":`
)

// encode writes a live message; those of segments are many.
func (l Live) encode() []byte {
	if l.Message == nil || l.Beat != nil || !plainWord(l.Segment) {
		return mustEncode(l)
	}
	message := l.Message.Encode()
	b := make([]byte, 0, len(message)+96)
	b = strconv.AppendUint(append(b, liveEpoch...), l.Epoch, 10)
	b = strconv.AppendUint(append(b, liveAfter...), l.After, 10)
	if l.Segment != "" {
		b = append(append(append(b, liveSegment...), l.Segment...), '"')
	}
	if l.Offset != 0 {
		b = strconv.AppendInt(append(b, liveOffset...), int64(l.Offset), 10)
	}
	return append(append(append(b, liveMessage...), message...), '}')
}

// plainWord reports that s needs no escape in JSON.
func plainWord(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c >= 0x7f || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// decodePlain reads what encode wrote of a segment; false for anything else.
func (l *Live) decodePlain(b []byte) bool {
	var out Live
	rest, ok := cutNumber(b, liveEpoch, &out.Epoch)
	if ok {
		rest, ok = cutNumber(rest, liveAfter, &out.After)
	}
	if !ok {
		return false
	}
	if word, found := bytes.CutPrefix(rest, []byte(liveSegment)); found {
		word, rest, ok = bytes.Cut(word, []byte(`"`))
		if out.Segment = string(word); !ok || !plainWord(out.Segment) {
			return false
		}
	}
	if bytes.HasPrefix(rest, []byte(liveOffset)) {
		var n uint64
		if rest, ok = cutNumber(rest, liveOffset, &n); !ok || n > 1<<31 {
			return false
		}
		out.Offset = int(n)
	}
	rest, ok = bytes.CutPrefix(rest, []byte(liveMessage))
	if !ok || len(rest) < 2 || rest[len(rest)-1] != '}' {
		return false
	}
	m, ok := decodePlain(rest[:len(rest)-1])
	if !ok {
		return false
	}
	out.Message = &m
	*l = out
	return true
}

// cutNumber reads the number behind a prefix: 0, or digits that begin with another.
func cutNumber(b []byte, prefix string, n *uint64) (rest []byte, ok bool) {
	rest, ok = bytes.CutPrefix(b, []byte(prefix))
	end := 0
	for end < len(rest) && end < 19 && rest[end] >= '0' && rest[end] <= '9' {
		*n = *n*10 + uint64(rest[end]-'0')
		end++
	}
	return rest[end:], ok && end > 0 && (end == 1 || rest[0] != '0')
}
