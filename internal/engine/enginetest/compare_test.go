package enginetest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/engine/enginetest"
	"rookery/protocol"
)

// stack compares an output section at stack level.
func stack(t *testing.T, want, got string) error {
	t.Helper()
	s := parse(t, "t\n-- script --\n-- output --\n"+want)
	return s.Sections[0].Compare(strings.Split(strings.TrimSpace(got), "\n"), enginetest.LevelStack)
}

const twoCalls = `
text[user]"go"
request_begin
tool_call[A,completed]
approval_decision(allow,A)
tool_call[B,completed]
approval_decision(allow,B)
token_usage(request 10, session 10)
request_end(completed)
tool_call_output[B,completed]"done B"
tool_call_output[A,completed]"done A"
request_begin
request_end(completed)
`

func swap(text, a, b string) string {
	return strings.NewReplacer(a, b, b, a).Replace(text)
}

func TestCompare_StackIgnoresHowProducersInterleave(t *testing.T) {
	require.NoError(t, stack(t, twoCalls, twoCalls))
	early := strings.Replace(twoCalls, "tool_call_output[B,completed]\"done B\"\n", "", 1)
	early = strings.Replace(early, "token_usage", "tool_call_output[B,completed]\"done B\"\ntoken_usage", 1)
	require.NoError(t, stack(t, twoCalls, early))
	require.NoError(t, stack(t, twoCalls, swap(twoCalls, `tool_call_output[A,completed]"done A"`, `tool_call_output[B,completed]"done B"`)))
}

func TestCompare_StackKeepsTheFixedPoints(t *testing.T) {
	for name, c := range map[string]struct{ got, want string }{
		"a producer's own order": {swap(twoCalls, "tool_call[A,completed]", "tool_call[B,completed]"), "loop: differs"},
		"another output":         {strings.Replace(twoCalls, `"done A"`, `"done"`, 1), "tool A: differs"},
		"one line more":          {twoCalls + "tool_call_output[C,completed]\"x\"\n", "tool C: differs"},
		"output behind the next request": {
			strings.Replace(strings.Replace(twoCalls, "tool_call_output[A,completed]\"done A\"\n", "", 1), "request_begin\nrequest_end(completed)\n", "request_begin\ntool_call_output[A,completed]\"done A\"\nrequest_end(completed)\n", 1),
			"outputs by request: differs",
		},
		"something between usage and end": {
			strings.Replace(strings.Replace(twoCalls, "tool_call_output[B,completed]\"done B\"\n", "", 1), "request_end", "tool_call_output[B,completed]\"done B\"\nrequest_end", 1),
			"token_usage is not followed by request_end",
		},
		"output before its decision": {
			strings.Replace(strings.Replace(twoCalls, "tool_call_output[A,completed]\"done A\"\n", "", 1), "tool_call[A", "tool_call_output[A,completed]\"done A\"\ntool_call[A", 1),
			"output of A before its decision",
		},
	} {
		require.ErrorContains(t, stack(t, twoCalls, c.got), c.want, name)
	}
}

func TestCompare_StackPassesOverEventsOfTiming(t *testing.T) {
	want := "+task_begin(run)\nrequest_begin\n+task_end(completed)\n"
	got := "+task_begin(run)\nrequest_begin\n+waiting(A)\n+call_dispatched(A)\n+task_end(completed)"
	require.NoError(t, stack(t, want, got))
	require.Error(t, stack(t, "+task_begin(run)\nrequest_begin\n+waiting(B)\n+task_end(completed)\n", got))
}

func TestCompare_StackLetsCallsStreamAheadOfTheirMessages(t *testing.T) {
	want := "partial_tool_call[A](start)\npartial_tool_call[A](stop)\ntool_call[A,completed]\npartial_tool_call[B](start)\npartial_tool_call[B](stop)\ntool_call[B,completed]\n"
	got := "partial_tool_call[A](start)\npartial_tool_call[B](start)\npartial_tool_call[A](stop)\ntool_call[A,completed]\npartial_tool_call[B](stop)\ntool_call[B,completed]"
	require.NoError(t, stack(t, want, got))
}

func TestResult_LinesFollowTheSection(t *testing.T) {
	call := protocol.ToolCall{Name: "t", Arguments: "{}", ToolCallID: "A", StopReason: protocol.Completed}
	r := &enginetest.Result{
		Output: []protocol.Message{
			protocol.New(protocol.TaskBegin{Of: "run"}),
			protocol.New(protocol.PartialText{EventType: protocol.Start}).WithOrigin("child"),
			protocol.New(call).WithOrigin("child"),
		},
		Runs: map[string]int{"B C": 2, "A": 1, "Z": 0},
	}
	lines := func(section string) []string {
		s := parse(t, "t\n-- script --\n-- "+section)
		got, err := r.Lines(s.Sections[0])
		require.NoError(t, err)
		return got
	}
	require.Equal(t, []string{"child/tool_call[A,completed]"}, lines("output --\n"))
	require.Equal(t, []string{"child/tool_call[A,completed] t {}"}, lines("output full --\n"))
	require.Equal(t, []string{"+task_begin(run)", "child/tool_call[A,completed]"}, lines("output --\n+abort_requested\n"))
	require.Equal(t, []string{"child/partial_text(start)", "child/tool_call[A,completed]"}, lines("output --\nx/partial_text(stop)\n"))
	require.Equal(t, []string{"A 1", "B C 2"}, lines("runs --\n"))
	require.Equal(t, []string{"0"}, lines("requests --\n"))

	s := parse(t, "t\n-- script --\n-- input 1 --\n-- runs --\nB C 2\nA 1\nQ 0\n")
	faults := s.Check(r, enginetest.LevelEngine)
	require.Len(t, faults, 1)
	require.ErrorContains(t, faults[0], "f.txtar:3: input 1: there is no request 1, only 0")
}

