package trace_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/trace"
	"rookery/protocol"
)

const done = protocol.Completed

func tokens(request, session int64) protocol.TokenUsage {
	of := func(n int64) protocol.Usage { return protocol.Usage{CacheWrite: n, Total: n} }
	return protocol.TokenUsage{Request: of(request), Session: of(session)}
}

func toolCall(id string) protocol.ToolCall {
	return protocol.ToolCall{Role: protocol.Assistant, Name: "t", Arguments: "{}", ToolCallID: id, StopReason: done}
}

func toolOutput(id, text string) protocol.ToolCallOutput {
	return protocol.ToolCallOutput{Role: protocol.User, Output: text, ToolCallID: id, StopReason: done}
}

func answer(text string) protocol.Text {
	return protocol.Text{Role: protocol.Assistant, Text: text, StopReason: done}
}

func allow(id string) protocol.ApprovalDecision {
	return protocol.ApprovalDecision{Decision: protocol.Allow, ToolCallID: id}
}

func dispatched(id string, attempt int) protocol.CallDispatched {
	return protocol.CallDispatched{ToolCallID: id, Attempt: attempt, Destination: "p.default"}
}

// session is a trace with calls, a retry, an interruption, a compaction in mid-task
// and a second context.
func session() []protocol.Payload {
	begin := protocol.CompactionBegin{Reason: "context", Mode: "summarize", Context: 30, Turns: 2}
	return []protocol.Payload{
		protocol.SessionMeta{SessionID: "s"},
		protocol.TaskBegin{TaskID: "t1", Of: "run"},
		protocol.UserText("go"),
		protocol.RequestBegin{},
		protocol.Thinking{Role: protocol.Assistant, Thinking: "hm", StopReason: protocol.Timeout},
		protocol.RequestEnd{Status: protocol.Timeout},
		protocol.Retry{Attempt: 1, WaitMS: 250, Status: protocol.Timeout},
		protocol.RequestBegin{},
		toolCall("A"),
		allow("A"),
		dispatched("A", 1),
		toolCall("B"),
		protocol.ApprovalRequest{ToolCallID: "B"},
		protocol.ReplyReceived{Status: done},
		protocol.ApprovalDecision{Decision: protocol.Deny, ToolCallID: "B"},
		toolOutput("B", protocol.NoteDenied),
		tokens(10, 10),
		protocol.RequestEnd{Status: done},
		toolOutput("A", "done"),
		protocol.SteeringQueued{SteerID: "x", Text: "more"},
		protocol.UserText(protocol.Steering("more")),
		protocol.RequestBegin{},
		toolCall("C"),
		allow("C"),
		dispatched("C", 1),
		protocol.CallFate{ToolCallID: "C", Fate: "retried"},
		dispatched("C", 2),
		tokens(30, 40),
		protocol.RequestEnd{Status: done},
		toolOutput("C", "done"),
		begin,
		protocol.UserText("sum up"),
		protocol.RequestBegin{},
		answer("[summary]s[/summary]"),
		tokens(5, 45),
		protocol.RequestEnd{Status: done},
		protocol.CompactionEnd{Reason: "context", Mode: "summarize", Status: done},
		protocol.SessionMeta{SessionID: "s"},
		protocol.UserText(protocol.ContextSummary("s")),
		protocol.RequestBegin{},
		answer("end"),
		protocol.RequestEnd{Status: done},
		protocol.TaskEnd{TaskID: "t1", Status: protocol.TaskCompleted},
		protocol.TaskBegin{TaskID: "t2", Of: "run"},
		protocol.UserText("next"),
		protocol.RequestBegin{},
		toolCall("D"),
		protocol.ApprovalRequest{ToolCallID: "D"},
		protocol.AbortRequested{},
		protocol.ApprovalClosed{ToolCallID: "D"},
		protocol.RequestEnd{Status: done},
		protocol.AbortOf(protocol.AbortedByUser),
		protocol.TaskEnd{TaskID: "t2", Status: protocol.TaskAborted},
	}
}

// records places payloads as a session does.
func records(ps []protocol.Payload) []trace.Record {
	var p trace.Placer
	var rs []trace.Record
	for i, payload := range ps {
		m := protocol.Message{Timestamp: time.Unix(int64(i), 0).UTC(), Payload: payload}
		context, private, _ := p.Place(m)
		rs = append(rs, trace.Record{Context: context, Private: private, Message: m})
	}
	return rs
}

func faults(rs []trace.Record) []string {
	var s []string
	for _, f := range trace.Verify(rs, nil) {
		s = append(s, f.What)
	}
	return s
}

func index(t *testing.T, ps []protocol.Payload, notation string) int {
	t.Helper()
	i := slices.IndexFunc(ps, func(p protocol.Payload) bool { return strings.HasPrefix(protocol.Notation(p, false), notation) })
	require.GreaterOrEqual(t, i, 0, notation)
	return i
}

