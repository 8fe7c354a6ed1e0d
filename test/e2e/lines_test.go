package e2e_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/protocol"
)

// messages reads what --json wrote: one message a line, nothing else.
func messages(t *testing.T, out string) []protocol.Message {
	t.Helper()
	require.True(t, out == "" || strings.HasSuffix(out, "\n"), "the last line is cut: %q", tail(out))
	var ms []protocol.Message
	for line := range strings.Lines(out) {
		var m protocol.Message
		require.NoError(t, json.Unmarshal([]byte(line), &m), "line %q", line)
		require.NotNil(t, m.Payload)
		ms = append(ms, m)
	}
	return ms
}

// end returns the task_end that must be the last message.
func end(t *testing.T, ms []protocol.Message) protocol.TaskEnd {
	t.Helper()
	require.NotEmpty(t, ms)
	e, ok := ms[len(ms)-1].Payload.(protocol.TaskEnd)
	require.True(t, ok, "the last message is %s", ms[len(ms)-1])
	return e
}

// transcript is what of a stream is complete, one line each.
func transcript(ms []protocol.Message) []string {
	var lines []string
	for _, m := range ms {
		if !protocol.IsPartial(m.Payload) {
			lines = append(lines, string(m.Encode()))
		}
	}
	return lines
}

// all returns the payloads of a type.
func all[P protocol.Payload](ms []protocol.Message) []P {
	var ps []P
	for _, m := range ms {
		if p, ok := m.Payload.(P); ok {
			ps = append(ps, p)
		}
	}
	return ps
}

// countLines counts the lines that hold a text.
func countLines(s, text string) int {
	n := 0
	for line := range strings.Lines(s) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// fromTask leaves out what a session says before its first task.
func fromTask(lines []string) []string {
	for i, line := range lines {
		if strings.Contains(line, `"type":"task_begin"`) {
			return lines[i:]
		}
	}
	return nil
}
