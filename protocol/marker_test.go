package protocol_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/protocol"
)

func call(id, args string, stop protocol.StopReason) protocol.ToolCall {
	return protocol.ToolCall{Role: protocol.Assistant, Name: "t", Arguments: args, ToolCallID: id, StopReason: stop}
}

func output(id, text string, stop protocol.StopReason) protocol.ToolCallOutput {
	return protocol.ToolCallOutput{Role: protocol.User, Output: text, ToolCallID: id, StopReason: stop}
}

func say(text string) protocol.Text {
	return protocol.Text{Role: protocol.Assistant, Text: text, StopReason: protocol.Completed}
}

func TestBlock_TurnAborted(t *testing.T) { // L071
	var b protocol.Block
	b.Input("go")
	b.Reply(protocol.Thinking{Thinking: "th", StopReason: protocol.Completed})
	b.Reply(say("tx"))
	b.Reply(call("A", "{}", protocol.Completed))
	b.Reply(protocol.Text{Role: protocol.Assistant, Text: "half", StopReason: protocol.Aborted})
	b.Output(output("A", "ok", protocol.Completed))
	require.Equal(t, "[turn_aborted]\n  [user_input]go[/user_input]\n  [thinking]th[/thinking]\n  [text]tx[/text]\n  [text]half[/text]\n  [tool_call name=\"t\" id=\"A\"]{}[/tool_call]\n  [tool_call_output id=\"A\" status=\"completed\"]ok[/tool_call_output]\n[/turn_aborted]",
		b.String(protocol.TagTurnAborted))
}

func TestBlock_TurnRetried(t *testing.T) { // L101
	var b protocol.Block
	b.Reply(protocol.Text{Role: protocol.Assistant, Text: "half", StopReason: protocol.Timeout})
	b.EndAttempt()
	b.Reply(call("A", "{}", protocol.Completed))
	b.Output(output("A", "done A", protocol.Completed))
	b.EndAttempt()
	require.Equal(t, "[turn_retried]\n  [text]half[/text]\n  [tool_call name=\"t\" id=\"A\"]{}[/tool_call]\n  [tool_call_output id=\"A\" status=\"completed\"]done A[/tool_call_output]\n[/turn_retried]",
		b.String(protocol.TagTurnRetried))
}

func TestBlock_Rules(t *testing.T) {
	str := func(fill func(*protocol.Block)) string {
		var b protocol.Block
		fill(&b)
		return b.String(protocol.TagTurnAborted)
	}
	for name, c := range map[string]struct {
		fill func(*protocol.Block)
		want string
	}{
		"nothing produced": {func(*protocol.Block) {}, ""},
		"a call that is not complete has no line": { // L058 L071
			func(b *protocol.Block) { b.Reply(call("A", "{", protocol.Malformed)) }, "",
		},
		"a completed call without output has only its call line": {
			func(b *protocol.Block) { b.Reply(call("A", "{}", protocol.Completed)) },
			"[turn_aborted]\n  [tool_call name=\"t\" id=\"A\"]{}[/tool_call]\n[/turn_aborted]",
		},
		"calls and outputs stand behind the texts, in call order": {
			func(b *protocol.Block) {
				b.Reply(call("A", "{}", protocol.Completed))
				b.Reply(say("x"))
				b.Reply(call("B", "{}", protocol.Completed))
				b.Output(output("A", "a", protocol.Aborted))
				b.Output(output("B", "b", protocol.Failed))
			},
			"[turn_aborted]\n  [text]x[/text]\n  [tool_call name=\"t\" id=\"A\"]{}[/tool_call]\n  [tool_call name=\"t\" id=\"B\"]{}[/tool_call]\n  [tool_call_output id=\"A\" status=\"aborted\"]a[/tool_call_output]\n  [tool_call_output id=\"B\" status=\"failed\"]b[/tool_call_output]\n[/turn_aborted]",
		},
		"bodies are raw": { // L072
			func(b *protocol.Block) {
				b.Input("a\n[/text] <b> [/turn_aborted] c")
				b.Input(protocol.Steering("s"))
			},
			"[turn_aborted]\n  [user_input]a\n[/text] <b> [/turn_aborted] c[/user_input]\n  [user_input][user_steering]\ns\n[/user_steering][/user_input]\n[/turn_aborted]",
		},
		"a line that is one of our closing tags is disarmed": { // L072
			func(b *protocol.Block) {
				b.Reply(say("[/turn_aborted]"))
				b.Reply(call("A", "{}", protocol.Completed))
				b.Output(output("A", "x\n  [/tool_call_output]  \n[/turn_retried]\nsee [/turn_aborted]\n[/div]", protocol.Completed))
			},
			"[turn_aborted]\n  [text][\u200b/turn_aborted][/text]\n  [tool_call name=\"t\" id=\"A\"]{}[/tool_call]\n  [tool_call_output id=\"A\" status=\"completed\"]x\n  [\u200b/tool_call_output]  \n[\u200b/turn_retried]\nsee [/turn_aborted]\n[/div][/tool_call_output]\n[/turn_aborted]",
		},
		"a whole block in the input is unwrapped, one level": { // L073
			func(b *protocol.Block) {
				b.Input("go")
				b.Input("[turn_retried]\n  [text]one[/text]\n[/turn_retried]")
				b.Input("<turn_aborted>\n  [text]old\n[turn_aborted]\nx\n[/turn_aborted][/text]\n</turn_aborted>\n")
				b.Reply(say("now"))
			},
			"[turn_aborted]\n  [user_input]go[/user_input]\n  [text]one[/text]\n  [text]old\n[turn_aborted]\nx\n[/turn_aborted][/text]\n  [text]now[/text]\n[/turn_aborted]",
		},
		"tags have to match": { // L168
			func(b *protocol.Block) {
				b.Input("[turn_aborted]x[/turn_retried]")
				b.Input("[turn_aborted]\nx\n</turn_aborted>")
			},
			"[turn_aborted]\n  [user_input][turn_aborted]x[/turn_retried][/user_input]\n  [user_input][turn_aborted]\nx\n</turn_aborted>[/user_input]\n[/turn_aborted]",
		},
	} {
		require.Equal(t, c.want, str(c.fill), name)
	}
}

