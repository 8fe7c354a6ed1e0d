package llm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

var (
	errBadJSON = errors.New("the stream holds something that is not JSON")
	errPing    = errors.New("not a chunk")
)

// A chunk holds what is read of one event. Every field takes whatever type a
// server sends; what it can't use it leaves out.
type chunk struct {
	Object  string
	Error   json.RawMessage
	Usage   *wireUsage
	XGroq   *struct{ Usage *wireUsage } `json:"x_groq"`
	Choices []choice
}

type choice struct {
	Index   num
	Finish  str `json:"finish_reason"`
	Usage   *wireUsage
	Delta   *delta
	Message *delta
}

type delta struct {
	Content      content
	Refusal      str
	Reasoning    str             `json:"reasoning"`
	ReasoningC   str             `json:"reasoning_content"`
	ReasoningT   str             `json:"reasoning_text"`
	Summary      str             `json:"cot_summary"`
	Details      details         `json:"reasoning_details"`
	Extra        json.RawMessage `json:"extra_content"`
	FunctionCall *wireFunction   `json:"function_call"`
	ToolCalls    []callDelta     `json:"tool_calls"`
}

type callDelta struct {
	Index    *num
	ID       str
	Function *wireFunction
	Extra    json.RawMessage `json:"extra_content"`
}

type wireFunction struct {
	Name      str
	Arguments str
}

// decodeChunk reads an event. errPing is for one that says nothing to us, a
// *streamError for one that reports an error.
func decodeChunk(ev event) (*chunk, error) {
	data := bytes.TrimSpace(ev.data)
	var c chunk
	err := lenient(data, &c)
	named := ev.name != "" && ev.name != "message" && ev.name != "error"
	switch {
	case err != nil && named:
		return nil, errPing
	case err != nil && ev.name == "error":
		return nil, &streamError{message: cut(string(data), 200)}
	case err != nil:
		return nil, fmt.Errorf("%w: %s", errBadJSON, cut(string(data), 80))
	case present(c.Error):
		return &c, newStreamError(c.Error)
	case c.Object == "error", ev.name == "error":
		return &c, newStreamError(data)
	case c.Choices == nil && c.Usage == nil && c.XGroq == nil:
		return nil, errPing
	}
	return &c, nil
}

// lenient is json.Unmarshal that leaves out members of a wrong type.
func lenient(data []byte, v any) error {
	err := json.Unmarshal(data, v)
	if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return nil
	}
	return err
}

func present(raw json.RawMessage) bool {
	return len(raw) > 0 && !bytes.Equal(raw, []byte("null"))
}

// num is a number in any form: 1, 1.0, "1", null.
type num int64

func (n *num) UnmarshalJSON(b []byte) error {
	s := strings.Trim(string(b), `"`)
	if f, err := strconv.ParseFloat(s, 64); err == nil && f > -1e15 && f < 1e15 {
		*n = num(f)
	}
	return nil
}

// str is a string in any form; an object becomes its JSON, null is "". A string
// may begin or end in the middle of a surrogate pair: head is its low half at the
// start, tail its high half at the end, neither of them in s.
type str struct {
	s          string
	head, tail uint16
}

func (t *str) UnmarshalJSON(b []byte) error {
	*t = str{}
	switch {
	case len(b) == 0 || b[0] == 'n':
		return nil
	case b[0] != '"':
		var c bytes.Buffer
		if err := json.Compact(&c, b); err == nil {
			t.s = c.String()
		}
		return nil
	}
	if u, ok := surrogate(b[1:]); ok && u >= 0xDC00 {
		t.head = u
		b = append([]byte{'"'}, b[7:]...)
	}
	if n := len(b); n >= 8 && !escaped(b[:n-7]) {
		if u, ok := surrogate(b[n-7:]); ok && u < 0xDC00 {
			t.tail = u
			b = append(bytes.Clone(b[:n-7]), '"')
		}
	}
	return json.Unmarshal(b, &t.s)
}

// surrogate reads \uD800 to \uDFFF at the start of b.
func surrogate(b []byte) (uint16, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	u, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	return uint16(u), err == nil && u >= 0xD800 && u <= 0xDFFF
}

// escaped reports that b ends with an odd number of backslashes.
func escaped(b []byte) bool {
	return (len(b)-len(bytes.TrimRight(b, `\`)))%2 == 1
}

// content is text as a string, or a list of parts, each text or thinking.
type content struct {
	text  str
	parts []part
}

type part struct {
	Type     string
	Text     str
	Thinking json.RawMessage
}

func (c *content) UnmarshalJSON(b []byte) error {
	*c = content{}
	switch {
	case len(b) > 0 && b[0] == '"':
		return c.text.UnmarshalJSON(b)
	case len(b) > 0 && b[0] == '[':
		return lenient(b, &c.parts)
	}
	return nil
}

// thinking returns the text of a thinking part: a string or a list of texts.
func (p part) thinking() string {
	var list []struct{ Text str }
	if json.Unmarshal(p.Thinking, &list) == nil {
		var b strings.Builder
		for _, t := range list {
			b.WriteString(t.Text.s)
		}
		return b.String()
	}
	var s str
	_ = json.Unmarshal(p.Thinking, &s)
	return s.s
}

// cut returns at most n bytes of s, for messages.
func cut(s string, n int) string {
	if len(s) <= n {
		return strings.ToValidUTF8(s, "\ufffd")
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
