package protocol_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/protocol"
)

func at() time.Time { return time.Date(2026, 3, 4, 5, 6, 7, 89_000_000, time.UTC) }

func usage(read, write, output int64) protocol.Usage {
	return protocol.Usage{CacheRead: read, CacheWrite: write, Output: output, Total: read + write + output}
}

// golden lists every payload with its exact JSON and its notation.
func golden() []struct {
	name, json, notation string
	p                    protocol.Payload
} {
	const a, u = protocol.Assistant, protocol.User
	const done = protocol.Completed
	return []struct {
		name, json, notation string
		p                    protocol.Payload
	}{
		{ // L015
			"session_meta",
			`{"session_id":"s1","provider":"openai","model_id":"m","model_context_window":128000,"system_prompt":"be <brief>","tools":[{"name":"t","description":"d","parameters":{"type":"object"}},{"name":"u","description":""}],"agent_state":{"k":1},"workspace":"/w","source":"subagent"}`,
			`session_meta`,
			protocol.SessionMeta{
				SessionID: "s1", Provider: "openai", ModelID: "m", ModelContextWindow: 128000, SystemPrompt: "be <brief>",
				Tools: []protocol.ToolSpec{{Name: "t", Description: "d", Parameters: json.RawMessage(`{"type":"object"}`)}, {Name: "u"}}, AgentState: json.RawMessage(`{"k":1}`),
				Workspace: "/w", Source: "subagent",
			},
		},
		{ // L016
			"text", `{"type":"text","role":"user","text":"a <b> & \"c\"","stop_reason":"completed"}`, `text[user]"a <b> & \"c\""`,
			protocol.UserText(`a <b> & "c"`),
		},
		{ // L016 L032
			"text with fidelity", `{"type":"text","role":"assistant","text":"x","stop_reason":"aborted","fidelity":{"phase":"final"}}`, `text[assistant,aborted]"x"`,
			protocol.Text{Role: a, Text: "x", StopReason: protocol.Aborted, Fidelity: json.RawMessage(`{"phase":"final"}`)},
		},
		{ // L017
			"thinking", `{"type":"thinking","role":"assistant","thinking":"","stop_reason":"completed","fidelity":{"signature":"zz=="}}`, `thinking""`,
			protocol.Thinking{Role: a, StopReason: done, Fidelity: json.RawMessage(`{"signature":"zz=="}`)},
		},
		{
			"thinking cut", `{"type":"thinking","role":"assistant","thinking":"wh","stop_reason":"timeout"}`, `thinking[timeout]"wh"`,
			protocol.Thinking{Role: a, Thinking: "wh", StopReason: protocol.Timeout},
		},
		{ // L018
			"tool_call", `{"type":"tool_call","role":"assistant","name":"t","arguments":"{\"x\":1}","tool_call_id":"A","stop_reason":"completed"}`, `tool_call[A,completed]`,
			protocol.ToolCall{Role: a, Name: "t", Arguments: `{"x":1}`, ToolCallID: "A", StopReason: done},
		},
		{ // L019
			"tool_call_output", `{"type":"tool_call_output","role":"user","output":"o","images":["data:image/png;base64,AA=="],"tool_call_id":"A","stop_reason":"failed"}`, `tool_call_output[A,failed]"o"`,
			protocol.ToolCallOutput{Role: u, Output: "o", Images: []string{"data:image/png;base64,AA=="}, ToolCallID: "A", StopReason: protocol.Failed},
		},
		{ // L019
			"tool_call_output without images", `{"type":"tool_call_output","role":"user","output":"","tool_call_id":"A","stop_reason":"completed"}`, `tool_call_output[A,completed]""`,
			protocol.ToolCallOutput{Role: u, Images: []string{}, ToolCallID: "A", StopReason: done},
		},
		{ // L020
			"image_url", `{"type":"image_url","role":"user","image_url":"https://x/y.png","stop_reason":"completed"}`, `image_url`,
			protocol.ImageURL{Role: u, ImageURL: "https://x/y.png", StopReason: done},
		},
		{
			"inline_data", `{"type":"inline_data","role":"user","data":"AA==","mime_type":"audio/wav"}`, `inline_data`,
			protocol.InlineData{Role: u, Data: "AA==", MimeType: "audio/wav"},
		},
		{
			"inline_thinking", `{"type":"inline_thinking","role":"assistant","data":"AA==","mime_type":"x/y","stop_reason":"completed"}`, `inline_thinking`,
			protocol.InlineThinking{Role: a, Data: "AA==", MimeType: "x/y", StopReason: done},
		},
		{ // L021
			"partial_text", `{"type":"partial_text","role":"assistant","event_type":"delta","text":"he","stop_reason":"completed"}`, `partial_text(delta:"he")`,
			protocol.PartialText{Role: a, EventType: protocol.Delta, Text: "he", StopReason: done},
		},
		{
			"partial_text stop", `{"type":"partial_text","role":"assistant","event_type":"stop","text":"","stop_reason":"failed"}`, `partial_text(stop,failed)`,
			protocol.PartialText{Role: a, EventType: protocol.Stop, StopReason: protocol.Failed},
		},
		{
			"partial_thinking", `{"type":"partial_thinking","role":"assistant","event_type":"start","thinking":"","stop_reason":"completed"}`, `partial_thinking(start)`,
			protocol.PartialThinking{Role: a, EventType: protocol.Start, StopReason: done},
		},
		{ // L023
			"partial_tool_call start", `{"type":"partial_tool_call","role":"assistant","event_type":"start","name":"t","arguments":"","tool_call_id":"A","stop_reason":"completed"}`, `partial_tool_call[A](start)`,
			protocol.PartialToolCall{Role: a, EventType: protocol.Start, Name: "t", ToolCallID: "A", StopReason: done},
		},
		{ // L023
			"partial_tool_call delta", `{"type":"partial_tool_call","role":"assistant","event_type":"delta","name":"","arguments":"{","tool_call_id":"A","stop_reason":"completed"}`, `partial_tool_call[A](delta:"{")`,
			protocol.PartialToolCall{Role: a, EventType: protocol.Delta, Arguments: "{", ToolCallID: "A", StopReason: done},
		},
		{
			"partial_tool_call_output", `{"type":"partial_tool_call_output","role":"user","event_type":"stop","output":"","tool_call_id":"A","stop_reason":"completed"}`, `partial_tool_call_output[A](stop)`,
			protocol.PartialToolCallOutput{Role: u, EventType: protocol.Stop, ToolCallID: "A", StopReason: done},
		},
		{"request_begin", `{"type":"request_begin"}`, `request_begin`, protocol.RequestBegin{}},                                                   // L025
		{"request_end", `{"type":"request_end","status":"malformed"}`, `request_end(malformed)`, protocol.RequestEnd{Status: protocol.Malformed}}, // L025
		{ // L026: prompt 100 (40 cached), completion 20
			"token_usage", `{"type":"token_usage","session":{"cache_read":41,"cache_write":62,"output":23,"total":126},"request":{"cache_read":40,"cache_write":60,"output":20,"total":120}}`, `token_usage(request 120, session 126)`,
			protocol.TokenUsage{Session: usage(41, 62, 23), Request: usage(40, 60, 20)},
		},
		{
			"token_usage estimated", `{"type":"token_usage","session":{"cache_read":0,"cache_write":1,"output":2,"total":3},"request":{"cache_read":0,"cache_write":1,"output":2,"total":3},"estimated":true,"reasoning":1}`, `token_usage(request 3, session 3)`,
			protocol.TokenUsage{Session: usage(0, 1, 2), Request: usage(0, 1, 2), Estimated: true, Reasoning: 1},
		},
		{"approval_decision", `{"type":"approval_decision","decision":"allow","tool_call_id":"A"}`, `approval_decision(allow,A)`, protocol.ApprovalDecision{Decision: protocol.Allow, ToolCallID: "A"}}, // L028
		{
			"approval_decision by", `{"type":"approval_decision","decision":"deny","tool_call_id":"A","by":"user","reason":"no"}`, `approval_decision(deny,A)`,
			protocol.ApprovalDecision{Decision: protocol.Deny, ToolCallID: "A", By: "user", Reason: "no"},
		},
		{ // L029
			"compaction_begin", `{"type":"compaction_begin","reason":"context","mode":"summarize","context":200,"turns":1}`, `compaction_begin(context,summarize,context 200,turns 1)`,
			protocol.CompactionBegin{Reason: "context", Mode: "summarize", Context: 200, Turns: 1},
		},
		{
			"compaction_end", `{"type":"compaction_end","reason":"manual","mode":"discard","status":"completed"}`, `compaction_end(manual,discard,completed)`,
			protocol.CompactionEnd{Reason: "manual", Mode: "discard", Status: done},
		},
		{"abort", `{"type":"abort","reason":"aborted by user"}`, `abort("aborted by user")`, protocol.AbortOf("aborted by user")}, // L030
		{"abort null", `{"type":"abort","reason":null}`, `abort(null)`, protocol.Abort{}},                                         // L030
		{"subagent", `{"type":"subagent","session_id":"SID"}`, `subagent(SID)`, protocol.Subagent{SessionID: "SID"}},              // L031
		{
			"task_begin", `{"type":"task_begin","task_id":"t1","kind":"run","options":{"approve":"ask","max_turns":3,"thinking":"high","approve_timeout_ms":5},"by":"me"}`, `+task_begin(run)`,
			protocol.TaskBegin{TaskID: "t1", Of: "run", Options: protocol.TaskOptions{Approve: "ask", MaxTurns: 3, Thinking: "high", ApproveTimeoutMS: 5}, By: "me"},
		},
		{
			"task_end", `{"type":"task_end","task_id":"t1","status":"failed","code":"auth","reason":"r","undelivered_steering":["s"]}`, `+task_end(failed)`,
			protocol.TaskEnd{TaskID: "t1", Status: protocol.TaskFailed, Code: protocol.CodeAuth, Reason: "r", UndeliveredSteering: []string{"s"}},
		},
		{
			"approval_request", `{"type":"approval_request","tool_call_id":"A","name":"t","arguments":"{}","permission":"rw","deadline":"2026-03-04T05:06:07.089Z"}`, `+approval_request(A)`,
			protocol.ApprovalRequest{ToolCallID: "A", Name: "t", Arguments: "{}", Permission: "rw", Deadline: new(at())},
		},
		{"approval_closed", `{"type":"approval_closed","tool_call_id":"A","reason":"abort"}`, `+approval_closed(A)`, protocol.ApprovalClosed{ToolCallID: "A", Reason: "abort"}},
		{"abort_requested", `{"type":"abort_requested","by":"me"}`, `+abort_requested`, protocol.AbortRequested{By: "me"}},
		{"steering_queued", `{"type":"steering_queued","steer_id":"i","text":"t"}`, `+steering_queued`, protocol.SteeringQueued{SteerID: "i", Text: "t"}},
		{"call_dispatched", `{"type":"call_dispatched","tool_call_id":"A","attempt":1,"destination":"w.x"}`, `+call_dispatched(A)`, protocol.CallDispatched{ToolCallID: "A", Attempt: 1, Destination: "w.x"}},
		{"waiting", `{"type":"waiting","tool_call_id":"A","for":"worker"}`, `+waiting(A)`, protocol.Waiting{ToolCallID: "A", For: "worker"}},
		{"call_fate", `{"type":"call_fate","tool_call_id":"A","fate":"unknown","worker":"w"}`, `+call_fate(A,unknown)`, protocol.CallFate{ToolCallID: "A", Fate: "unknown", Worker: "w"}},
		{
			"reply_received", `{"type":"reply_received","rest":[{"type":"text","role":"user","text":"x","stop_reason":"completed"}],"usage":{"cache_read":0,"cache_write":1,"output":0,"total":1},"status":"completed"}`, `+reply_received`,
			protocol.ReplyReceived{Rest: protocol.Payloads{protocol.UserText("x")}, Usage: new(usage(0, 1, 0)), Status: done},
		},
		{"takeover", `{"type":"takeover","from":"a","to":"b","epoch":3}`, `+takeover`, protocol.Takeover{From: "a", To: "b", Epoch: 3}},
		{"retry", `{"type":"retry","attempt":1,"wait_ms":250,"status":"timeout","message":"m"}`, `+retry(1,250ms)`, protocol.Retry{Attempt: 1, WaitMS: 250, Status: protocol.Timeout, Message: "m"}},
	}
}

