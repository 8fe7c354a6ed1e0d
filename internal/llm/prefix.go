package llm

import (
	"bytes"
	"slices"
	"sync"

	"rookery/internal/engine"
	"rookery/protocol"
)

// maxKept bounds the encoded histories that a client keeps, in bytes.
const maxKept = 64 << 20

// A kept is the encoding of the beginning of a session's messages. It is used
// only for messages that are equal to those it was made of, one by one.
type kept struct {
	system string
	taken  []protocol.Payload
	out    []byte
	tokens float64
	count  int
}

// prefixes keeps them by session.
type prefixes struct {
	mu   sync.Mutex
	by   map[string]*kept
	size int
}

func newPrefixes() *prefixes { return &prefixes{by: map[string]*kept{}} }

// take returns what is kept of a session and forgets it, so that nobody else
// grows it: the caller puts it back.
func (ps *prefixes) take(session string) *kept {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	k := ps.by[session]
	if k != nil {
		delete(ps.by, session)
		ps.size -= len(k.out)
	}
	return k
}

// Forget drops what is kept of a session that will not ask for a while.
func (c *Client) Forget(session string) { c.prefix.take(session) }

// put keeps k; others go when there is too much.
func (ps *prefixes) put(session string, k *kept) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if old := ps.by[session]; old != nil {
		ps.size -= len(old.out)
	}
	ps.by[session] = k
	ps.size += len(k.out)
	for id, o := range ps.by {
		if ps.size <= maxKept {
			break
		}
		delete(ps.by, id)
		ps.size -= len(o.out)
	}
}

// messages encodes system prompt, history and input, the history from what is
// kept of the session's last request where that is its beginning. It estimates
// the tokens, too.
func (c *Client) messages(req engine.Request) ([][]byte, float64) {
	k := c.prefix.take(req.Session)
	if k == nil || !k.begins(req) {
		k = newKept(&c.cfg, req.System)
	}
	t := transcript{cfg: &c.cfg, count: k.count}
	for _, m := range req.History[len(k.taken):] {
		t.add(m.Payload)
	}
	closed := t.closed
	k.grow(req.History, t.out[:closed.size], closed)
	head := k.out
	if req.Session != "" {
		c.prefix.put(req.Session, k)
	}
	for _, m := range req.Input {
		t.add(m.Payload)
	}
	t.close()
	return [][]byte{head, t.out[closed.size:]}, k.tokens + t.closed.tokens - closed.tokens
}

func newKept(cfg *Config, system string) *kept {
	t := transcript{cfg: cfg}
	if system != "" {
		t.write(wireMessage{Role: "system", Content: system})
	}
	return &kept{system: system, out: t.out, tokens: t.tokens, count: t.count}
}

// grow adds the closed groups that follow what is kept.
func (k *kept) grow(history []protocol.Message, out []byte, closed mark) {
	for _, m := range history[len(k.taken) : len(k.taken)+closed.taken] {
		k.taken = append(k.taken, m.Payload)
	}
	k.out = append(k.out, out...)
	k.tokens += closed.tokens
	if closed.taken > 0 {
		k.count = closed.count
	}
}

// begins reports that the request begins with exactly what is kept.
func (k *kept) begins(req engine.Request) bool {
	if k.system != req.System || len(k.taken) > len(req.History) {
		return false
	}
	for i, p := range k.taken {
		if !same(p, req.History[i].Payload) {
			return false
		}
	}
	return true
}

// same compares payloads. Equal ones mostly share their strings, which makes it cheap.
func same(a, b protocol.Payload) bool {
	switch a := a.(type) {
	case protocol.Text:
		b, ok := b.(protocol.Text)
		return ok && a.Role == b.Role && a.Text == b.Text && bytes.Equal(a.Fidelity, b.Fidelity)
	case protocol.Thinking:
		b, ok := b.(protocol.Thinking)
		return ok && a.Thinking == b.Thinking && bytes.Equal(a.Fidelity, b.Fidelity)
	case protocol.ToolCall:
		b, ok := b.(protocol.ToolCall)
		return ok && a.ToolCallID == b.ToolCallID && a.Name == b.Name && a.Arguments == b.Arguments &&
			a.StopReason == b.StopReason && bytes.Equal(a.Fidelity, b.Fidelity)
	case protocol.ToolCallOutput:
		b, ok := b.(protocol.ToolCallOutput)
		return ok && a.ToolCallID == b.ToolCallID && a.Output == b.Output && slices.Equal(a.Images, b.Images)
	case protocol.ImageURL:
		b, ok := b.(protocol.ImageURL)
		return ok && a == b
	case protocol.InlineData:
		b, ok := b.(protocol.InlineData)
		return ok && a == b
	default:
		return false
	}
}
