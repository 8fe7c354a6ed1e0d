package llm_test

import (
	"context"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/engine"
	"rookery/internal/llm"
	"rookery/internal/llm/llmtest"
	"rookery/protocol"
)

// A result is what one attempt emitted, folded, and its outcome.
type result struct {
	engine.Outcome
	payloads []protocol.Payload
	complete []protocol.Payload
	text     string
	thinking string
	calls    []protocol.ToolCall
}

func newClient(tb testing.TB, s *llmtest.Server, edit ...func(*llm.Config)) *llm.Client {
	tb.Helper()
	cfg := llm.Config{BaseURL: s.URL, Model: "scripted", Transport: s.Transport, APIKey: "sk-secret"}
	for _, f := range edit {
		f(&cfg)
	}
	c, err := llm.New(cfg)
	require.NoError(tb, err)
	tb.Cleanup(c.CloseIdle)
	return c
}

func ask(text string) engine.Request {
	return engine.Request{
		System: "be brief", IDs: &protocol.CallIDs{},
		Input: []protocol.Message{protocol.New(protocol.UserText(text))},
	}
}

func stream(ctx context.Context, tb testing.TB, m engine.Model, req engine.Request) result {
	tb.Helper()
	var ps []protocol.Payload
	o := m.Stream(ctx, req, func(p protocol.Payload) error {
		ps = append(ps, p)
		return nil
	})
	return fold(tb, o, ps)
}

// fold checks the discipline of partials (L022, L023, L024) and gathers the
// complete payloads.
func fold(tb testing.TB, o engine.Outcome, ps []protocol.Payload) result {
	tb.Helper()
	r := result{Outcome: o, payloads: ps}
	f := folder{t: tb, open: map[string]*openSegment{}}
	for _, p := range ps {
		switch p := p.(type) {
		case protocol.PartialText:
			f.partial("text", p.EventType, p.Text, "", p.StopReason)
		case protocol.PartialThinking:
			f.partial("thinking", p.EventType, p.Thinking, "", p.StopReason)
		case protocol.PartialToolCall:
			require.NotEmpty(tb, p.ToolCallID)
			f.partial(p.ToolCallID, p.EventType, p.Arguments, p.Name, p.StopReason)
		case protocol.Text:
			f.complete("text", p.Text, "", p.StopReason)
			r.text += p.Text
			r.complete = append(r.complete, p)
		case protocol.Thinking:
			f.complete("thinking", p.Thinking, "", p.StopReason)
			r.thinking += p.Thinking
			r.complete = append(r.complete, p)
		case protocol.ToolCall:
			f.complete(p.ToolCallID, p.Arguments, p.Name, p.StopReason)
			r.calls = append(r.calls, p)
			r.complete = append(r.complete, p)
		default:
			require.Failf(tb, "unexpected payload", "%T", p)
		}
	}
	require.Empty(tb, f.open, "segments left open")
	require.Empty(tb, f.stopped, "a stop without its complete payload")
	require.NotEmpty(tb, o.Status)
	if o.Status != protocol.Completed {
		require.NotEmpty(tb, o.Message)
		for _, c := range r.calls {
			require.NotEqual(tb, protocol.Completed, c.StopReason, "a call of a failed attempt is completed: %s", o.Message)
		}
	} else {
		require.NotNil(tb, o.Usage)
		u := *o.Usage
		require.Equal(tb, u.Total, u.CacheRead+u.CacheWrite+u.Output)
	}
	return r
}

type openSegment struct{ name, body string }

type folder struct {
	t       testing.TB
	open    map[string]*openSegment
	stopped string // the key whose complete payload must come next
	done    openSegment
	reason  protocol.StopReason
}

func (f *folder) partial(key string, at protocol.EventType, piece, name string, stop protocol.StopReason) {
	f.t.Helper()
	require.Empty(f.t, f.stopped, "a partial between a stop and its complete payload")
	require.NotEmpty(f.t, stop)
	seg := f.open[key]
	switch at {
	case protocol.Start:
		require.Nil(f.t, seg, "%s started twice", key)
		require.Empty(f.t, piece)
		f.open[key] = &openSegment{name: name}
	case protocol.Delta:
		require.NotNil(f.t, seg, "a delta of %s, which is not open", key)
		require.NotEmpty(f.t, piece)
		require.Empty(f.t, name)
		seg.body += piece
	case protocol.Stop:
		require.NotNil(f.t, seg, "a stop of %s, which is not open", key)
		require.Empty(f.t, piece+name)
		f.stopped, f.done, f.reason = key, *seg, stop
		delete(f.open, key)
	}
}

func (f *folder) complete(key, body, name string, stop protocol.StopReason) {
	f.t.Helper()
	require.Equal(f.t, f.stopped, key, "a complete payload without its stop")
	require.Equal(f.t, openSegment{name, body}, f.done)
	require.Equal(f.t, f.reason, stop)
	f.stopped = ""
}

// oneByte makes every read of a connection return one byte.
func oneByte(tb testing.TB, s *llmtest.Server) func(*llm.Config) {
	tb.Helper()
	dial := (&net.Dialer{}).DialContext
	if s.Transport != nil {
		dial = s.Transport.DialContext
	}
	tr := &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return byteConn{c}, nil
	}}
	return func(cfg *llm.Config) { cfg.Transport = tr }
}

type byteConn struct{ net.Conn }

func (c byteConn) Read(p []byte) (int, error) { return c.Conn.Read(p[:min(1, len(p))]) }