func TestPayload_JSONAndNotation(t *testing.T) { // L014-L031
	class := map[string]string{"session_meta": "session_meta"}
	for _, k := range []string{
		"text", "thinking", "tool_call", "tool_call_output", "image_url", "inline_data", "inline_thinking",
		"partial_text", "partial_thinking", "partial_tool_call", "partial_tool_call_output",
	} {
		class[k] = "model_msg"
	}
	for _, c := range golden() {
		t.Run(c.name, func(t *testing.T) {
			m := protocol.Message{Timestamp: at(), Payload: c.p}
			envelope := class[c.p.Kind()]
			if envelope == "" {
				envelope = "event_msg"
			}
			line := `{"timestamp":"2026-03-04T05:06:07.089Z","type":"` + envelope + `","payload":` + c.json + `}`
			require.Equal(t, line, string(m.Encode()))
			require.Equal(t, c.notation, m.String())
			require.Equal(t, c.p.Kind(), m.Kind())
			require.Equal(t, envelope, m.Type())

			d, err := protocol.Decode([]byte(line))
			require.NoError(t, err)
			require.Equal(t, c.notation, d.String())
			require.Equal(t, line, string(d.With(d.Payload).Encode()), "encoded anew")
		})
	}
}

func TestPayload_FidelityOnlyWithKeys(t *testing.T) { // L032
	for _, empty := range []string{`{}`, `null`, ` { } `} {
		raw := json.RawMessage(empty)
		for _, p := range []protocol.Payload{
			protocol.Text{Fidelity: raw}, protocol.Thinking{Fidelity: raw}, protocol.ToolCall{Fidelity: raw}, protocol.InlineThinking{Fidelity: raw},
		} {
			require.NotContains(t, string(protocol.EncodePayload(p)), "fidelity")
		}
	}
}

