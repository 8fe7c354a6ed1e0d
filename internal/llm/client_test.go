package llm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/engine"
	"rookery/internal/llm"
	"rookery/internal/llm/llmtest"
	"rookery/protocol"
)

func notations(ps []protocol.Payload) (lines []string) {
	for _, p := range ps {
		lines = append(lines, protocol.New(p).String())
	}
	return lines
}

func TestStream_EmitsInGenerationOrder(t *testing.T) {
	s := llmtest.Start(t)
	s.Reply(llmtest.Think("w", "hy"), llmtest.Text("he", "llo"), llmtest.Call("A", "t", `{"x"`, `:1}`), llmtest.Call("A", "t"), llmtest.Usage(10, 5))
	got := stream(t.Context(), t, newClient(t, s), ask("go"))
	require.Equal(t, []string{
		"partial_thinking(start)", `partial_thinking(delta:"w")`, `partial_thinking(delta:"hy")`, "partial_thinking(stop)", `thinking"why"`,
		"partial_text(start)", `partial_text(delta:"he")`, `partial_text(delta:"llo")`, "partial_text(stop)", `text[assistant]"hello"`,
		"partial_tool_call[A](start)", `partial_tool_call[A](delta:"{\"x\"")`, `partial_tool_call[A](delta:":1}")`,
		"partial_tool_call[A](stop)", "tool_call[A,completed]",
		"partial_tool_call[A#2](start)", `partial_tool_call[A#2](delta:"{}")`, "partial_tool_call[A#2](stop)", "tool_call[A#2,completed]",
	}, notations(got.payloads))
	require.Equal(t, "tool_calls", got.Finish)
}

// Calls become complete with the finish reason, not before, even if they parse.
func TestStream_CallsWaitForTheFinishReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := llmtest.StartPipe(t)
		s.Reply(llmtest.Call("A", "t", `{}`), llmtest.Hold("more"), llmtest.Finish("tool_calls"), llmtest.Hold("usage"), llmtest.Usage(1, 1))
		var ps []protocol.Payload
		done := make(chan engine.Outcome, 1)
		c := newClient(t, s)
		go func() {
			done <- c.Stream(t.Context(), ask("go"), func(p protocol.Payload) error { ps = append(ps, p); return nil })
		}()
		synctest.Wait()
		require.Len(t, ps, 2)
		s.Release("more")
		synctest.Wait()
		require.Len(t, ps, 4) // before usage came
		s.Release("usage")
		require.EqualValues(t, 2, (<-done).Usage.Total)
	})
}

// Cancel at every event of every recording: the attempt ends at once, aborted or,
// after the finish reason, completed; nothing stays open and no goroutine is left.
func TestStream_CancelledAtAnyEvent(t *testing.T) {
	for _, r := range recordings(t) {
		t.Run(r.File, func(t *testing.T) {
			evs := events(r.body)
			for n := range evs {
				sent := strings.Join(evs[:n], "")
				if strings.Contains(sent, "data: [DONE]") || strings.Contains(sent, `"error":{`) {
					break // it ends by itself
				}
				synctest.Test(t, func(t *testing.T) { cancelAfter(t, r, sent) })
			}
		})
	}
}

func cancelAfter(t *testing.T, r recording, sent string) {
	t.Helper()
	s := llmtest.StartPipe(t)
	s.Reply(llmtest.Raw(sent), llmtest.Stall())
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan engine.Outcome, 1)
	c, req := newClient(t, s), ask("go")
	var ps []protocol.Payload
	go func() {
		done <- c.Stream(ctx, req, func(p protocol.Payload) error { ps = append(ps, p); return nil })
	}()
	synctest.Wait()
	cancelled := time.Now()
	cancel(engine.ErrInterrupted)
	o := <-done
	got := fold(t, o, ps)
	require.Zero(t, time.Since(cancelled))
	if finished(sent) && r.Status == "completed" {
		require.Equal(t, protocol.Completed, got.Status)
		return
	}
	require.Equal(t, protocol.Aborted, got.Status)
	require.Contains(t, got.Message, "interrupted")
	for _, p := range got.complete {
		if c, ok := p.(protocol.ToolCall); ok {
			require.Equal(t, protocol.Aborted, c.StopReason)
		}
	}
}

