package llmtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// A Request is one that the server got.
type Request struct {
	Number   int         `json:"-"` // from 1
	Header   http.Header `json:"-"`
	Body     []byte      `json:"-"`
	Model    string      `json:"model"`
	Messages []Message   `json:"messages"`
	Tools    []Tool      `json:"tools"`
	Stream   bool        `json:"stream"`
	Effort   string      `json:"reasoning_effort"`
}

// A Message is one of a request. Content is a string or a list of parts.
type Message struct {
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"`
	Reasoning  string          `json:"reasoning_content"`
	ToolCalls  []ToolCall      `json:"tool_calls"`
	ToolCallID string          `json:"tool_call_id"`
}

// A ToolCall is one of an assistant message.
type ToolCall struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// A Tool is one that is offered.
type Tool struct {
	Type     string `json:"type"`
	Function struct {
		Name       string          `json:"name"`
		Parameters json.RawMessage `json:"parameters"`
	} `json:"function"`
}

// A Part is one of a content.
type Part struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	ImageURL struct {
		URL string `json:"url"`
	} `json:"image_url"`
}

// Text returns the text of a message, of its text parts where it has parts.
func (m Message) Text() string {
	var s string
	if json.Unmarshal(m.Content, &s) == nil {
		return s
	}
	var b strings.Builder
	for _, p := range m.Parts() {
		b.WriteString(p.Text)
	}
	return b.String()
}

// Parts returns the parts of a message whose content is a list.
func (m Message) Parts() []Part {
	var parts []Part
	_ = json.Unmarshal(m.Content, &parts)
	return parts
}

// Last returns the last message with that role, or the zero Message.
func (r Request) Last(role string) Message {
	for _, m := range slices.Backward(r.Messages) {
		if m.Role == role {
			return m
		}
	}
	return Message{}
}

// Check says what a strict provider would refuse in a request: a call that is not
// answered exactly once, in order, by the messages right behind it; empty content,
// arguments or tools; a system message that is not the first; roles that there
// are not. Its error joins all faults.
func Check(body []byte) error {
	var members map[string]json.RawMessage
	var r Request
	if err := json.Unmarshal(body, &members); err != nil {
		return fmt.Errorf("the body is not JSON: %w", err)
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return fmt.Errorf("the body is not a request: %w", err)
	}
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if r.Model == "" {
		fault("no model")
	}
	if len(r.Messages) == 0 {
		fault("no messages")
	}
	if raw, ok := members["tools"]; ok && len(r.Tools) == 0 {
		fault("tools is %s: leave it out", raw)
	}
	for _, t := range r.Tools {
		if t.Type != "function" || t.Function.Name == "" {
			fault("tool %q of type %q", t.Function.Name, t.Type)
		}
	}
	for i, m := range r.Messages {
		if err := checkMessage(i, m); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, checkPairs(r.Messages)...)...)
}

func checkMessage(i int, m Message) error {
	at := fmt.Sprintf("message %d (%s)", i, m.Role)
	empty := len(m.Content) == 0 || string(m.Content) == "null" || string(m.Content) == `""` || string(m.Content) == "[]"
	switch {
	case m.Role == "system" && i > 0:
		return fmt.Errorf("%s is not the first", at)
	case m.Role != "system" && m.Role != "user" && m.Role != "assistant" && m.Role != "tool":
		return fmt.Errorf("%s has an unknown role", at)
	case m.Role == "assistant" && len(m.ToolCalls) > 0:
		if len(m.Content) > 0 && empty {
			return fmt.Errorf("%s has empty content beside calls: leave it out", at)
		}
	case empty:
		return fmt.Errorf("%s has no content", at)
	}
	for _, c := range m.ToolCalls {
		var args map[string]json.RawMessage
		switch {
		case c.ID == "", c.Function.Name == "", c.Type != "function":
			return fmt.Errorf("%s has a call with id %q, name %q, type %q", at, c.ID, c.Function.Name, c.Type)
		case json.Unmarshal([]byte(c.Function.Arguments), &args) != nil:
			return fmt.Errorf("%s: arguments of %s are not an object: %.80q", at, c.ID, c.Function.Arguments)
		}
	}
	for _, p := range m.Parts() {
		if p.Type == "text" && p.Text == "" || p.Type == "image_url" && p.ImageURL.URL == "" {
			return fmt.Errorf("%s has an empty part", at)
		}
	}
	return nil
}

// checkPairs wants behind every message with calls one output for each, in order.
func checkPairs(ms []Message) (errs []error) {
	var open []string
	for i, m := range ms {
		if m.Role == "tool" {
			switch {
			case len(open) == 0:
				errs = append(errs, fmt.Errorf("message %d answers call %q, which is not open", i, m.ToolCallID))
			case open[0] != m.ToolCallID:
				errs = append(errs, fmt.Errorf("message %d answers call %q, but %q is next", i, m.ToolCallID, open[0]))
				open = open[1:]
			default:
				open = open[1:]
			}
			continue
		}
		if len(open) > 0 {
			errs = append(errs, fmt.Errorf("message %d (%s) comes before call %q is answered", i, m.Role, open[0]))
			open = nil
		}
		for _, c := range m.ToolCalls {
			open = append(open, c.ID)
		}
	}
	if len(open) > 0 {
		errs = append(errs, fmt.Errorf("call %q is not answered", open[0]))
	}
	return errs
}