func TestVerify_GoodTrace(t *testing.T) {
	require.Empty(t, faults(records(session())))
	require.Empty(t, trace.Verify(nil, nil), "a session never run leaves no trace") // L007
}

func TestVerify_WithoutOurOwnEvents(t *testing.T) {
	ps := slices.DeleteFunc(session(), protocol.IsOwn)
	require.Empty(t, faults(records(ps)))
}

func TestVerify_OpenTrace(t *testing.T) {
	rs := records(session())
	for n := range rs {
		for _, f := range trace.Verify(rs[:n], &trace.VerifyOptions{Open: true}) {
			t.Errorf("the first %d records: %s", n, f)
		}
	}
	require.Equal(t, []string{"the last request has no request_end", `task "t1" has no task_end`}, faults(rs[:5]))
	require.Contains(t, faults(rs[:32]), "the last compaction has no compaction_end")
}

func TestVerify_Dropped(t *testing.T) {
	for notation, want := range map[string]string{
		"session_meta":                 "before the first session_meta",
		"+task_begin(run)":             "outside a task",
		"+task_end(completed)":         `task "t2" begins inside task "t1"`,
		"request_begin":                "request_end without request_begin",
		"request_end(timeout)":         "request_begin inside a request",
		"request_end(completed)":       "token_usage is followed by",
		"tool_call[A":                  `approval_decision of "A", which was not called`,
		"approval_decision(allow,A)":   `output of "A" before its approval_decision`,
		"approval_decision(deny,B)":    `output of "B" before its approval_decision`,
		"tool_call_output[A":           `"A" has no output before the next request`,
		"tool_call_output[C":           `"C" has no output before the compaction`,
		"compaction_begin":             "compaction_end without compaction_begin",
		"compaction_end":               "a new context without a completed compaction",
		`text[user]"[context_summary]`: "the new context begins without its summary",
		`token_usage(request 10`:       "the session has 40, but its requests add up to 30",
	} {
		ps := session()
		i := index(t, ps, notation)
		got := faults(records(slices.Delete(ps, i, i+1)))
		require.Contains(t, strings.Join(got, "\n"), want, "without %s", notation)
	}
}

func TestVerify_Doubled(t *testing.T) {
	for notation, want := range map[string]string{
		"session_meta":               "a new context without a completed compaction",
		"+task_begin(run)":           `task "t1" begins inside task "t1"`,
		"+task_end(completed)":       "which has not begun or has ended",
		"request_begin":              "request_begin inside a request",
		"request_end(timeout)":       "request_end without request_begin",
		"tool_call[A":                `tool_call "A" stands twice`,
		"approval_decision(allow,A)": `a second approval_decision on "A"`,
		"+call_dispatched(A)":        "attempt 1 behind attempt 1",
		"tool_call_output[A":         `a second output of "A"`,
		"token_usage(request 10":     "token_usage is followed by token_usage",
		"compaction_begin":           "compaction_begin inside a compaction",
		"compaction_end":             "compaction_end without compaction_begin",
	} {
		ps := session()
		i := index(t, ps, notation)
		got := faults(records(slices.Insert(ps, i, ps[i])))
		require.Contains(t, strings.Join(got, "\n"), want, "%s twice", notation)
	}
}

