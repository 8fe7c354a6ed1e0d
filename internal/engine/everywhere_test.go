package engine_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"rookery/internal/engine"
	"rookery/internal/engine/enginetest"
	"rookery/protocol"
)

// eventful is a task with all that a task can have: approvals by a person, denied,
// failed and slow calls, steering, a failed attempt with a call, a compaction in
// mid-task and one at the end. The second task follows whatever became of it. No two
// producers speak at one instant, so that message n is the same one in every run.
const eventful = `eventful
-- script --
config approve=ask max_context_length=100 compaction_prompt=SUM
model
  think "hm"
  call A t {}
  wait 1ms
  call B t {}
  wait 1ms
  half text "par"
  wait 1ms
  usage 40
  end timeout
model
  text "again"
  call C t {}
  wait 1ms
  call D t {}
  wait 1ms
  usage 100
model
  text "[summary]first[/summary]"
  usage 20
model
  call E t {}
  wait 1ms
  usage 30
model
  text "final"
  usage 100
model
  text "[summary]second[/summary]"
  usage 20
model
  text "one more"
model
  text "one more"
model
  text "one more"
tool A deltas "a" "aa" after 20ms
tool B after 10ms stop failed
tool C after 10ms
tool E after 10ms
at +approval_request(A): approve A allow
at +approval_request(B): approve B allow
at +approval_request(C): approve C allow
at +approval_request(D): approve D deny
at +approval_request(E): approve E allow
at request_end(timeout): steer "steered"
`

// interrupted returns the scenario in which do happens at the nth message of the
// output, followed by what the client does next.
func interrupted(t *testing.T, n int, do enginetest.Verb, then string) *enginetest.Scenario {
	t.Helper()
	s, err := enginetest.Parse(fmt.Sprintf("%s at message %d", do, n), []byte(eventful+then))
	require.NoError(t, err)
	at := enginetest.Statement{Verb: enginetest.VerbAt, At: &enginetest.Hook{Nth: n, Do: enginetest.Statement{Verb: do}}}
	s.Script = append([]enginetest.Statement{at}, s.Script...)
	return s
}

// messages returns the output of the undisturbed first task.
func messages(t *testing.T) []protocol.Message {
	t.Helper()
	s, err := enginetest.Parse("undisturbed", []byte(eventful+"run go\n"))
	require.NoError(t, err)
	r := enginetest.Run(t, s)
	require.Len(t, r.Inputs, 6)
	require.Equal(t, "+task_end(completed)", r.Output[len(r.Output)-1].String())
	return r.Output
}

// paired checks that a request holds exactly one output for each call, before
// anything else of the assistant (L046, L069).
func paired(t *testing.T, history, input []protocol.Message, name string) {
	t.Helper()
	open := map[string]bool{}
	user := false
	for _, m := range append(append([]protocol.Message(nil), history...), input...) {
		switch p := m.Payload.(type) {
		case protocol.ToolCall:
			require.Equal(t, protocol.Completed, p.StopReason, name)
			if user {
				require.Empty(t, open, "%s: a reply before the outputs", name)
			}
			open[p.ToolCallID], user = true, false
		case protocol.ToolCallOutput:
			require.True(t, open[p.ToolCallID], "%s: orphan output of %s", name, p.ToolCallID)
			delete(open, p.ToolCallID)
			user = true
		case protocol.Text:
			if p.Role == protocol.Assistant && user {
				require.Empty(t, open, "%s: a reply before the outputs", name)
			}
			user = p.Role == protocol.User
		default:
		}
	}
	require.Empty(t, open, "%s: calls without an output", name)
}

func TestEngine_AbortAtEveryMessage(t *testing.T) { // L012 L066 L069-L080 L126 L157
	undisturbed := messages(t)
	total := len(undisturbed)
	for n := range undisturbed {
		n++
		live := enginetest.Run(t, interrupted(t, n, enginetest.VerbAbort, "run go\nrun next\n"))
		resumed := enginetest.Run(t, interrupted(t, n, enginetest.VerbAbort, "run go\nresume\nrun next\n"))
		name := fmt.Sprintf("abort at message %d", n)
		ends, status := 0, protocol.TaskStatus("")
		for i, m := range live.Output {
			if end, ok := m.Payload.(protocol.TaskEnd); ok {
				if ends++; ends == 1 {
					status = end.Status
				}
				if end.Status == protocol.TaskAborted {
					require.IsType(t, protocol.Abort{}, live.Output[i-1].Payload, name)
				}
			}
		}
		require.Equal(t, 2, ends, name)
		if n < total { // at task_end nothing runs any more
			require.Equal(t, protocol.TaskAborted, status, name)
		}
		require.Len(t, resumed.Inputs, len(live.Inputs), name)
		for i := range live.Inputs {
			paired(t, live.Histories[i], live.Inputs[i], name)
			require.Equal(t, show(live.Inputs[i]), show(resumed.Inputs[i]), "%s: input %d", name, i+1)
			require.Equal(t, show(live.Histories[i]), show(resumed.Histories[i]), "%s: history %d", name, i+1)
		}
		for id, runs := range live.Runs {
			require.Equal(t, 1, runs, "%s: %s", name, id)
		}
	}
}

func TestEngine_ProcessGoneAtEveryMessage(t *testing.T) { // L102 L157 L158 L159 L162
	for n := 1; n <= len(messages(t)); n++ {
		r := enginetest.Run(t, interrupted(t, n, enginetest.VerbResume, "run go\nrun next\n"))
		name := fmt.Sprintf("gone at message %d", n)
		require.Equal(t, "+task_end(completed)", r.Output[len(r.Output)-1].String(), name)
		for i := range r.Inputs {
			paired(t, r.Histories[i], r.Inputs[i], name)
			for _, m := range r.Histories[i] {
				require.NotEqual(t, `text[user]"SUM"`, m.String(), "%s: the compaction prompt became history", name)
			}
		}
		for id, runs := range r.Runs {
			require.Equal(t, 1, runs, "%s: %s", name, id)
		}
	}
}

func TestEngine_LeavingAtEveryMessage(t *testing.T) {
	s, err := enginetest.Parse("leave", []byte(eventful+"run go\n"))
	require.NoError(t, err)
	for n := 1; n <= len(messages(t)); n++ {
		synctest.Test(t, func(t *testing.T) { leave(t, s, n) })
	}
}

// leave breaks out of the loop at the nth message; the bubble finds goroutines that
// are left behind.
func leave(t *testing.T, s *enginetest.Scenario, n int) {
	t.Helper()
	left := 0
	model := enginetest.NewModel(s.Replies(), &enginetest.Gates{}, func(int, string, ...any) {})
	e, err := engine.New(engine.Config{
		Model: model, Executor: enginetest.NewTools(nil, &enginetest.Gates{}), Approver: allowAll{},
		Settings: engine.Settings{MaxContext: 100, CompactionPrompt: "SUM"},
	})
	require.NoError(t, err)
	for range e.Run(t.Context(), engine.Resume{}, engine.Input{TaskID: "t", Prompt: protocol.Payloads{protocol.UserText("go")}}) {
		if left++; left == n {
			break
		}
	}
	require.False(t, e.Abort("late"), "after leaving at message %d", n)
}
