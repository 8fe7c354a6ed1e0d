package llm_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/engine"
	"rookery/internal/llm"
	"rookery/internal/llm/llmtest"
	"rookery/protocol"
)

func client(tb testing.TB, edit ...func(*llm.Config)) *llm.Client {
	tb.Helper()
	return newClient(tb, &llmtest.Server{URL: "http://127.0.0.1:1/v1"}, edit...)
}

func messages(ps ...protocol.Payload) (ms []protocol.Message) {
	for _, p := range ps {
		ms = append(ms, protocol.New(p))
	}
	return ms
}

func body(tb testing.TB, c *llm.Client, req engine.Request) string {
	tb.Helper()
	b, tokens, err := llm.Encode(c, req)
	require.NoError(tb, err)
	require.Positive(tb, tokens)
	require.True(tb, json.Valid(b), "%s", b)
	return string(b)
}

func toolCall(id, args string) protocol.ToolCall {
	return protocol.ToolCall{Role: protocol.Assistant, Name: "f", Arguments: args, ToolCallID: id, StopReason: protocol.Completed}
}

func toolOutput(id, out string, images ...string) protocol.ToolCallOutput {
	return protocol.ToolCallOutput{Role: protocol.User, Output: out, ToolCallID: id, Images: images, StopReason: protocol.Completed}
}

func assistant(s string) protocol.Text {
	return protocol.Text{Role: protocol.Assistant, Text: s, StopReason: protocol.Completed}
}

func TestRequest_Golden(t *testing.T) {
	cut := toolCall("C", `{"x":1}`)
	cut.StopReason = protocol.Failed
	got := body(t, client(t), engine.Request{
		System: "be <brief>",
		Tools:  []protocol.ToolSpec{{Name: "f", Description: "does", Parameters: json.RawMessage(`{"type":"object"}`)}},
		History: messages(
			protocol.UserText("look"), protocol.ImageURL{Role: protocol.User, ImageURL: "http://a/b.png"},
			protocol.Thinking{Role: protocol.Assistant, Thinking: "no field, so not sent"},
			assistant("I "), assistant("look."), toolCall("f", ""), toolCall("f#2", `{"x":2}`), cut,
		),
		Input: messages(
			toolOutput("f", "one", "data:image/png;base64,AA=="), toolOutput("f#2", ""),
			protocol.UserText("steer"),
			protocol.UserText("more"), protocol.InlineData{Role: protocol.User, MimeType: "image/png", Data: "QQ=="},
		),
		Thinking: "high", MaxTokens: 9,
	})
	require.Equal(t, strings.Join([]string{
		`{"model":"scripted","stream":true,"stream_options":{"include_usage":true},` +
			`"tools":[{"type":"function","function":{"name":"f","description":"does","parameters":{"type":"object"}}}],"messages":[` +
			`{"role":"system","content":"be <brief>"}`,
		`{"role":"user","content":[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"http://a/b.png"}}]}`,
		`{"role":"assistant","content":"I look.","tool_calls":[{"id":"f","type":"function","function":{"name":"f","arguments":"{}"}},` +
			`{"id":"f","type":"function","function":{"name":"f","arguments":"{\"x\":2}"}}]}`,
		`{"role":"tool","content":"one","tool_call_id":"f"}`,
		`{"role":"tool","content":"[no output]","tool_call_id":"f"}`,
		`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}]}`,
		`{"role":"user","content":"steer"}`,
		`{"role":"user","content":[{"type":"text","text":"more"},{"type":"image_url","image_url":{"url":"data:image/png;base64,QQ=="}}]}` +
			`],"max_tokens":9,"reasoning_effort":"high"}`,
	}, ","), got)
	require.NoError(t, llmtest.Check([]byte(got)))
}

func TestRequest_ACallAloneHasNoContent(t *testing.T) {
	got := body(t, client(t), engine.Request{History: messages(protocol.UserText("a"), toolCall("A", "{}")), Input: messages(toolOutput("A", "x"))})
	require.Contains(t, got, `{"role":"assistant","tool_calls":[`)
	require.NotContains(t, got, `"tools"`)
	require.NotContains(t, got, "reasoning_effort")
}