func TestSessionMeta_UnknownWindowAndNoTools(t *testing.T) { // L015
	got := string(protocol.EncodePayload(protocol.SessionMeta{SessionID: "s"}))
	require.Equal(t, `{"session_id":"s","provider":"","model_id":"","model_context_window":"unknown","system_prompt":"","tools":[],"agent_state":null,"workspace":""}`, got) //nolint:testifylint // equal to the byte
	for in, want := range map[string]protocol.ContextWindow{`"unknown"`: 0, `200000`: 200000, `null`: 0, `2e3`: 2000, `-5`: -5} {
		var w protocol.ContextWindow
		require.NoError(t, json.Unmarshal([]byte(in), &w), in)
		require.Equal(t, want, w)
	}
	var w protocol.ContextWindow
	require.Error(t, json.Unmarshal([]byte(`[]`), &w))
}

func TestNotation_Full(t *testing.T) {
	call := protocol.ToolCall{Name: "t", Arguments: `{"x":"é\n"}`, ToolCallID: "A", StopReason: protocol.Completed}
	require.Equal(t, `tool_call[A,completed] t {"x":"é\\n"}`, protocol.Notation(call, true))
	require.Equal(t, `?`, protocol.Notation(nil, false))
	require.Equal(t, `?later`, protocol.Notation(protocol.Unknown{Name: "later"}, true))
}

func TestNotation_HostileTextStaysOnItsLine(t *testing.T) {
	for _, p := range []protocol.Payload{
		protocol.UserText("a\nb\x1b[2J\u202e"),
		protocol.ToolCall{Name: "n\nn", Arguments: "\x1b", ToolCallID: "i\n"},
		protocol.ToolCallOutput{ToolCallID: "i\r\n", Output: "\x00"},
		protocol.Subagent{SessionID: "\n"},
		protocol.Unknown{Name: "\n\x1b"},
		protocol.Waiting{ToolCallID: "\n"},
	} {
		s := protocol.Notation(p, true)
		require.NotRegexp(t, `[\x00-\x1f\x{202e}]`, s)
	}
}