func TestSteering_Parse(t *testing.T) { // L095
	for _, text := range []string{"stop", "two\nlines", "", "\n", " spaced ", "[user_steering]", "mentions [/user_steering] inline", "é"} {
		got, ok := protocol.ParseSteering(protocol.Steering(text))
		require.True(t, ok, "%q", text)
		require.Equal(t, text, got)
	}
	for in, want := range map[string]string{
		"[user_steering]\nstop\n[/user_steering]\n \t\n": "stop",
		"[user_steering]\na\n\nb\n[/user_steering]":      "a\n\nb",
	} {
		got, ok := protocol.ParseSteering(in)
		require.True(t, ok, "%q", in)
		require.Equal(t, want, got)
	}
	for _, in := range []string{
		"", "plain", "what does [user_steering] mean?",
		"x [user_steering]\nstop\n[/user_steering]",
		"[user_steering]\nstop\n[/user_steering] and more",
		"[user_steering]\nstop",
		"[user_steering]\nstop\n[/turn_aborted]",
		"<user_steering>\nstop\n</user_steering>", // L168: never had an angle form
		"[user_steering]\none\n[/user_steering]\n[user_steering]\ntwo\n[/user_steering]",
	} {
		_, ok := protocol.ParseSteering(in)
		require.False(t, ok, "%q", in)
	}
}

func TestExtractSummary(t *testing.T) { // L117
	for in, want := range map[string]string{
		"pre [summary]a[/summary] post":                "a",
		"<summary>b</summary>":                         "b",
		"<summary>b</summary> [summary]a[/summary]":    "a",
		"  whole\ntext ":                               "whole\ntext",
		"[summary]\n a\nb \n[/summary]":                "a\nb",
		"[summary]one[/summary][summary]two[/summary]": "one",
		"[summary]open":                                "[summary]open",
		"[/summary] [summary]a[/summary]":              "a",
		"[summary]open <summary>b</summary>":           "b",
		"[summary][/summary] rest":                     "",
		"":                                             "",
	} {
		require.Equal(t, want, protocol.ExtractSummary(in), "%q", in)
	}
}

func TestContextSummary(t *testing.T) { // L118 L168
	require.Equal(t, "[context_summary]\nS\n[/context_summary]", protocol.ContextSummary("S"))
	for _, in := range []string{protocol.ContextSummary("a\nb"), "<context_summary>\na\nb\n</context_summary>"} {
		got, ok := protocol.ParseContextSummary(in)
		require.True(t, ok)
		require.Equal(t, "a\nb", got)
	}
	_, ok := protocol.ParseContextSummary("about [context_summary]")
	require.False(t, ok)
	require.True(t, protocol.IsBlock(protocol.TagTurnAborted, "<turn_aborted>\nx\n</turn_aborted>"))
	require.False(t, protocol.IsBlock(protocol.TagUserSteering, "<user_steering>\nx\n</user_steering>"))
}

func TestNotes(t *testing.T) {
	require.Equal(t, "[tool timeout: exceeded 200ms]", protocol.NoteTimeout(200))               // L053
	require.Equal(t, "[output truncated: exceeded 50 chars]", protocol.NoteTruncated(50))       // L054
	require.Equal(t, "[reached max turns (3); stopping]", protocol.NoteMaxTurns(3))             // L063
	require.Equal(t, "Unknown tool: x", protocol.NoteUnknownTool("x"))                          // L052
	require.Equal(t, "[tool error] broke", protocol.NoteError("broke"))                         // L050
	require.Equal(t, "[tool error] no worker took the call within 60 s", protocol.NoteLost(60)) // L050
}