func TestRequest_AReplyWithNothingToSendIsLeftOut(t *testing.T) {
	cut := toolCall("A", `{"x":1}`)
	cut.StopReason = protocol.Failed
	got := body(t, client(t), engine.Request{History: messages(protocol.UserText("a"), cut), Input: messages(protocol.UserText("b"))})
	require.NotContains(t, got, "assistant")
}

func TestRequest_FlagsAndExtras(t *testing.T) {
	no, zero := false, 0.0
	c := client(t, func(cfg *llm.Config) {
		cfg.StreamUsage, cfg.ParallelToolCalls, cfg.Temperature = &no, &no, &zero
		cfg.MaxTokensField = "max_completion_tokens"
		cfg.ExtraBody = map[string]any{"top_k": 3, "a": "b"}
		cfg.ThinkingBody = map[string]map[string]any{"high": {"thinking": map[string]any{"type": "enabled"}}}
		cfg.IDRule = llm.IDAlnum9
	})
	req := engine.Request{
		Tools: []protocol.ToolSpec{{Name: "f"}}, Thinking: "high", MaxTokens: 5,
		History: messages(protocol.UserText("a"), toolCall("call_123", "{}"), toolCall("abcDEF123", "{}")),
		Input:   messages(toolOutput("call_123", "x"), toolOutput("abcDEF123", "y")),
	}
	got := body(t, c, req)
	require.True(t, strings.HasPrefix(got, `{"model":"scripted","stream":true,"tools":[{"type":"function","function":{"name":"f"}}],`+
		`"parallel_tool_calls":false,"temperature":0,"a":"b","top_k":3,"messages":[`), got)
	require.True(t, strings.HasSuffix(got, `],"max_completion_tokens":5,"thinking":{"type":"enabled"}}`), got)
	require.NoError(t, llmtest.Check([]byte(got)))
	require.Regexp(t, `"tool_calls":\[\{"id":"[A-Za-z0-9]{9}",`, got)
	require.Contains(t, got, `"tool_call_id":"abcDEF123"`)
}

// A session's requests grow: each begins with the bytes of the one before, with a
// kept prefix or without (L132).
func TestRequest_BeginsWithTheOneBefore(t *testing.T) {
	keeping, fresh := client(t), client(t)
	req := engine.Request{Session: "s", System: "sys", Tools: []protocol.ToolSpec{{Name: "f"}}, Input: messages(protocol.UserText("go"))}
	before := ""
	for n := range 40 {
		req.Number = n + 1
		got := body(t, keeping, req)
		bare := req
		bare.Session = ""
		require.Equal(t, body(t, fresh, bare), got)
		require.NoError(t, llmtest.Check([]byte(got)))
		require.True(t, strings.HasPrefix(got, before), "request %d", n)
		before = strings.TrimSuffix(got, "]}")
		id := fmt.Sprintf("call%d", n)
		req.History = append(append([]protocol.Message(nil), req.History...), req.Input...)
		switch n % 4 {
		case 0:
			req.History = append(req.History, messages(assistant("hm"), toolCall(id, "{}"), toolCall(id+"b", "{}"))...)
			req.Input = messages(toolOutput(id, "1", "http://i/1.png"), toolOutput(id+"b", "2"))
		case 1:
			req.History = append(req.History, messages(toolCall(id, "{}"))...)
			req.Input = messages(toolOutput(id, "3"), protocol.UserText("steering"))
		default:
			req.History = append(req.History, messages(assistant("done"))...)
			req.Input = messages(protocol.UserText("next"), protocol.ImageURL{Role: protocol.User, ImageURL: "http://i/2.png"})
		}
	}
}