func TestDiff(t *testing.T) {
	require.Equal(t, "  a\n- b\n+ x\n  c\n+ d\n", enginetest.Diff([]string{"a", "b", "c"}, []string{"a", "x", "c", "d"}))
	require.Empty(t, enginetest.Diff(nil, nil))
}

func TestWant_Match(t *testing.T) { // L133-L136
	for _, c := range []struct {
		word, reason string
		code         protocol.ReplyCode
		why          string
		want         bool
	}{
		{"accepted", "", protocol.ReplyAccepted, "", true},
		{"accepted", "", protocol.ReplyAborting, "", true},
		{"accepted", "", protocol.ReplyNotRunning, "", false},
		{"true", "", protocol.ReplyAccepted, "", true},
		{"false", "", protocol.ReplyNotRunning, "", true},
		{"idle", "", protocol.ReplyIdle, "", true},
		{"aborting", "", protocol.ReplyIdle, "", false},
		{"refused", "", protocol.ReplyDecided, "", true},
		{"refused", "not_running", protocol.ReplyNotRunning, "", true},
		{"refused", "empty", protocol.ReplyNothing, "nothing to compact: Empty", true},
		{"refused", "ok", protocol.ReplyNothing, "empty", false},
		{"refused", "", protocol.ReplyAccepted, "", false},
	} {
		got := enginetest.Want{Word: c.word, Reason: c.reason}.Match(c.code, c.why)
		require.Equal(t, c.want, got, "%+v", c)
	}
}

func TestScenario_Update(t *testing.T) {
	text := "title\ncovers: L001\n\n-- script --\nmodel\n  text hi\nrun go\n-- output --\n+stale\n-- requests --\n-- input 1 --\nstale\n"
	file := filepath.Join(t.TempDir(), "a.txtar")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	s, err := enginetest.Load(file)
	require.NoError(t, err)
	result := enginetest.Run(t, s)
	require.Len(t, s.Check(result, enginetest.LevelEngine), 3)
	require.NoError(t, s.Update(result))

	s, err = enginetest.Load(file)
	require.NoError(t, err)
	require.Empty(t, s.Check(result, enginetest.LevelEngine))
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, `title
covers: L001

-- script --
model
  text hi
run go
-- output --
+task_begin(run)
text[user]"go"
request_begin
text[assistant]"hi"
request_end(completed)
+task_end(completed)
-- requests --
1
-- input 1 --
text[user]"go"
`, string(data))
}

func TestCheckFragments(t *testing.T) { // L022-L024
	const done = protocol.Completed
	text := func(e protocol.EventType, s string) protocol.Payload {
		return protocol.PartialText{Role: protocol.Assistant, EventType: e, Text: s, StopReason: done}
	}
	whole := protocol.Text{Role: protocol.Assistant, Text: "ab", StopReason: done}
	start, a, b, stop := text(protocol.Start, ""), text(protocol.Delta, "a"), text(protocol.Delta, "b"), text(protocol.Stop, "")
	for _, c := range []struct {
		want string
		ps   []protocol.Payload
	}{
		{"", []protocol.Payload{start, a, b, stop, whole}},
		{"", []protocol.Payload{start, a, protocol.TaskBegin{}, start, a, b, stop, whole}},
		{"has not started", []protocol.Payload{a}},
		{"has not started", []protocol.Payload{whole}},
		{"has not stopped", []protocol.Payload{start, a, b, whole}},
		{"has stopped", []protocol.Payload{start, stop, a}},
		{"starts before its complete message", []protocol.Payload{start, start}},
		{`add up to "a"`, []protocol.Payload{start, a, stop, whole}},
		{"an empty delta", []protocol.Payload{start, text(protocol.Delta, "")}},
		{"a stop with a body", []protocol.Payload{start, text(protocol.Stop, "x")}},
		{"a start with a body", []protocol.Payload{text(protocol.Start, "x")}},
		{"stopped with completed", []protocol.Payload{start, a, b, stop, protocol.Text{Role: protocol.Assistant, Text: "ab", StopReason: protocol.Failed}}},
		{"no stop_reason", []protocol.Payload{protocol.Text{Role: protocol.User, Text: "x"}}},
		{"a name behind the start", []protocol.Payload{
			protocol.PartialToolCall{EventType: protocol.Start, Name: "t", StopReason: done}, protocol.PartialToolCall{EventType: protocol.Stop, Name: "t", StopReason: done},
		}},
		{`started with the name "t"`, []protocol.Payload{
			protocol.PartialToolCall{EventType: protocol.Start, Name: "t", StopReason: done},
			protocol.PartialToolCall{EventType: protocol.Stop, StopReason: done},
			protocol.ToolCall{Name: "u", StopReason: done},
		}},
	} {
		var ms []protocol.Message
		for _, p := range c.ps {
			ms = append(ms, protocol.New(p))
		}
		faults := enginetest.CheckFragments(ms)
		if c.want == "" {
			require.Empty(t, faults)
			continue
		}
		require.NotEmpty(t, faults, c.want)
		require.ErrorContains(t, faults[0], c.want)
	}
}
