package protocol

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
)

// A Payload is the body of a Message. The set is closed: a type this version does
// not know is an Unknown.
//
//sumtype:decl
type Payload interface {
	// Kind is the payload's "type" on the wire.
	Kind() string
	class() string
}

// A StopReason says how a segment, a call or a request ended (L024).
type StopReason string

// The five stop reasons.
const (
	Completed StopReason = "completed"
	Failed    StopReason = "failed"
	Aborted   StopReason = "aborted"
	Timeout   StopReason = "timeout"
	Malformed StopReason = "malformed"
)

// A Role says whose a model message is.
type Role string

// The two roles.
const (
	User      Role = "user"
	Assistant Role = "assistant"
)

// An EventType is the position of a partial in its segment (L022).
type EventType string

// The three positions.
const (
	Start EventType = "start"
	Delta EventType = "delta"
	Stop  EventType = "stop"
)

// Fidelity is what a provider wants back verbatim. Nobody but the model adapter
// looks inside (L032).
type Fidelity = json.RawMessage

type (
	// SessionMeta opens every trace context (L015). It has no inner type.
	SessionMeta struct {
		SessionID          string          `json:"session_id"`
		Provider           string          `json:"provider"`
		ModelID            string          `json:"model_id"`
		ModelContextWindow ContextWindow   `json:"model_context_window"`
		SystemPrompt       string          `json:"system_prompt"`
		Tools              []ToolSpec      `json:"tools"`
		AgentState         json.RawMessage `json:"agent_state"`
		Workspace          string          `json:"workspace"`
		Source             string          `json:"source,omitempty"` // subagent, schedule; empty = user
	}

	// ToolSpec is a tool as the model sees it. Parameters is a JSON Schema.
	ToolSpec struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters,omitempty"`
	}

	// Text is a complete text of either role (L016).
	Text struct {
		Role       Role       `json:"role"`
		Text       string     `json:"text"`
		StopReason StopReason `json:"stop_reason,omitempty"`
		Fidelity   Fidelity   `json:"fidelity,omitempty"`
	}

	// Thinking is a complete thinking segment (L017).
	Thinking struct {
		Role       Role       `json:"role"`
		Thinking   string     `json:"thinking"`
		StopReason StopReason `json:"stop_reason,omitempty"`
		Fidelity   Fidelity   `json:"fidelity,omitempty"`
	}

	// ToolCall is a complete call of a tool (L018). Arguments is a JSON text.
	ToolCall struct {
		Role       Role       `json:"role"`
		Name       string     `json:"name"`
		Arguments  string     `json:"arguments"`
		ToolCallID string     `json:"tool_call_id"`
		StopReason StopReason `json:"stop_reason,omitempty"`
		Fidelity   Fidelity   `json:"fidelity,omitempty"`
	}

	// ToolCallOutput is what a call returned (L019). Images are data URLs.
	ToolCallOutput struct {
		Role       Role       `json:"role"`
		Output     string     `json:"output"`
		Images     []string   `json:"images,omitempty"`
		ToolCallID string     `json:"tool_call_id"`
		StopReason StopReason `json:"stop_reason,omitempty"`
	}

	// ImageURL is an image the user sent, as a web or data URL (L020).
	ImageURL struct {
		Role       Role       `json:"role"`
		ImageURL   string     `json:"image_url"`
		StopReason StopReason `json:"stop_reason,omitempty"`
	}

	// InlineData is binary content of either role; Data is base64 (L020).
	InlineData struct {
		Role       Role       `json:"role"`
		Data       string     `json:"data"`
		MimeType   string     `json:"mime_type"`
		StopReason StopReason `json:"stop_reason,omitempty"`
	}

	// InlineThinking is thinking in binary form (L020).
	InlineThinking struct {
		Role       Role       `json:"role"`
		Data       string     `json:"data,omitempty"`
		MimeType   string     `json:"mime_type,omitempty"`
		StopReason StopReason `json:"stop_reason,omitempty"`
		Fidelity   Fidelity   `json:"fidelity,omitempty"`
	}

	// PartialText is a fragment of a Text (L021).
	PartialText struct {
		Role       Role       `json:"role"`
		EventType  EventType  `json:"event_type"`
		Text       string     `json:"text"`
		StopReason StopReason `json:"stop_reason,omitempty"`
	}

	// PartialThinking is a fragment of a Thinking (L021).
	PartialThinking struct {
		Role       Role       `json:"role"`
		EventType  EventType  `json:"event_type"`
		Thinking   string     `json:"thinking"`
		StopReason StopReason `json:"stop_reason,omitempty"`
	}

	// PartialToolCall is a fragment of a ToolCall: the name on start only, the
	// same id on all, Arguments is the increment (L021, L023).
	PartialToolCall struct {
		Role       Role       `json:"role"`
		EventType  EventType  `json:"event_type"`
		Name       string     `json:"name"`
		Arguments  string     `json:"arguments"`
		ToolCallID string     `json:"tool_call_id"`
		StopReason StopReason `json:"stop_reason,omitempty"`
	}

	// PartialToolCallOutput is a fragment of a ToolCallOutput; images ride one
	// single delta (L021, L023).
	PartialToolCallOutput struct {
		Role       Role       `json:"role"`
		EventType  EventType  `json:"event_type"`
		Output     string     `json:"output"`
		Images     []string   `json:"images,omitempty"`
		ToolCallID string     `json:"tool_call_id"`
		StopReason StopReason `json:"stop_reason,omitempty"`
	}

	// Unknown is a payload of a type this version does not know. Readers pass
	// over it; it is encoded as it came.
	Unknown struct {
		Type string // envelope type
		Name string // payload type
		Raw  json.RawMessage
	}
)

