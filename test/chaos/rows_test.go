package chaos_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/client"
	"rookery/internal/llm/llmtest"
	"rookery/protocol"
)

// held is a plan whose first request stops in the middle of its reply.
func held(before []llmtest.Step, p plan) plan {
	return func(v view) []llmtest.Step {
		if v.Asked == 0 {
			return append(slices.Clip(before), llmtest.Hold("never"))
		}
		return p(v)
	}
}

// slow is a task of one step that takes long enough to be caught at it.
func slow(v view) []llmtest.Step {
	if _, told := v.Told[1]; !told {
		return step(1, "sleep 3;")
	}
	return answer(v.summary(1))
}

// asked waits until the endpoint got n requests of the task.
func asked(n int) func(*fallen) {
	return func(f *fallen) {
		f.t.Helper()
		f.rig.asked(f.request, n)
	}
}

func TestTakeover_Request(t *testing.T) {
	hello := func(view) []llmtest.Step { return answer("hello") }
	for _, c := range []takeover{
		{name: "the session is taken, nothing is stored", point: "before-append", plan: hello, requests: 1},
		{name: "the session is made, nothing more", point: "after-append", plan: hello, requests: 1},
		{
			name: "only the task has begun", point: "after-task-begin", plan: hello,
			want: []string{`abort("the prompt was lost with the orchestrator")`, "+task_end(failed)"},
		},
		{
			name: "the prompt is stored", point: "after-text", plan: hello, requests: 1,
			want: then([]string{"request_begin"}, reply("hello", 15)...),
		},
		{
			name: "the request has begun", point: "after-request-begin", plan: hello, requests: 1,
			want: then([]string{"request_end(timeout)", "request_begin"}, reply("hello", 15)...),
		},
		{
			name: "the request runs", plan: held([]llmtest.Step{llmtest.Text("hel")}, hello), died: asked(1), requests: 2,
			want: then([]string{"request_end(timeout)", "request_begin"}, reply("hello", 15)...),
		},
		{
			name: "a text of the reply is stored", point: "after-text:2", plan: hello, requests: 2,
			want: then([]string{"request_end(timeout)", "request_begin"}, reply("hello", 15)...),
		},
		{
			name: "a call of the reply is stored", point: "after-tool-call", plan: steps(1), requests: 3, effects: 1,
			want: then([]string{
				"request_end(timeout)", "request_begin", "tool_call[step-1#2,completed]", "*", "request_begin",
			}, reply("all 1 done", 30)...),
		},
		{
			name: "a reconnect is left", plan: func(v view) []llmtest.Step {
				if v.Asked == 0 {
					return []llmtest.Step{llmtest.Text("half"), llmtest.Cut()}
				}
				return answer("hello")
			}, point: "after-request-end", requests: 2,
			want: then([]string{"+retry(1,50ms)", "request_begin"}, reply("hello", 15)...),
		},
		{
			name: "no reconnect is left", env: []string{"ROOKERY_RETRY_RECONNECTS", "0"}, plan: func(view) []llmtest.Step {
				return []llmtest.Step{llmtest.Text("half"), llmtest.Cut()}
			}, point: "after-request-end", requests: 1,
			want: []string{`abort("malformed response failed after 0 retries")`, "+task_end(failed)"},
		},
		{
			name: "steering is stored", plan: held(nil, func(v view) []llmtest.Step { return answer(fmt.Sprint("steered ", containsSteering(v))) }),
			point: "after-steering-queued", requests: 3,
			meanwhile: func(f *fallen) {
				asked(1)(f)
				_ = f.node.Steer(f.alive(), f.sid, "to the left") // its answer dies with the owner
			},
			want: then([]string{
				"request_end(timeout)", "request_begin", "*", "request_end(completed)",
				`text[user]"[user_steering]\nto the left\n[/user_steering]"`, "request_begin",
			}, reply("steered true", 30)...),
		},
		{
			name: "everything but the end", point: "before-task-end", plan: hello, requests: 1,
			want: []string{"+task_end(completed)"},
		},
		{
			name: "the end is stored, nobody was told", point: "after-task-end", plan: hello, requests: 1,
		},
		{
			name: "the cap note is the last word", point: "before-task-end", plan: steps(2), requests: 1, effects: 1,
			options: func(r *client.RunRequest) { r.Options.MaxTurns = 1 },
			want:    []string{"+task_end(max_turns)"},
		},
	} {
		t.Run(c.name, c.run)
	}
}

func containsSteering(v view) bool {
	return strings.Contains(v.Text, protocol.Steering("to the left"))
}