func TestStream_CancelledBeforeAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := llmtest.StartPipe(t)
		s.Reply(llmtest.Hold("never"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		got := stream(ctx, t, newClient(t, s), ask("go"))
		require.Equal(t, protocol.Aborted, got.Status)
	})
}

func TestStream_ClocksRunOnlyWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := llmtest.StartPipe(t)
		s.Reply(llmtest.Text("a"), llmtest.Wait(119*time.Second), llmtest.Text("b"), llmtest.Wait(119*time.Second), llmtest.Text("c"))
		s.Reply(llmtest.Text("a"), llmtest.Stall())
		s.Reply(llmtest.Wait(time.Hour))
		c := newClient(t, s)
		slow := 0
		o := c.Stream(t.Context(), ask("go"), func(protocol.Payload) error { // a viewer that takes ten minutes
			if slow++; slow == 2 {
				time.Sleep(10 * time.Minute)
			}
			return nil
		})
		require.Equal(t, protocol.Completed, o.Status, o.Message)

		for range 2 { // in the stream, and before its first byte
			start := time.Now()
			got := stream(t.Context(), t, c, ask("go"))
			require.Equal(t, protocol.Timeout, got.Status)
			require.Equal(t, 120*time.Second, time.Since(start))
			require.Equal(t, "no byte came for 2m0s", got.Message)
		}
	})
}

func TestStream_CommentsAreNoProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := llmtest.StartPipe(t)
		s.Reply(llmtest.Text("a"), llmtest.Every(7*time.Second, ": alive\n\n"))
		start := time.Now()
		got := stream(t.Context(), t, newClient(t, s), ask("go"))
		require.Equal(t, protocol.Timeout, got.Status)
		require.Equal(t, 600*time.Second, time.Since(start))
		require.Equal(t, "a", got.text)
		require.Equal(t, "no data came for 10m0s", got.Message)
	})
}

func TestStream_WaitsForUsageAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := llmtest.StartPipe(t)
		s.Reply(llmtest.Text("a"), llmtest.Finish("stop"), llmtest.Wait(4*time.Second), llmtest.Usage(3, 2))
		s.Reply(llmtest.Text("a"), llmtest.Finish("stop"), llmtest.Wait(6*time.Second), llmtest.Usage(3, 2))
		s.Reply(llmtest.Text("a"), llmtest.Finish("stop"), llmtest.Raw("data: [DONE]\n\n"), llmtest.Stall())
		c := newClient(t, s)
		got := stream(t.Context(), t, c, ask("go"))
		require.False(t, got.Estimated)
		start := time.Now()
		got = stream(t.Context(), t, c, ask("go"))
		require.Equal(t, protocol.Completed, got.Status)
		require.True(t, got.Estimated)
		require.Equal(t, 5*time.Second, time.Since(start))
		start = time.Now()
		got = stream(t.Context(), t, c, ask("go")) // the socket stays open behind [DONE]
		require.Equal(t, protocol.Completed, got.Status)
		require.Less(t, time.Since(start), 50*time.Millisecond)
	})
}

func TestStream_AConnectionIsUsedAgain(t *testing.T) {
	s := llmtest.Start(t)
	dials := 0
	tr := llm.NewTransport(false)
	dial := tr.DialContext
	tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials++
		return dial(ctx, network, addr)
	}
	c := newClient(t, s, func(cfg *llm.Config) { cfg.Transport = tr })
	for range 5 {
		s.Reply(llmtest.Text("a"), llmtest.Usage(1, 1))
		stream(t.Context(), t, c, ask("go"))
	}
	require.Equal(t, 1, dials)
}

func TestStream_EndsWhenEmitFails(t *testing.T) {
	s := llmtest.Start(t)
	s.Reply(llmtest.Text("a", "b"), llmtest.Stall())
	emitted := 0
	o := newClient(t, s).Stream(t.Context(), ask("go"), func(protocol.Payload) error {
		emitted++
		return errors.New("log is fenced")
	})
	require.Equal(t, protocol.Aborted, o.Status)
	require.Contains(t, o.Message, "log is fenced")
	require.Equal(t, 1, emitted)
}