func TestRequest_AKeptPrefixIsNotUsedForAnotherHistory(t *testing.T) {
	c := client(t)
	req := engine.Request{Session: "s", System: "sys", History: messages(protocol.UserText("a"), assistant("b"), protocol.UserText("c"), assistant("d")), Input: messages(protocol.UserText("e"))}
	body(t, c, req)
	for _, history := range [][]protocol.Message{
		messages(protocol.UserText("a"), assistant("B"), protocol.UserText("c"), assistant("d")),
		messages(protocol.UserText("a")),
		nil,
	} {
		req.History = history
		bare := req
		bare.Session = ""
		require.Equal(t, body(t, c, bare), body(t, c, req))
	}
	req.System = "other"
	require.Contains(t, body(t, c, req), `"content":"other"`)
}

func TestRequest_KeptToolsAreNotSentForOthers(t *testing.T) {
	s := llmtest.Start(t)
	c := newClient(t, s)
	first := protocol.ToolSpec{Name: "a", Description: "does", Parameters: json.RawMessage(`{"type":"object"}`)}
	renamed, told, shaped := first, first, first
	renamed.Name, told.Description, shaped.Parameters = "b", "does not", json.RawMessage(`{"type":"object","properties":{}}`)
	for _, tools := range [][]protocol.ToolSpec{{first}, {first}, {renamed}, {told}, {shaped}, {first, renamed}, {renamed, first}, {first}} {
		s.Reply(llmtest.Text("x"))
		req := ask("hi")
		req.Tools = tools
		require.Equal(t, protocol.Completed, stream(t.Context(), t, c, req).Status)
		var sent struct {
			Tools []struct{ Function protocol.ToolSpec }
		}
		all := s.Requests()
		require.NoError(t, json.Unmarshal(all[len(all)-1].Body, &sent))
		require.Len(t, sent.Tools, len(tools))
		for i := range tools {
			require.Equal(t, tools[i], sent.Tools[i].Function)
		}
	}
}

func TestNew_JoinsAllFaults(t *testing.T) {
	_, err := llm.New(llm.Config{BaseURL: "ftp://x", Flags: llm.Flags{
		MaxTokensField: "tokens", ReplayReasoning: "yes", IDRule: "short", Azure: true,
		ExtraHeaders: map[string]string{"a b": "c"}, ExtraBody: map[string]any{"messages": 1},
	}})
	require.Error(t, err)
	for _, part := range []string{"no model name", "ftp://x", "max_tokens_field", "replay_reasoning", "id_rule", "api_version", "a b", "messages"} {
		require.Contains(t, err.Error(), part)
	}
	_, err = llm.New(llm.Config{BaseURL: "http://h", Model: "m", Flags: llm.Flags{ExtraBody: map[string]any{"x": func() {}}}})
	require.ErrorContains(t, err, `"x"`)
}

func TestNew_NamesWhatASessionKeeps(t *testing.T) {
	c := client(t, func(cfg *llm.Config) { cfg.BaseURL, cfg.ContextWindow = "https://api.example.com:8443/v1", 7 })
	require.Equal(t, "api.example.com", c.Provider())
	require.Equal(t, "scripted", c.ModelID())
	require.Equal(t, 7, c.ContextWindow())
}

func TestRequest_ImagesAndAttachmentsWithoutText(t *testing.T) {
	got := body(t, client(t), engine.Request{Input: messages(
		protocol.ImageURL{Role: protocol.User, ImageURL: "http://i/1"}, protocol.ImageURL{Role: protocol.User, ImageURL: "http://i/2"},
		protocol.InlineData{Role: protocol.User, MimeType: "audio/wav", Data: "QQ=="},
	)})
	require.Contains(t, got, `[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://i/1"}},{"type":"image_url","image_url":{"url":"http://i/2"}},`+
		`{"type":"text","text":"[attachment of type audio/wav left out: the endpoint takes images only]"}]}]`)
}

func TestClient_Forget(t *testing.T) {
	c := client(t)
	req := engine.Request{Session: "s", System: "sys", Input: messages(protocol.UserText("a"))}
	before := body(t, c, req)
	c.Forget("s")
	c.Forget("never seen")
	require.Equal(t, before, body(t, c, req))
}