func TestTakeover_Abort(t *testing.T) {
	abort := func(f *fallen) {
		asked(1)(f)
		_, err := f.node.Abort(f.alive(), f.sid, "user")
		require.True(f.t, f.died(err), err)
	}
	forever := func(view) []llmtest.Step { return []llmtest.Step{stepCall(1, "sleep 600;"), llmtest.Usage(10, 5)} }
	for _, c := range []takeover{
		{
			name: "the abort of a request is stored", point: "after-abort-requested", requests: 1,
			plan: held([]llmtest.Step{llmtest.Text("never")}, steps(0)), meanwhile: abort,
			want: []string{"request_end(aborted)", `abort("aborted by user")`, "+task_end(aborted)"},
		},
		{
			name: "the abort of a call is stored", point: "after-abort-requested", requests: 1, effects: 1, plan: forever,
			meanwhile: func(f *fallen) {
				f.began(1)
				f.until(f.sid, "request_end(completed)")
				abort(f)
			},
			want: []string{`tool_call_output[step-1,aborted]"[interrupted: tool aborted by user]"`, `abort("aborted by user")`, "+task_end(aborted)"},
		},
		{
			name: "the abort has its last word", point: "after-abort", requests: 1,
			plan: held(nil, steps(0)), meanwhile: abort,
			want: []string{"+task_end(aborted)"},
		},
	} {
		t.Run(c.name, c.run)
	}
}

func TestTakeover_Call(t *testing.T) {
	approved := func(d protocol.Decision) func(*fallen) { return func(f *fallen) { f.decide(d) } }
	done := `tool_call_output[step-1,completed]"did-1\n"`
	rest := reply("all 1 done", 30)
	for _, c := range []takeover{
		{
			name: "a reply waits for a person", point: "after-reply-received", plan: steps(1), options: ask, requests: 2, effects: 1,
			afterwards: func(f *fallen) { f.until(f.sid, "+approval_request(step-1)"); f.approve(protocol.Allow) },
			want:       then([]string{"+approval_request(step-1)", "approval_decision(allow,step-1)", "*", "+call_dispatched(step-1)", "*", done, "*", "request_begin"}, rest...),
		},
		{
			name: "allow is stored", point: "after-approval-decision", plan: steps(1), options: ask, requests: 2, effects: 1,
			meanwhile: approved(protocol.Allow),
			want:      then([]string{"*", "+call_dispatched(step-1)", "*", done, "*", "request_begin"}, rest...),
		},
		{
			name: "deny is stored", point: "after-approval-decision", plan: steps(1), options: ask, requests: 2,
			meanwhile: approved(protocol.Deny),
			want: then([]string{
				`tool_call_output[step-1,aborted]"Tool call denied by user."`, "token_usage(request 15, session 15)",
				"request_end(completed)", "request_begin",
			}, reply("done but for 1", 30)...),
		},
		{
			name: "a policy's deny is stored", point: "after-approval-decision", plan: steps(1), requests: 2,
			options: func(r *client.RunRequest) { r.Options.Approve = "deny-all" },
			want: then([]string{
				"request_end(timeout)", `tool_call_output[step-1,aborted]"Tool call denied by user."`, "request_begin",
			}, reply("done but for 1", 15)...),
		},
		{
			name: "the dispatch is stored and not published", point: "after-call-dispatched", plan: steps(1), options: ask, requests: 2, effects: 1,
			meanwhile: approved(protocol.Allow),
			want:      then([]string{"*", "+call_fate(step-1,retried)", "+call_dispatched(step-1)", "*", done, "*", "request_begin"}, rest...),
		},
		{
			name: "the call is published", point: "after-dispatch", plan: steps(1), options: ask, requests: 2, effects: 1,
			meanwhile: approved(protocol.Allow),
			want:      then([]string{"*", done, "*", "request_begin"}, rest...),
		},
		{
			name: "a living worker has the call", plan: slow, requests: 2, effects: 1,
			died: func(f *fallen) {
				f.until(f.sid, "request_end(completed)")
				f.began(1)
			},
			want: then([]string{done, "request_begin"}, rest...),
		},
		{
			name: "the result is there and not recorded", point: "before-tool-call-output", plan: slow, requests: 2, effects: 1,
			want: then([]string{done, "request_begin"}, rest...),
		},
		{
			name: "the outputs are recorded", point: "before-request-begin:2", plan: slow, requests: 2, effects: 1,
			want: then([]string{"request_begin"}, rest...),
		},
	} {
		t.Run(c.name, c.run)
	}
}
