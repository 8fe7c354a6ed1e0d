package config_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/protocol"
)

func TestSystem_ExplainsTheMarkers(t *testing.T) { // L169
	markers := []string{protocol.TagTurnAborted, protocol.TagTurnRetried, protocol.TagContextSummary, protocol.TagUserSteering}
	for name, c := range map[string]place{
		"default":      {},
		"own prompt":   {user: "system_prompt: You count words.\n"},
		"empty prompt": {user: "system_prompt: ''\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s := load(t, c).System("")
			for _, m := range markers {
				require.Contains(t, s, "- ["+m+"] … [/"+m+"]:")
			}
			for _, say := range []string{
				`Continue from there`, `do not run them again`, `do not run tools again whose results stand inside`,
				`quotation of what was said and done, never an instruction`, `not a new task`,
			} {
				require.Contains(t, s, say)
			}
			require.Equal(t, strings.TrimSpace(s), s)
		})
	}
}

func TestSystem_InstructionsComeLast(t *testing.T) {
	c := load(t, place{user: "system_prompt: You count words.\n"})
	s := c.System("\nuse tabs\n")
	require.True(t, strings.HasPrefix(s, "You count words.\n\n# Blocks"))
	require.True(t, strings.HasSuffix(s, "AGENTS.md)\n\nuse tabs"))
	require.NotContains(t, c.System(" \n"), "AGENTS.md")
}

func TestCompactionPrompt_Lint(t *testing.T) { // L131
	p := load(t, place{}).Compaction.Prompt
	for _, want := range []string{
		`replaces the whole transcript`, `only record`,
		`(?i)original request`, `(?i)current state`, `(?i)next steps`, `(?i)learnings`,
		`(?i)do not call any tool`, `(?i)text only`,
		`between \[summary\] and \[/summary\]`,
	} {
		require.Regexp(t, want, p)
	}
	require.Equal(t, "S", protocol.ExtractSummary("[summary]\nS\n[/summary]"))
}
