package llm_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/llm"
	"rookery/internal/llm/llmtest"
	"rookery/protocol"
)

func TestTitlePrompt_TakesTheTextsWithoutMarkers(t *testing.T) {
	say := func(role protocol.Role, s string) protocol.Message {
		return protocol.New(protocol.Text{Role: role, Text: s, StopReason: protocol.Completed})
	}
	got := llm.TitlePrompt([]protocol.Message{
		say(protocol.User, "[turn_aborted]\n  [user_input]old[/user_input]\n[/turn_aborted]"),
		say(protocol.User, "<context_summary>\nlong ago\n</context_summary>\nfix the roof"),
		protocol.New(protocol.Thinking{Thinking: "secret"}),
		say(protocol.Assistant, "It is "+strings.Repeat("é", 2000)),
	})
	require.Contains(t, got, "\nUser:\nfix the roof\n")
	require.NotContains(t, got, "old")
	require.NotContains(t, got, "long ago")
	require.NotContains(t, got, "secret")
	require.Equal(t, 994, strings.Count(got, "é"))

	require.Empty(t, llm.TitlePrompt(nil))
	require.Empty(t, llm.TitlePrompt([]protocol.Message{say(protocol.User, " \n"), say(protocol.Assistant, "hello")}))
	require.Equal(t, 2000, strings.Count(llm.TitlePrompt([]protocol.Message{say(protocol.User, strings.Repeat("ж", 3000))}), "ж"))
}

func TestCleanTitle(t *testing.T) {
	for in, want := range map[string]string{
		"\"Fix the roof.\"":          "Fix the roof",
		"  Fix\n the   roof!! ":      "Fix the roof",
		"“Dach reparieren…”":         "Dach reparieren",
		strings.Repeat("x", 50):      strings.Repeat("x", 30),
		strings.Repeat("ab cd ", 20): "ab cd ab cd ab cd ab cd ab cd",
		"...":                        "",
		"a\x00b":                     "a\ufffdb",
	} {
		require.Equal(t, want, llm.CleanTitle(in))
	}
}

func TestFirstLine(t *testing.T) {
	require.Equal(t, "second line", llm.FirstLine("\n  \n second\tline \nthird"))
	require.Equal(t, strings.Repeat("y", 30), llm.FirstLine(strings.Repeat("y", 40)))
	require.Empty(t, llm.FirstLine(" \n"))
}

func TestTitle_IsOneBareRequest(t *testing.T) {
	s := llmtest.Start(t)
	s.Reply(llmtest.Think("hm"), llmtest.Text("\"A ", "title.\""), llmtest.Usage(20, 4))
	s.Reply(llmtest.Status(500, ""))
	c := newClient(t, s)
	task := []protocol.Message{protocol.New(protocol.UserText("go"))}
	title, o, asked := llm.Title(t.Context(), c, task)
	require.True(t, asked)
	require.Equal(t, "A title", title)
	require.EqualValues(t, 24, o.Usage.Total)

	title, o, asked = llm.Title(t.Context(), c, task)
	require.True(t, asked)
	require.Empty(t, title)
	require.Equal(t, protocol.Timeout, o.Status)

	_, _, asked = llm.Title(t.Context(), c, nil)
	require.False(t, asked)
	reqs := s.Requests()
	require.Len(t, reqs, 2)
	require.Len(t, reqs[0].Messages, 1)
	require.Empty(t, reqs[0].Tools)
	require.Equal(t, "none", reqs[0].Effort)
	require.Contains(t, string(reqs[0].Body), `"max_tokens":300`)
}
