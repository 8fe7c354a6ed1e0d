package llm

import (
	"crypto/sha256"
	"encoding/json"
	"math/big"
	"strings"

	"rookery/protocol"
)

// The messages of a request on the wire. Content is a string or a list of parts;
// providers refuse an empty one, so it is then left out.
type (
	wireMessage struct {
		Role             string            `json:"role"`
		Content          any               `json:"content,omitempty"`
		ReasoningContent string            `json:"reasoning_content,omitempty"`
		Reasoning        string            `json:"reasoning,omitempty"`
		ReasoningText    string            `json:"reasoning_text,omitempty"`
		Details          []json.RawMessage `json:"reasoning_details,omitempty"`
		Extra            json.RawMessage   `json:"extra_content,omitempty"`
		ToolCalls        []wireCall        `json:"tool_calls,omitempty"`
		ToolCallID       string            `json:"tool_call_id,omitempty"`
	}
	wireCall struct {
		ID       string           `json:"id"`
		Type     string           `json:"type"`
		Function wireCallFunction `json:"function"`
		Extra    json.RawMessage  `json:"extra_content,omitempty"`
	}
	wireCallFunction struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}
	wirePart struct {
		Type     string     `json:"type"`
		Text     string     `json:"text,omitempty"`
		ImageURL *wireImage `json:"image_url,omitempty"`
	}
	wireImage struct {
		URL string `json:"url"`
	}
	wireTool struct {
		Type     string           `json:"type"`
		Function wireToolFunction `json:"function"`
	}
	wireToolFunction struct {
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		Parameters  json.RawMessage `json:"parameters,omitempty"`
	}
)

func wireTools(specs []protocol.ToolSpec) []wireTool {
	tools := make([]wireTool, len(specs))
	for i, s := range specs {
		tools[i] = wireTool{"function", wireToolFunction(s)}
	}
	return tools
}

func imagePart(url string) wirePart { return wirePart{Type: "image_url", ImageURL: &wireImage{url}} }

// A transcript turns payloads into wire messages. A group is what becomes one
// message, or one answer to calls: a reply of the model; a user text with the
// images behind it; outputs with their images.
type transcript struct {
	cfg    *Config
	out    []byte
	tokens float64
	count  int  // of messages, those before out included
	seen   int  // payloads added
	closed mark // after the last group that is complete

	group  group
	msg    wireMessage
	text   strings.Builder // of a reply
	think  map[string]string
	images []wirePart // of outputs: they follow the last of them
	ids    map[string]string
}

// A mark is a place between two groups.
type mark struct {
	taken  int // payloads before it
	size   int // bytes of out
	count  int
	tokens float64
}

type group int

const (
	noGroup group = iota
	userGroup
	replyGroup
	outputGroup
)

// add takes the next payload.
func (t *transcript) add(p protocol.Payload) {
	switch p := p.(type) {
	case protocol.Text:
		if p.Role == protocol.Assistant {
			t.reply(func() { t.replyText(p) })
		} else if p.Text != "" {
			t.begin(userGroup)
			t.msg.Content = p.Text
		}
	case protocol.Thinking:
		t.reply(func() { t.replyThinking(p) })
	case protocol.ToolCall:
		if p.StopReason == protocol.Completed || p.StopReason == "" {
			t.reply(func() { t.replyCall(p) })
		}
	case protocol.ToolCallOutput:
		t.output(p)
	case protocol.ImageURL:
		t.image(imagePart(p.ImageURL))
	case protocol.InlineData:
		t.inline(p)
	default: // of no other kind the provider knows
	}
	t.seen++
}

func (t *transcript) begin(g group) {
	t.close()
	t.group = g
}

// close writes the group.
func (t *transcript) close() {
	switch t.group {
	case noGroup:
	case userGroup:
		t.msg.Role = "user"
		t.write(t.msg)
	case replyGroup:
		t.closeReply()
	case outputGroup:
		if len(t.images) > 0 {
			t.write(wireMessage{Role: "user", Content: t.images})
		}
	}
	t.group, t.msg, t.images, t.think = noGroup, wireMessage{}, nil, nil
	t.text.Reset()
	t.closed = mark{t.seen, len(t.out), t.count, t.tokens}
}

func (t *transcript) write(m wireMessage) {
	b, err := encodeJSON(m)
	if err != nil { // a raw member that is no JSON: the message goes without
		m.Extra, m.Details = nil, nil
		for i := range m.ToolCalls {
			m.ToolCalls[i].Extra = nil
		}
		b, _ = encodeJSON(m)
	}
	if t.count > 0 {
		t.out = append(t.out, ',')
	}
	t.out = append(t.out, b...)
	t.count++
	t.tokens += tokensOf(m, b)
}

