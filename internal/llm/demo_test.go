package llm_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/engine"
	"rookery/internal/llm"
	"rookery/protocol"
)

// A play runs a demo model as a loop would; tools answers its calls.
type play struct {
	t       *testing.T
	history []protocol.Message
	ids     protocol.CallIDs
	tools   func(protocol.ToolCall) protocol.ToolCallOutput
	called  []protocol.ToolCall
}

// say runs one task and returns the texts of the model.
func (p *play) say(prompt string) (texts []string) {
	p.t.Helper()
	input := []protocol.Message{protocol.New(protocol.UserText(prompt))}
	for range 10 {
		req := engine.Request{Tools: demoTools(), History: p.history, Input: input, IDs: &p.ids}
		got := stream(p.t.Context(), p.t, llm.Demo(), req)
		require.Equal(p.t, protocol.Completed, got.Status)
		require.True(p.t, got.Estimated)
		p.history = append(p.history, input...)
		for _, c := range got.complete {
			p.history = append(p.history, protocol.New(c))
		}
		if got.text != "" {
			texts = append(texts, got.text)
		}
		if len(got.calls) == 0 {
			return texts
		}
		input = nil
		for _, c := range got.calls {
			p.called = append(p.called, c)
			out := p.tools(c)
			out.Role, out.ToolCallID = protocol.User, c.ToolCallID
			input = append(input, protocol.New(out))
		}
	}
	require.Fail(p.t, "the demo model does not come to an end")
	return nil
}

func demoTools() (specs []protocol.ToolSpec) {
	for _, n := range []string{"read_file", "write_file", "list_files", "exec_command"} {
		specs = append(specs, protocol.ToolSpec{Name: n})
	}
	return specs
}

func worked(out string) func(protocol.ToolCall) protocol.ToolCallOutput {
	return func(protocol.ToolCall) protocol.ToolCallOutput {
		return protocol.ToolCallOutput{Output: out, StopReason: protocol.Completed}
	}
}

func TestDemo_CountsWordsByRealCalls(t *testing.T) {
	p := &play{t: t, tools: worked("  42\n")}
	texts := p.say("count the words in README.md.")
	require.Contains(t, texts[0], "demo model: no intelligence")
	require.Equal(t, "README.md has 42 words.", texts[len(texts)-1])
	require.Len(t, p.called, 2)
	require.Equal(t, "read_file", p.called[0].Name)
	require.JSONEq(t, `{"path":"README.md"}`, p.called[0].Arguments)
	require.Equal(t, "exec_command", p.called[1].Name)
	require.JSONEq(t, `{"cmd":"wc -w < README.md"}`, p.called[1].Arguments)

	p.tools = worked("7\n")
	require.Equal(t, []string{"I look at it's.txt and have wc count.", "it's.txt has 7 words."}, p.say(`How many words are in "it's.txt"?`))
	require.JSONEq(t, `{"cmd":"wc -w < 'it'\\''s.txt'"}`, p.called[3].Arguments)
	require.NotEqual(t, p.called[0].ToolCallID, p.called[1].ToolCallID)
}

func TestDemo_DoesTheObviousCall(t *testing.T) {
	for prompt, want := range map[string][2]string{
		"write hello world to a.txt": {"write_file", `{"path":"a.txt","content":"hello world\n"}`},
		"read the file a.txt":        {"read_file", `{"path":"a.txt"}`},
		"run `go version`":           {"exec_command", `{"cmd":"go version"}`},
		"list files":                 {"list_files", `{"path":"."}`},
		"what are you?":              {"list_files", `{"path":"."}`},
	} {
		p := &play{t: t, tools: worked("the output")}
		texts := p.say(prompt)
		require.Len(t, p.called, 1, prompt)
		require.Equal(t, want[0], p.called[0].Name)
		require.JSONEq(t, want[1], p.called[0].Arguments)
		require.Contains(t, texts[len(texts)-1], "the output")
	}
}

func TestDemo_SaysWhenACallIsDenied(t *testing.T) {
	p := &play{t: t, tools: func(protocol.ToolCall) protocol.ToolCallOutput {
		return protocol.ToolCallOutput{Output: protocol.NoteDenied, StopReason: protocol.Aborted}
	}}
	texts := p.say("count the words in a.txt")
	require.Len(t, p.called, 1)
	require.Contains(t, texts[len(texts)-1], protocol.NoteDenied)
}

func TestDemo_NeedsItsTools(t *testing.T) {
	got := stream(t.Context(), t, llm.Demo(), ask("run ls"))
	require.Empty(t, got.calls)
	require.Contains(t, got.text, "exec_command")
}

func TestDemo_StreamsAndStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var ps []protocol.Payload
	o := llm.Demo().Stream(ctx, ask("what are you?"), func(p protocol.Payload) error {
		if ps = append(ps, p); len(ps) == 3 {
			cancel()
		}
		return nil
	})
	got := fold(t, o, ps)
	require.Equal(t, protocol.Aborted, got.Status)
	require.Len(t, ps, 5) // start, two deltas, stop, the half text

	o = llm.Demo().Stream(t.Context(), ask("hi"), func(protocol.Payload) error { return errors.New("full") })
	require.Equal(t, protocol.Aborted, o.Status)
}

func TestDemo_AnswersTitleAndSummary(t *testing.T) {
	task := []protocol.Message{protocol.New(protocol.UserText("count the words in README.md please"))}
	title, _, asked := llm.Title(t.Context(), llm.Demo(), task)
	require.True(t, asked)
	require.Equal(t, "count the words in README.md p", title)
	got := stream(t.Context(), t, llm.Demo(), ask("Put it into [summary] and [/summary]."))
	require.NotEqual(t, got.text, protocol.ExtractSummary(got.text))
}

func TestDemo_EndsBehindACompaction(t *testing.T) {
	p := &play{t: t}
	texts := p.say(protocol.ContextSummary("what was done"))
	require.Len(t, texts, 1)
	require.Contains(t, texts[0], "ask me again")
	require.Empty(t, p.called)
}
