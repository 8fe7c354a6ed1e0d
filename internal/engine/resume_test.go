package engine_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"rookery/internal/engine"
	"rookery/protocol"
)

func resumed(t *testing.T, e *engine.Engine, k *engine.Task) []string {
	t.Helper()
	var got []string
	for m := range e.Run(t.Context(), engine.Resume{Context: 1, Task: k}, engine.Input{}) {
		got = append(got, m.String())
	}
	return got
}

func TestResume_FirstActs(t *testing.T) { // L057 L066 L126 L162
	half := protocol.New(protocol.ToolCall{Role: protocol.Assistant, Name: "t", Arguments: "{", ToolCallID: "A", StopReason: protocol.Failed})
	reason := protocol.AbortedInBackoff
	for name, c := range map[string]struct {
		task engine.Task
		want []string
	}{
		"the last word was said":  {engine.Task{Aborted: &protocol.Abort{Reason: &reason}}, []string{"+task_end(aborted)"}},
		"the cap's note was said": {engine.Task{CapNote: true}, []string{"+task_end(max_turns)"}},
		"the prompt was not stored": {engine.Task{}, []string{
			`abort("the prompt was lost with the orchestrator")`, "+task_end(failed)",
		}},
		"an abort was accepted ahead of the first request": {
			engine.Task{Prompted: true, AbortRequested: &protocol.AbortRequested{By: "user"}},
			[]string{`abort("aborted by user")`, "+task_end(aborted)"},
		},
		"the only call was cut by the length limit": {
			engine.Task{Turns: 1, Turn: &engine.Turn{Status: protocol.Completed, Reply: []protocol.Message{half}}},
			[]string{"+task_end(failed)"},
		},
		"the final answer was committed": {
			engine.Task{Turns: 1, Turn: &engine.Turn{Status: protocol.Completed}},
			[]string{"+task_end(completed)"},
		},
		"the request had failed": {
			engine.Task{Turns: 1, Turn: &engine.Turn{Status: protocol.Failed}},
			[]string{`abort("llm request error: the reason was lost with the orchestrator")`, "+task_end(failed)"},
		},
		"a compaction by hand was cut": {
			engine.Task{TaskBegin: protocol.TaskBegin{Of: "compact"}, Compaction: &protocol.CompactionBegin{Reason: "manual", Mode: "summarize"}, CompactionRequest: true},
			[]string{"request_end(timeout)", "compaction_end(manual,summarize,failed)", "+task_end(failed)"},
		},
		"a compaction by hand had completed": {
			engine.Task{TaskBegin: protocol.TaskBegin{Of: "compact"}, Compacted: true},
			[]string{"+task_end(completed)"},
		},
		"a compaction behind the final answer had completed": {
			engine.Task{Turns: 1, Prompted: true, Compacted: true, Final: true},
			[]string{"+task_end(completed)"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, err := engine.New(engine.Config{
					Model: modelFunc(nil), Executor: toolFunc(nil), Settings: engine.Settings{NoCompaction: true},
				})
				require.NoError(t, err)
				require.Equal(t, c.want, resumed(t, e, &c.task))
			})
		})
	}
}
