package chaos_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/llm/llmtest"
)

// compacting is a task of one step whose context is compacted behind it.
func compacting(v view) []llmtest.Step {
	switch {
	case strings.Contains(v.Text, "about to be replaced by a summary"):
		return answer(fmt.Sprintf("[summary]%s: step 1 is done[/summary]", v.Task))
	case strings.Contains(v.Text, "step 1 is done"):
		return answer("all 1 done")
	}
	return steps(1)(v)
}

func TestTakeover_CompactionOfARunningTask(t *testing.T) {
	// The limit of one turn has a second compaction follow on the last turn.
	rest := []string{"session_meta", "*", "request_begin", `text[assistant]"all 1 done"`, "*", "+task_end(completed)"}
	again := then([]string{
		"compaction_end(turns,summarize,failed)", "compaction_begin(turns,summarize,context 15,turns 1)", "*",
		"compaction_end(turns,summarize,completed)",
	}, rest...)
	for _, c := range []takeover{
		{name: "it has begun", point: "after-compaction-begin", requests: 4, want: again},
		{name: "its request has begun", point: "after-request-begin:2", requests: 4, want: then([]string{"request_end(timeout)"}, again...)},
		{
			name: "its request runs", died: func(f *fallen) { f.asked(f.request, 2) }, requests: 5, want: then([]string{"request_end(timeout)"}, again...),
			plan: func(v view) []llmtest.Step {
				if v.Asked == 1 {
					return []llmtest.Step{llmtest.Text("[summ"), llmtest.Hold("never")}
				}
				return compacting(v)
			},
		},
		{name: "its answer is in", point: "before-compaction-end", requests: 5, want: again},
		{name: "it has ended", point: "after-compaction-end", requests: 4, want: rest},
	} {
		c.env, c.effects = []string{"ROOKERY_COMPACTION_MAX_SESSION_TURNS", "1"}, 1
		if c.plan == nil {
			c.plan = compacting
		}
		t.Run(c.name, c.run)
	}
}

// A compaction by hand is a task of its own: it fails with its orchestrator, or was
// completed, and the session goes on in either case.
func TestTakeover_CompactionByHand(t *testing.T) {
	for point, end := range map[string]string{
		"after-compaction-begin": "+task_end(failed)", "before-compaction-end": "+task_end(failed)", "after-compaction-end": "+task_end(completed)",
	} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			owner := r.orchestrator("victim", point)
			r.worker("")
			r.orchestrator("survivor", "")
			req := r.request(r.brain.teach(compacting))
			_, err := r.client.At("victim").Run(t.Context(), req)
			require.NoError(t, err)
			r.until(req.Session, "+task_end(completed)")
			f := &fallen{rig: r, request: req, sid: req.Session, owner: owner}
			f.follow()
			_, err = r.client.At("victim").Compact(f.alive(), f.sid)
			require.True(t, f.died(err), err)
			owner.crashed()
			r.wait(func() bool { return count(r.lines(f.sid), "+task_end") == 2 }, because("the compaction does not end"))
			lines := r.lines(f.sid)
			require.Equal(t, end, lines[len(lines)-1])
			f.idle()
			second := r.request(r.brain.teach(func(view) []llmtest.Step { return answer("still here") }))
			second.Session = f.sid
			r.run(second)
			r.until(f.sid, `text[assistant]"still here"`)
			f.idle()
			if strings.Contains(end, "completed") {
				require.Equal(t, 2, count(r.lines(f.sid), "session_meta"), "the summary opens a context")
			}
			f.verified()
			f.count(1)
		})
	}
}

func count(lines []string, prefix string) int {
	n := 0
	for _, l := range lines {
		if strings.HasPrefix(l, prefix) {
			n++
		}
	}
	return n
}