func TestStream_TakesTheLargerRetryAfter(t *testing.T) {
	s := llmtest.Start(t)
	s.Reply(llmtest.Status(429, "", "Retry-After", "1", "Retry-After-Ms", "0"))
	s.Reply(llmtest.Status(503, "", "Retry-After", "1", "Retry-After-Ms", "2500"))
	s.Reply(llmtest.Status(503, "", "Retry-After", "soon"))
	s.Reply(llmtest.Status(503, "", "Retry-After", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)))
	c := newClient(t, s)
	for _, want := range []time.Duration{time.Second, 2500 * time.Millisecond, 0} {
		got := stream(t.Context(), t, c, ask("go"))
		require.Equal(t, protocol.Timeout, got.Status)
		require.Equal(t, want, got.RetryAfter)
	}
	require.Greater(t, stream(t.Context(), t, c, ask("go")).RetryAfter, 50*time.Minute)
}

func TestStream_FlagsContextOverflowAndMissingModels(t *testing.T) {
	s := llmtest.Start(t)
	s.Reply(llmtest.Status(400, `{"error":{"message":"This endpoint's maximum context length is 10 tokens."}}`))
	s.Reply(llmtest.Status(400, `{"error":{"code":"context_length_exceeded","message":"too much"}}`))
	s.Reply(llmtest.Status(404, `{"error":{"code":"model_not_found","message":"no such model"}}`))
	c := newClient(t, s)
	for range 2 {
		got := stream(t.Context(), t, c, ask("go"))
		require.Equal(t, protocol.Failed, got.Status)
		require.True(t, got.ContextOverflow)
	}
	got := stream(t.Context(), t, c, ask("go"))
	require.Equal(t, protocol.CodeModel, got.Code)
	require.Equal(t, "http 404 Not Found: no such model", got.Message)
}

func TestStream_ConnectionRefusedIsATimeout(t *testing.T) {
	s, err := llmtest.NewServer()
	require.NoError(t, err)
	c := newClient(t, s)
	s.Close()
	require.Equal(t, protocol.Timeout, stream(t.Context(), t, c, ask("go")).Status)
}

func TestStream_LeavesOutWhatTheEndpointRefuses(t *testing.T) {
	s := llmtest.Start(t)
	s.Reply(llmtest.Status(400, `{"error":{"message":"Unknown parameter: 'stream_options'."}}`))
	s.Reply(llmtest.Status(400, `{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."}}`))
	s.Reply(llmtest.Status(400, `{"error":{"message":"'reasoning_effort' does not support 'none'"}}`))
	s.Reply(llmtest.Text("ok"))
	s.Reply(llmtest.Text("ok"))
	c := newClient(t, s)
	req := ask("go")
	req.MaxTokens, req.Thinking = 5, "none"
	require.Equal(t, "ok", stream(t.Context(), t, c, req).text)
	require.Equal(t, "ok", stream(t.Context(), t, c, req).text)
	reqs := s.Requests()
	require.Len(t, reqs, 5)
	for _, r := range reqs[3:] {
		require.NotContains(t, string(r.Body), "stream_options")
		require.NotContains(t, string(r.Body), "reasoning_effort")
		require.Contains(t, string(r.Body), `"max_completion_tokens":5`)
	}
}

func TestStream_CountsUsage(t *testing.T) {
	for _, c := range []struct {
		name, usage string
		want        protocol.Usage
		reasoning   int64
	}{
		{
			"plain", `{"prompt_tokens":100,"completion_tokens":20,"total_tokens":120,"prompt_tokens_details":{"cached_tokens":40},"completion_tokens_details":{"reasoning_tokens":5}}`,
			protocol.Usage{CacheRead: 40, CacheWrite: 60, Output: 20, Total: 120},
			5,
		},
		{"reasoning apart", `{"prompt_tokens":72,"completion_tokens":21,"total_tokens":171}`, protocol.Usage{CacheWrite: 72, Output: 99, Total: 171}, 0},
		{"no total", `{"prompt_tokens":7,"completion_tokens":2}`, protocol.Usage{CacheWrite: 7, Output: 2, Total: 9}, 0},
		{"cache hit", `{"prompt_tokens":7,"completion_tokens":2,"prompt_cache_hit_tokens":9}`, protocol.Usage{CacheRead: 7, Output: 2, Total: 9}, 0},
		{
			"more reasoning than output", `{"prompt_tokens":7,"completion_tokens":2,"completion_tokens_details":{"reasoning_tokens":90}}`,
			protocol.Usage{CacheWrite: 7, Output: 2, Total: 9},
			2,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := llmtest.Start(t)
			s.Reply(llmtest.Text("a"),
				llmtest.Raw(`data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}`+"\n\n"),
				llmtest.Raw(`data: {"choices":[],"usage":`+c.usage+"}\n\n"),
				llmtest.Raw(`data: {"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":-1}}`+"\n\n"))
			got := stream(t.Context(), t, newClient(t, s), ask("go"))
			require.Equal(t, c.want, *got.Usage)
			require.Equal(t, c.reasoning, got.Reasoning)
			require.False(t, got.Estimated)
		})
	}
}

