package llm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"

	"rookery/internal/engine"
	"rookery/protocol"
)

// Features that an endpoint may refuse; see Client.learn.
const (
	featureUsage     = "stream_options"
	featureMaxTokens = "max_tokens field"
	featureThinking  = "reasoning_effort " // + level
)

// A body is the JSON of a request: the head, which a session's requests share,
// the messages, and a tail with what may differ between requests.
type body struct {
	parts  [][]byte
	tokens float64 // estimate of what the model reads
}

func (b *body) size() (n int64) {
	for _, p := range b.parts {
		n += int64(len(p))
	}
	return n
}

func (b *body) reader() io.ReadCloser {
	rs := make([]io.Reader, len(b.parts))
	for i, p := range b.parts {
		rs[i] = bytes.NewReader(p)
	}
	return io.NopCloser(io.MultiReader(rs...))
}

// attach makes b the body of req.
func (b *body) attach(req *http.Request) {
	req.Body, req.ContentLength = b.reader(), b.size()
	req.GetBody = func() (io.ReadCloser, error) { return b.reader(), nil }
}

// encode builds the body of a request. Members are in a fixed order and the
// messages come last but for what a single request may change, so that each
// request begins with the bytes of the one before (L132).
func (c *Client) encode(req engine.Request) (*body, error) {
	head, err := c.head(req)
	if err != nil {
		return nil, err
	}
	tail, err := c.tail(req)
	if err != nil {
		return nil, err
	}
	msgs, tokens := c.messages(req)
	return &body{
		parts:  append(append([][]byte{head}, msgs...), tail),
		tokens: tokens + estimate(string(head)),
	}, nil
}

type member struct {
	key   string
	value any
}

func (c *Client) head(req engine.Request) ([]byte, error) {
	cfg := &c.cfg
	ms := []member{{"model", cfg.Model}, {"stream", true}}
	if on(cfg.StreamUsage) && !c.refuses(featureUsage) {
		ms = append(ms, member{"stream_options", json.RawMessage(`{"include_usage":true}`)})
	}
	if len(req.Tools) > 0 {
		tools, err := c.tools.encode(req.Tools)
		if err != nil {
			return nil, err
		}
		ms = append(ms, member{"tools", tools})
		if cfg.ParallelToolCalls != nil {
			ms = append(ms, member{"parallel_tool_calls", *cfg.ParallelToolCalls})
		}
	}
	if cfg.Temperature != nil {
		ms = append(ms, member{"temperature", *cfg.Temperature})
	}
	ms = slices.DeleteFunc(ms, func(m member) bool { return has(cfg.ExtraBody, m.key) })
	ms = append(ms, sorted(cfg.ExtraBody)...)
	b, err := appendMembers([]byte("{"), ms)
	return append(b, `,"messages":[`...), err
}

func (c *Client) tail(req engine.Request) ([]byte, error) {
	cfg := &c.cfg
	var ms []member
	if req.MaxTokens > 0 {
		ms = append(ms, member{c.maxTokensField(), req.MaxTokens})
	}
	switch {
	case req.Thinking == "" || c.refuses(featureThinking+req.Thinking):
	case cfg.ThinkingBody != nil:
		ms = append(ms, sorted(cfg.ThinkingBody[req.Thinking])...)
	default:
		ms = append(ms, member{"reasoning_effort", req.Thinking})
	}
	ms = slices.DeleteFunc(ms, func(m member) bool { return has(cfg.ExtraBody, m.key) })
	b := []byte("]")
	if len(ms) > 0 {
		b = append(b, ',')
	}
	b, err := appendMembers(b, ms)
	return append(b, '}'), err
}

func (c *Client) maxTokensField() string {
	field := c.cfg.MaxTokensField
	if !c.refuses(featureMaxTokens) {
		return field
	}
	if field == "max_tokens" {
		return "max_completion_tokens"
	}
	return "max_tokens"
}

func appendMembers(b []byte, ms []member) ([]byte, error) {
	for i, m := range ms {
		if i > 0 {
			b = append(b, ',')
		}
		v, ok := m.value.(encoded)
		if !ok {
			var err error
			if v, err = encodeJSON(m.value); err != nil {
				return nil, fmt.Errorf("%w: encode %s: %w", errBuild, m.key, err)
			}
		}
		b = append(appendString(b, m.key), ':')
		b = append(b, v...)
	}
	return b, nil
}

// encoded is JSON that is ready to be sent.
type encoded []byte

// A toolList keeps the encoding of the last tools that were sent, which mostly are
// those of the next request. It is used only for tools that are equal.
type toolList struct {
	mu    sync.Mutex // requests run at once
	specs []protocol.ToolSpec
	json  encoded
}

func (l *toolList) encode(specs []protocol.ToolSpec) (encoded, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.EqualFunc(l.specs, specs, sameTool) {
		return l.json, nil
	}
	b, err := encodeJSON(wireTools(specs))
	if err != nil {
		return nil, fmt.Errorf("%w: encode tools: %w", errBuild, err)
	}
	l.specs, l.json = slices.Clone(specs), b
	return b, nil
}

// sameTool compares tools; equal ones mostly share their texts.
func sameTool(a, b protocol.ToolSpec) bool {
	return a.Name == b.Name && a.Description == b.Description && bytes.Equal(a.Parameters, b.Parameters)
}

// encodeJSON is json.Marshal without HTML escapes: models read the text.
func encodeJSON(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

func appendString(b []byte, s string) []byte {
	q, _ := encodeJSON(s) // strings always encode
	return append(b, q...)
}

func has(m map[string]any, key string) bool {
	_, ok := m[key]
	return ok
}

func sorted(m map[string]any) []member {
	var ms []member
	for _, k := range slices.Sorted(maps.Keys(m)) {
		ms = append(ms, member{k, m[k]})
	}
	return ms
}

// checkExtras refuses members that rookery must write itself, and values that
// are no JSON.
func (c Config) checkExtras() error {
	for _, extra := range append(slices.Collect(maps.Values(c.ThinkingBody)), c.ExtraBody) {
		for k, v := range extra {
			if slices.Contains([]string{"model", "messages", "tools", "stream", "n"}, k) {
				return fmt.Errorf("extra member %q: rookery writes it", k)
			}
			if _, err := encodeJSON(v); err != nil {
				return fmt.Errorf("extra member %q: %w", k, err)
			}
		}
	}
	return nil
}
