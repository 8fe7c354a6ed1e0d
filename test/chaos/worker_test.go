package chaos_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/llm/llmtest"
)

// A worker is killed at each step of a call, and comes back.
func TestWorker_KilledAtEachStepOfACall(t *testing.T) {
	const (
		completed = `^tool_call_output\[step-1,completed\]"did-1\\n"$`
		unknown   = `^tool_call_output\[step-1,failed\]"(did-1\\n)?\[tool error\] outcome unknown: ` // what viewers saw stays
	)
	for _, c := range []struct {
		point   string
		effects int // -1: none or one
		output  string
		fate    string
		answer  string
	}{
		{"before-claim", 1, completed, "", "all 1 done"},
		{"after-claim", 0, unknown, "+call_fate(step-1,unknown)", "done but for 1"},
		{"before-ack", -1, unknown, "+call_fate(step-1,unknown)", "done but for 1"},
		{"running", 1, unknown, "+call_fate(step-1,unknown)", "done but for 1"},
		{"after-effect", 1, unknown, "+call_fate(step-1,unknown)", "done but for 1"},
		{"after-journal", 1, completed, "", "all 1 done"},
		{"after-result", 1, completed, "", "all 1 done"},
	} {
		t.Run(c.point, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.orchestrator("o1", "")
			w := r.worker(c.point)
			p := steps(1)
			if c.effects < 0 {
				p = slow // acks wait for others, and meanwhile the call runs
			}
			req := r.request(r.brain.teach(p))
			sid := r.run(req)
			w.crashed()
			r.worker("")
			lines := r.verify(sid)
			require.Regexp(t, c.output, outputOf(t, lines))
			require.Contains(t, lines, `text[assistant]"`+c.answer+`"`)
			require.Contains(t, lines, "+task_end(completed)")
			if c.fate != "" {
				require.Contains(t, lines, c.fate)
			}
			if c.effects >= 0 {
				require.Len(t, r.ledger(), c.effects)
			}
			for line, n := range r.ledger() {
				require.Equal(t, 1, n, line)
			}
			require.Equal(t, 2, r.brain.requests(req.Prompt))
		})
	}
}

// What only reads is simply done again.
func TestWorker_KilledWithACallThatReads(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.orchestrator("o1", "")
	w := r.worker("after-effect")
	req := r.request(r.brain.teach(func(v view) []llmtest.Step {
		if _, told := v.Told[1]; !told {
			return []llmtest.Step{call(1, "list_files", map[string]string{}), llmtest.Usage(10, 5)}
		}
		return answer("listed")
	}))
	sid := r.run(req)
	w.crashed()
	r.worker("")
	lines := r.verify(sid)
	require.Contains(t, lines, "+call_fate(step-1,retried)")
	require.Contains(t, lines, `text[assistant]"listed"`)
	require.Equal(t, 2, r.brain.requests(req.Prompt))
}

// outputOf is the line of the first step's output, of which there must be one.
func outputOf(t *testing.T, lines []string) string {
	t.Helper()
	var found []string
	for _, l := range lines {
		if strings.HasPrefix(l, "tool_call_output[step-1,") {
			found = append(found, l)
		}
	}
	require.Len(t, found, 1)
	return found[0]
}