func TestStream_EstimatesByWhatTheEndpointCountedBefore(t *testing.T) {
	s := llmtest.Start(t)
	c := newClient(t, s)
	req := ask(strings.Repeat("word ", 400))
	guess := func() int64 {
		s.Reply(llmtest.Text("a"))
		got := stream(t.Context(), t, c, req)
		require.True(t, got.Estimated)
		return got.Usage.CacheWrite
	}
	first := guess()
	require.InDelta(t, 530, first, 60)
	s.Reply(llmtest.Text("a"), llmtest.Usage(int(first)*3/2, 1))
	stream(t.Context(), t, c, req)
	require.InDelta(t, first*3/2, guess(), 3)
}

func TestStream_SendsBackWhatAProviderWants(t *testing.T) {
	s := llmtest.Start(t)
	s.Reply(
		llmtest.Delta(map[string]any{"reasoning": "plan ", "reasoning_details": []any{map[string]any{"type": "reasoning.text", "text": "plan ", "index": 0}}}),
		llmtest.Delta(map[string]any{"reasoning": "it", "reasoning_details": []any{map[string]any{"type": "reasoning.text", "text": "it", "index": 0}}}),
		llmtest.Delta(map[string]any{"reasoning_details": []any{map[string]any{"type": "reasoning.text", "signature": "sig", "index": 0}}}),
		llmtest.Delta(map[string]any{"tool_calls": []any{map[string]any{"index": 0, "id": "f#7", "function": map[string]any{"name": "f", "arguments": "{}"}, "extra_content": map[string]any{"google": map[string]any{"thought_signature": "x"}}}}}),
	)
	s.Reply(llmtest.Text("done"))
	c := newClient(t, s)
	req := ask("go")
	got := stream(t.Context(), t, c, req)
	require.Equal(t, "plan it", got.thinking)
	require.Len(t, got.complete, 2)

	req.History = req.Input
	for _, p := range got.complete { // through the trace
		m, err := protocol.Decode(protocol.New(p).Encode())
		require.NoError(t, err)
		req.History = append(req.History, m)
	}
	req.Input = messages(toolOutput(got.calls[0].ToolCallID, "x"))
	stream(t.Context(), t, c, req)
	want := `"reasoning":"plan it","reasoning_details":[{"index":0,"signature":"sig","text":"plan it","type":"reasoning.text"}],` +
		`"tool_calls":[{"id":"f#7","type":"function","function":{"name":"f","arguments":"{}"},"extra_content":{"google":{"thought_signature":"x"}}}]`
	require.Contains(t, string(s.Requests()[1].Body), want)

	never := client(t, func(cfg *llm.Config) { cfg.ReplayReasoning, cfg.Provider = llm.ReplayNever, c.Provider() })
	require.NotContains(t, body(t, never, req), "reasoning")
	other := client(t, func(cfg *llm.Config) { cfg.Model = "other" })
	require.NotContains(t, body(t, other, req), "sig")
	always := client(t, func(cfg *llm.Config) { cfg.ReplayReasoning = llm.ReplayAlways })
	req.History[1] = protocol.New(protocol.Thinking{Role: protocol.Assistant, Thinking: "bare"})
	require.Contains(t, body(t, always, req), `"reasoning_content":"bare"`)
}

func TestStream_KeepsNoFidelityWhereThereIsNone(t *testing.T) {
	s := llmtest.Start(t)
	s.Reply(llmtest.Text("a"), llmtest.Call("A", "t", "{}"))
	for _, p := range stream(t.Context(), t, newClient(t, s), ask("go")).complete {
		require.NotContains(t, string(protocol.EncodePayload(p)), "fidelity")
	}
}

