package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// The three envelope types of a Message (L014).
const (
	TypeSessionMeta = "session_meta"
	TypeModel       = "model_msg"
	TypeEvent       = "event_msg"
)

// timeLayout is ISO 8601 in UTC with milliseconds (L014).
const timeLayout = "2006-01-02T15:04:05.000Z"

// ErrMessage is wrapped by every error of Decode.
var ErrMessage = errors.New("not a rookery message")

// A Message is one entry of the output and, unless it is a partial, of the trace (L014).
//
// A decoded Message remembers the bytes it came from and is encoded as those
// bytes, so that fields this version does not know survive. Change a message with
// With and WithOrigin, which forget them, and not by assignment.
type Message struct {
	Timestamp time.Time
	// Origin names the child sessions a message passed through, outer to inner;
	// nil for the session's own.
	Origin  []string
	Payload Payload

	line []byte // as decoded or sealed; nil for a new message
}

// New returns a message of this instant, cut to the wire's milliseconds.
func New(p Payload) Message {
	return Message{Timestamp: time.Now().UTC().Truncate(time.Millisecond), Payload: p}
}

// Type returns the envelope type, which the payload decides.
func (m Message) Type() string {
	if m.Payload == nil {
		return ""
	}
	return m.Payload.class()
}

// Kind returns the payload's type word, "session_meta" for a SessionMeta.
func (m Message) Kind() string {
	if m.Payload == nil {
		return ""
	}
	return m.Payload.Kind()
}

// With returns the message with another payload.
func (m Message) With(p Payload) Message {
	m.Payload, m.line = p, nil
	return m
}

// WithOrigin returns the message as a parent session forwards it: child is put
// in front of the origin chain (L139).
func (m Message) WithOrigin(child string) Message {
	m.Origin = append([]string{child}, m.Origin...)
	m.line = nil
	return m
}

// Sealed returns the message with its encoding kept, so that trace, output and
// request share one encoding. The result must not be changed by assignment.
func (m Message) Sealed() Message {
	if m.line == nil {
		m.line = m.encode()
	}
	return m
}

// Encode returns the message as one line of JSON without the newline. The bytes
// may be shared: callers must not change them.
func (m Message) Encode() []byte {
	if m.line != nil {
		return m.line
	}
	return m.encode()
}

type envelope struct {
	Timestamp string          `json:"timestamp"`
	Type      string          `json:"type"`
	Payload   json.RawMessage `json:"payload"`
	Origin    []string        `json:"origin,omitempty"`
}

func (m Message) encode() []byte {
	if b := m.encodePlain(); b != nil {
		return b
	}
	return mustEncode(envelope{
		Timestamp: m.Timestamp.UTC().Format(timeLayout),
		Type:      m.Type(),
		Payload:   EncodePayload(m.Payload),
		Origin:    m.Origin,
	})
}

// Decode reads one line of JSON; newlines in its white space become blanks. The
// message keeps a reference to line, which must not change afterwards. Every error wraps ErrMessage.
func Decode(line []byte) (Message, error) {
	line = bytes.TrimSpace(line)
	if m, ok := decodePlain(line); ok {
		return m, nil
	}
	if !utf8.Valid(line) {
		line = bytes.ToValidUTF8(line, []byte("\ufffd"))
	}
	if bytes.ContainsAny(line, "\n\r") { // between tokens, or it is no JSON
		line = bytes.Map(oneLine, line)
	}
	var e envelope
	if err := json.Unmarshal(line, &e); err != nil {
		return Message{}, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	at, err := time.Parse(time.RFC3339Nano, e.Timestamp)
	if err != nil {
		return Message{}, fmt.Errorf("%w: timestamp %.40q is not ISO 8601", ErrMessage, e.Timestamp)
	}
	p, err := decodePayload(e.Type, e.Payload)
	if err != nil {
		return Message{}, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	if len(e.Origin) == 0 {
		e.Origin = nil
	}
	return Message{Timestamp: at.UTC(), Origin: e.Origin, Payload: p, line: line}, nil
}

func oneLine(r rune) rune {
	if r == '\n' || r == '\r' {
		return ' '
	}
	return r
}

// MarshalJSON is Encode for callers that embed a message in other JSON, which may
// re-format it.
func (m Message) MarshalJSON() ([]byte, error) { return m.Encode(), nil }

// UnmarshalJSON is Decode on a copy of b.
func (m *Message) UnmarshalJSON(b []byte) error {
	d, err := Decode(bytes.Clone(b))
	if err != nil {
		return err
	}
	*m = d
	return nil
}

// EncodeLines joins messages into the newline separated form of a frame.
func EncodeLines(ms []Message) []byte {
	var b bytes.Buffer
	for i, m := range ms {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.Write(m.Encode())
	}
	return b.Bytes()
}

// DecodeLines reads what EncodeLines wrote. It stops at the first bad line; the
// error names its number, counted from 1.
func DecodeLines(b []byte) ([]Message, error) {
	var ms []Message
	n := 0
	for line := range bytes.SplitSeq(b, []byte("\n")) {
		n++
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		m, err := Decode(line)
		if err != nil {
			return ms, fmt.Errorf("line %d: %w", n, err)
		}
		ms = append(ms, m)
	}
	return ms, nil
}

// mustEncode is json.Marshal without HTML escapes. Our own types always encode.
func mustEncode(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("protocol: encode %T: %v", v, err))
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