func TestVerify_Inserted(t *testing.T) {
	for _, c := range []struct {
		before string
		p      protocol.Payload
		want   string
	}{
		{"request_begin", protocol.PartialText{EventType: protocol.Start}, "partial_text(start) is never recorded"},
		{"request_begin", protocol.Waiting{ToolCallID: "A"}, "+waiting(A) is never recorded"},
		{"request_begin", protocol.UserText("[turn_retried]\n  [text]x[/text]\n[/turn_retried]"), "block is recorded"},        // L105
		{`text[user]"next"`, protocol.UserText("[turn_aborted]\n  [text]x[/text]\n[/turn_aborted]"), "block is recorded"},     // L074
		{`text[user]"next"`, protocol.ToolCallOutput{ToolCallID: "D", Output: protocol.NoteExited}, "the placeholder output"}, // L159
		{"request_end(timeout)", tokens(1, 1), "token_usage is followed by request_end(timeout)"},                             // L027
		{"request_begin", tokens(1, 1), "token_usage outside a request"},
		{"request_end(completed)", protocol.UserText("x"), "token_usage is followed by"}, // L043
		{"request_begin", answer("x"), "outside a request"},
		{"request_begin", protocol.Thinking{Thinking: "x"}, "thinking outside a request"},
		{"request_begin", toolCall("Z"), `tool_call "Z" outside a request`},
		{"+retry", protocol.RequestBegin{}, "retry behind no failed request"},
		{"+call_dispatched(A)", protocol.CallDispatched{ToolCallID: "B", Attempt: 1}, `call_dispatched of "B", which was not called`},
		{"tool_call_output[B", protocol.CallDispatched{ToolCallID: "B", Attempt: 1}, `call_dispatched of "B", which was not allowed`},
		{"+steering_queued", dispatched("A", 2), `call_dispatched of "A" behind its output`},
		{"+approval_request(B)", protocol.ApprovalRequest{ToolCallID: "Z"}, `approval_request of "Z", which was not called`},
		{"+task_end(aborted)", protocol.RequestBegin{}, "request_begin behind an abort"}, // L066
		{"request_end(timeout)", protocol.AbortOf("x"), "abort inside a request"},
		{"request_end(timeout)", protocol.TaskEnd{TaskID: "t1"}, "task_end inside a request"},
		{"request_end(timeout)", protocol.CompactionBegin{}, "compaction_begin inside a request"},
		{"compaction_end", protocol.RequestBegin{}, "compaction_end inside a request"},
		{"compaction_end", protocol.TaskEnd{TaskID: "t1"}, "task_end inside a compaction"},
		{"compaction_end", protocol.CompactionEnd{Reason: "turns"}, "compaction_end(turns,) of a compaction (context,summarize)"},
		{"+task_end(completed)", protocol.TaskEnd{TaskID: "t9"}, `task_end of "t9" inside task "t1"`},
		{"+task_end(completed)", protocol.SessionMeta{SessionID: "s"}, "a new context without a completed compaction"},
	} {
		ps := session()
		i := index(t, ps, c.before)
		got := faults(records(slices.Insert(ps, i, c.p)))
		require.Contains(t, strings.Join(got, "\n"), c.want, "%T before %s", c.p, c.before)
	}
}

func TestVerify_Placement(t *testing.T) { // L008 L129 L130
	change := func(notation string, f func(*trace.Record)) string {
		rs := records(session())
		f(&rs[index(t, session(), notation)])
		return strings.Join(faults(rs), "\n")
	}
	require.Contains(t, change(`text[user]"sum up"`, func(r *trace.Record) { r.Private = false }), "must be private")
	require.Contains(t, change("session_meta", func(r *trace.Record) { r.Private = false }), "session_meta must be private")
	require.Contains(t, change(`text[user]"go"`, func(r *trace.Record) { r.Private = true }), "must not be private")
	require.Contains(t, change("compaction_end", func(r *trace.Record) { r.Context = 2 }), "belongs to context 001")
	require.Contains(t, change(`text[assistant]"end"`, func(r *trace.Record) { r.Context = 1 }), "belongs to context 002")
	require.Contains(t, change("request_begin", func(r *trace.Record) { r.Message = r.Message.WithOrigin("child") }), "is never recorded")
	require.Contains(t, change("session_meta", func(r *trace.Record) { r.Message = r.Message.With(protocol.SessionMeta{SessionID: "other"}) }), `session_meta of session "s" in a trace of "other"`)
}

func TestVerify_SecondMetaInAContext(t *testing.T) { // L153
	rs := records(session())
	meta := rs[0]
	rs = slices.Insert(rs, 2, meta)
	require.Equal(t, []string{"a second session_meta in this context"}, faults(rs))
}

func TestVerify_APromptMayLookLikeABlock(t *testing.T) {
	ps := session()
	ps[index(t, ps, `text[user]"next"`)] = protocol.UserText("[turn_aborted]\n  [text]x[/text]\n[/turn_aborted]")
	require.Empty(t, faults(records(ps)))
}

func TestVerify_DecisionBehindTheOutput(t *testing.T) { // L039
	ps := session()
	i := index(t, ps, "approval_decision(deny,B)")
	ps[i], ps[i+1] = ps[i+1], ps[i]
	require.Equal(t, []string{`output of "B" before its approval_decision`, `approval_decision on "B" behind its output`}, faults(records(ps)))
}

func TestVerify_DeniedOutput(t *testing.T) { // L048
	ps := session()
	ps[index(t, ps, "tool_call_output[B")] = toolOutput("B", "ran after all")
	require.Equal(t, []string{`"B" was denied, but has an output of its own`}, faults(records(ps)))
}

func TestVerify_TaskEndsWithoutAnOutput(t *testing.T) {
	ps := session()
	i := index(t, ps, "abort(")
	require.Equal(t, []string{`"D" has no output before the end of the task`}, faults(records(slices.Delete(ps, i, i+1))))
}

func TestFault_String(t *testing.T) {
	require.Equal(t, "context 002, record 8: broken", trace.Fault{Record: 7, Context: 2, What: "broken"}.String())
}