func TestStream_KeepsAnEncryptedThoughtWithoutText(t *testing.T) {
	s := llmtest.Start(t)
	s.Reply(llmtest.Delta(map[string]any{"reasoning_details": []any{map[string]any{"type": "reasoning.encrypted", "data": "zz"}}}), llmtest.Text("a"))
	got := stream(t.Context(), t, newClient(t, s), ask("go"))
	require.Len(t, got.complete, 2)
	th, ok := got.complete[0].(protocol.Thinking)
	require.True(t, ok)
	require.Empty(t, th.Thinking)
	require.True(t, json.Valid(th.Fidelity))
	require.Contains(t, string(th.Fidelity), `"data":"zz"`)
}

func TestStream_SendsHeadersAndKey(t *testing.T) {
	s := llmtest.Start(t)
	s.Reply(llmtest.Text("a"))
	c := newClient(t, s, func(cfg *llm.Config) { cfg.ExtraHeaders = map[string]string{"X-Team": "rooks"} })
	req := ask("go")
	req.Session, req.Number = "s1", 3
	stream(t.Context(), t, c, req)
	h := s.Requests()[0].Header
	require.Equal(t, "Bearer sk-secret", h.Get("Authorization"))
	require.Equal(t, "rooks", h.Get("X-Team"))
	require.Equal(t, "s1-3", h.Get("X-Client-Request-Id"))
	require.Equal(t, "text/event-stream", h.Get("Accept"))
	require.Empty(t, h.Get("Accept-Encoding"))
}

func TestStream_ATextClosesOnASignature(t *testing.T) {
	s := llmtest.Start(t)
	s.Reply(llmtest.Text("a", "b"), llmtest.Delta(map[string]any{"extra_content": map[string]any{"sig": "x"}}), llmtest.Text("c"))
	s.Reply(llmtest.Text("d"))
	c := newClient(t, s)
	req := ask("go")
	got := stream(t.Context(), t, c, req)
	require.Equal(t, []string{`text[assistant]"ab"`, `text[assistant]"c"`}, notations(got.complete))
	req.History, req.Input = append(req.Input, messages(got.complete...)...), messages(protocol.UserText("on"))
	stream(t.Context(), t, c, req)
	require.Contains(t, string(s.Requests()[1].Body), `{"role":"assistant","content":"abc","extra_content":{"sig":"x"}}`)
}

func TestStream_ACertificateThatIsNotTrustedFails(t *testing.T) {
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	got := stream(t.Context(), t, client(t, func(cfg *llm.Config) { cfg.BaseURL = s.URL }), ask("go"))
	require.Equal(t, protocol.Failed, got.Status)
	require.Contains(t, got.Message, "certificate")
}

func TestStream_AWholeReplyThatIsCutIsMalformed(t *testing.T) {
	s := llmtest.Start(t)
	s.Reply(llmtest.Status(200, `{"choices":[{"message":{"content":"a`))
	require.Equal(t, protocol.Malformed, stream(t.Context(), t, newClient(t, s), ask("go")).Status)
}

// A turn of a session costs the same whatever its history, but for the body's size.
func BenchmarkStream(b *testing.B) {
	for _, turns := range []int{10, 1000} {
		b.Run(fmt.Sprintf("history=%d", turns), func(b *testing.B) {
			s, err := llmtest.NewServer()
			require.NoError(b, err)
			defer s.Close()
			reply := llmtest.Encode(llmtest.Text("some ", "words ", "here"), llmtest.Call("A", "f", `{"path":"x"}`), llmtest.Usage(10, 5))
			s.Static(func([]byte) []byte { return reply })
			c := newClient(b, s)
			req := ask("go")
			req.Session = "s"
			for n := range turns {
				id := fmt.Sprint(n)
				req.History = append(req.History, messages(toolOutput(id, "x"), assistant("hm"), toolCall(id, "{}"))...)
			}
			b.ReportAllocs()
			for b.Loop() {
				o := c.Stream(b.Context(), req, func(protocol.Payload) error { return nil })
				require.Equal(b, protocol.Completed, o.Status)
			}
		})
	}
}

func TestStream_BoundsTheCallsOfAReply(t *testing.T) {
	for n, want := range map[int]protocol.StopReason{512: protocol.Completed, 513: protocol.Malformed} {
		s := llmtest.Start(t)
		var steps []llmtest.Step
		for i := range n {
			steps = append(steps, llmtest.Call(fmt.Sprintf("c%d", i), "f", "{}"))
		}
		s.Reply(steps...)
		r := stream(t.Context(), t, newClient(t, s), ask("hi"))
		require.Equal(t, want, r.Status, "%d calls: %s", n, r.Message)
	}
}