// tokensOf estimates a message; an image costs about the same whatever its bytes.
func tokensOf(m wireMessage, encoded []byte) float64 {
	parts, ok := m.Content.([]wirePart)
	if !ok {
		return estimate(string(encoded))
	}
	var n float64
	for _, p := range parts {
		if p.ImageURL != nil {
			n += 1000
		}
		n += estimate(p.Text)
	}
	return n
}

func (t *transcript) reply(add func()) {
	if t.group != replyGroup {
		t.begin(replyGroup)
		t.ids = map[string]string{}
	}
	add()
}

func (t *transcript) replyText(p protocol.Text) {
	t.text.WriteString(p.Text)
	if f := readFidelity(p.Fidelity, t.cfg); f.Extra != nil {
		t.msg.Extra = f.Extra
	}
}

// replyThinking keeps thinking for the field it goes back in, if it does.
func (t *transcript) replyThinking(p protocol.Thinking) {
	f := readFidelity(p.Fidelity, t.cfg)
	switch {
	case t.cfg.ReplayReasoning == ReplayNever:
		return
	case t.cfg.ReplayReasoning == ReplayAlways && f.Field == "":
		f.Field = "reasoning_content"
	}
	t.msg.Details = append(t.msg.Details, f.Details...)
	if f.Field != "" {
		if t.think == nil {
			t.think = map[string]string{}
		}
		t.think[f.Field] += p.Thinking
	}
}

func (t *transcript) replyCall(p protocol.ToolCall) {
	f := readFidelity(p.Fidelity, t.cfg)
	id := protocol.ProviderCallID(p.ToolCallID)
	if f.ID != "" {
		id = f.ID
	}
	if t.cfg.IDRule == IDAlnum9 {
		id = alnum9(id, p.ToolCallID)
	}
	t.ids[p.ToolCallID] = id
	args := p.Arguments
	if strings.TrimSpace(args) == "" {
		args = "{}"
	}
	t.msg.ToolCalls = append(t.msg.ToolCalls, wireCall{
		ID: id, Type: "function", Function: wireCallFunction{p.Name, args}, Extra: f.Extra,
	})
}

// closeReply writes the reply; one that has neither text nor calls is left out.
func (t *transcript) closeReply() {
	m := t.msg
	m.Role = "assistant"
	if t.text.Len() > 0 {
		m.Content = t.text.String()
	}
	if m.Content == nil && m.ToolCalls == nil {
		return
	}
	m.ReasoningContent, m.Reasoning, m.ReasoningText = t.think["reasoning_content"], t.think["reasoning"], t.think["reasoning_text"]
	t.write(m)
}

func (t *transcript) output(p protocol.ToolCallOutput) {
	if t.group != outputGroup {
		t.begin(outputGroup)
	}
	id, ok := t.ids[p.ToolCallID]
	if !ok {
		id = protocol.ProviderCallID(p.ToolCallID)
	}
	out := p.Output
	if out == "" {
		out = protocol.NoteNoOutput
	}
	t.write(wireMessage{Role: "tool", Content: out, ToolCallID: id})
	for _, url := range p.Images {
		t.images = append(t.images, imagePart(url))
	}
}

// image adds to the user message before it, or makes one.
func (t *transcript) image(part wirePart) {
	if t.group != userGroup {
		t.begin(userGroup)
	}
	switch c := t.msg.Content.(type) {
	case string:
		t.msg.Content = []wirePart{{Type: "text", Text: c}, part}
	case []wirePart:
		t.msg.Content = append(c, part)
	default:
		t.msg.Content = []wirePart{part}
	}
}

func (t *transcript) inline(p protocol.InlineData) {
	if p.Role == protocol.Assistant {
		return
	}
	if strings.HasPrefix(p.MimeType, "image/") {
		t.image(imagePart("data:" + p.MimeType + ";base64," + p.Data))
		return
	}
	t.image(wirePart{Type: "text", Text: "[attachment of type " + p.MimeType + " left out: the endpoint takes images only]"})
}

// alnum9 returns id when it is nine letters and digits, else such an id made of
// unique, always the same.
func alnum9(id, unique string) string {
	if len(id) == 9 && strings.Trim(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789") == "" {
		return id
	}
	sum := sha256.Sum256([]byte(unique))
	s := new(big.Int).SetBytes(sum[:]).Text(62)
	return s[len(s)-9:]
}