// Kind implements Payload.
func (SessionMeta) Kind() string { return "session_meta" }

// Kind implements Payload.
func (Text) Kind() string { return "text" }

// Kind implements Payload.
func (Thinking) Kind() string { return "thinking" }

// Kind implements Payload.
func (ToolCall) Kind() string { return "tool_call" }

// Kind implements Payload.
func (ToolCallOutput) Kind() string { return "tool_call_output" }

// Kind implements Payload.
func (ImageURL) Kind() string { return "image_url" }

// Kind implements Payload.
func (InlineData) Kind() string { return "inline_data" }

// Kind implements Payload.
func (InlineThinking) Kind() string { return "inline_thinking" }

// Kind implements Payload.
func (PartialText) Kind() string { return "partial_text" }

// Kind implements Payload.
func (PartialThinking) Kind() string { return "partial_thinking" }

// Kind implements Payload.
func (PartialToolCall) Kind() string { return "partial_tool_call" }

// Kind implements Payload.
func (PartialToolCallOutput) Kind() string { return "partial_tool_call_output" }

// Kind implements Payload.
func (u Unknown) Kind() string { return u.Name }

func (SessionMeta) class() string           { return TypeSessionMeta }
func (Text) class() string                  { return TypeModel }
func (Thinking) class() string              { return TypeModel }
func (ToolCall) class() string              { return TypeModel }
func (ToolCallOutput) class() string        { return TypeModel }
func (ImageURL) class() string              { return TypeModel }
func (InlineData) class() string            { return TypeModel }
func (InlineThinking) class() string        { return TypeModel }
func (PartialText) class() string           { return TypeModel }
func (PartialThinking) class() string       { return TypeModel }
func (PartialToolCall) class() string       { return TypeModel }
func (PartialToolCallOutput) class() string { return TypeModel }
func (u Unknown) class() string             { return u.Type }

// known maps envelope type and kind to the Go type of the payload.
//
//nolint:gochecknoglobals // a table of constants
var known = table(
	SessionMeta{},
	Text{}, Thinking{}, ToolCall{}, ToolCallOutput{}, ImageURL{}, InlineData{}, InlineThinking{},
	PartialText{}, PartialThinking{}, PartialToolCall{}, PartialToolCallOutput{},
	RequestBegin{}, RequestEnd{}, TokenUsage{}, ApprovalDecision{}, CompactionBegin{}, CompactionEnd{}, Abort{}, Subagent{},
	TaskBegin{}, TaskEnd{}, ApprovalRequest{}, ApprovalClosed{}, AbortRequested{}, SteeringQueued{},
	CallDispatched{}, Waiting{}, CallFate{}, ReplyReceived{}, Takeover{}, Retry{},
)

func table(ps ...Payload) map[[2]string]reflect.Type {
	t := make(map[[2]string]reflect.Type, len(ps))
	for _, p := range ps {
		t[[2]string{p.class(), p.Kind()}] = reflect.TypeOf(p)
	}
	return t
}

// EncodePayload returns the payload's JSON object with its "type" in front; a
// SessionMeta has none, an Unknown is what it was. Embedded JSON that is none is
// left out, and so is fidelity without a key (L032).
func EncodePayload(p Payload) json.RawMessage {
	switch v := p.(type) {
	case nil:
		return json.RawMessage("null")
	case Unknown:
		return orNull(v.Raw)
	case SessionMeta:
		return encodeMeta(v)
	case Text:
		v.Fidelity = withKeys(v.Fidelity)
		p = v
	case Thinking:
		v.Fidelity = withKeys(v.Fidelity)
		p = v
	case ToolCall:
		v.Fidelity = withKeys(v.Fidelity)
		p = v
	case InlineThinking:
		v.Fidelity = withKeys(v.Fidelity)
		p = v
	default:
	}
	body := mustEncode(p)
	b := make([]byte, 0, len(body)+len(p.Kind())+12)
	b = append(b, `{"type":"`...)
	b = append(b, p.Kind()...)
	b = append(b, '"')
	if len(body) > 2 {
		b = append(b, ',')
	}
	return append(b, body[1:]...)
}

func encodeMeta(m SessionMeta) json.RawMessage {
	tools := make([]ToolSpec, len(m.Tools))
	for i, t := range m.Tools {
		if !json.Valid(t.Parameters) {
			t.Parameters = nil
		}
		tools[i] = t
	}
	m.Tools, m.AgentState = tools, orNull(m.AgentState)
	return mustEncode(m)
}

func orNull(raw json.RawMessage) json.RawMessage {
	if !json.Valid(raw) {
		return json.RawMessage("null")
	}
	return raw
}

// withKeys returns raw if it is an object with at least one key, else nil.
func withKeys(raw json.RawMessage) json.RawMessage {
	b := bytes.TrimSpace(raw)
	if len(b) < 2 || b[0] != '{' || len(bytes.TrimSpace(b[1:len(b)-1])) == 0 || !json.Valid(b) {
		return nil
	}
	return raw
}

// DecodePayload reads a model or event payload by its inner type.
func DecodePayload(raw json.RawMessage) (Payload, error) {
	var probe struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(raw, &probe); err != nil {
		return nil, fmt.Errorf("payload: %w", err)
	}
	for _, class := range []string{TypeModel, TypeEvent} {
		if _, ok := known[[2]string{class, probe.Type}]; ok {
			return decodePayload(class, raw)
		}
	}
	return Unknown{Type: TypeEvent, Name: probe.Type, Raw: raw}, nil
}

func decodePayload(class string, raw json.RawMessage) (Payload, error) {
	if class == "" {
		return nil, fmt.Errorf("no envelope type")
	}
	if len(raw) == 0 {
		raw = json.RawMessage("null")
	}
	kind := TypeSessionMeta
	if class != TypeSessionMeta {
		var probe struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal(raw, &probe); err != nil {
			return nil, fmt.Errorf("payload of %.40q: %w", class, err)
		}
		kind = probe.Type
	}
	t, ok := known[[2]string{class, kind}]
	if !ok {
		return Unknown{Type: class, Name: kind, Raw: raw}, nil
	}
	if bytes.Equal(raw, []byte("null")) {
		return nil, fmt.Errorf("%s without payload", kind)
	}
	v := reflect.New(t)
	if err := json.Unmarshal(raw, v.Interface()); err != nil {
		return nil, fmt.Errorf("payload %s: %w", kind, err)
	}
	return v.Elem().Interface().(Payload), nil
}

// ContextWindow is a model's context size in tokens; 0 is "unknown" on the wire.
type ContextWindow int

// MarshalJSON writes a number, or "unknown".
func (w ContextWindow) MarshalJSON() ([]byte, error) {
	if w <= 0 {
		return []byte(`"unknown"`), nil
	}
	return fmt.Appendf(nil, "%d", int(w)), nil
}

// UnmarshalJSON reads a number; any string is unknown.
func (w *ContextWindow) UnmarshalJSON(b []byte) error {
	*w = 0
	if len(b) > 0 && b[0] == '"' {
		return nil
	}
	var n float64
	if err := json.Unmarshal(b, &n); err != nil {
		return err
	}
	*w = ContextWindow(n)
	return nil
}

// Payloads is a list of payloads on the wire, such as a prompt.
type Payloads []Payload

// MarshalJSON writes each payload with its type.
func (ps Payloads) MarshalJSON() ([]byte, error) {
	raws := make([]json.RawMessage, len(ps))
	for i, p := range ps {
		raws[i] = EncodePayload(p)
	}
	return mustEncode(raws), nil
}

// UnmarshalJSON reads each payload by its type.
func (ps *Payloads) UnmarshalJSON(b []byte) error {
	var raws []json.RawMessage
	if err := json.Unmarshal(b, &raws); err != nil {
		return err
	}
	*ps = make(Payloads, len(raws))
	for i, raw := range raws {
		p, err := DecodePayload(raw)
		if err != nil {
			return fmt.Errorf("payload %d: %w", i, err)
		}
		(*ps)[i] = p
	}
	return nil
}
