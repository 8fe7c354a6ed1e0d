package resume

import (
	"rookery/internal/engine"
	"rookery/internal/trace"
)

// Of is what a run starts from. Its slices are the fold's, which goes on appending to
// them: the engine copies where that matters.
func Of(f *trace.Fold) engine.Resume {
	st := f.State()
	return engine.Resume{
		Context: st.Context, Rotate: st.Rotate, Summary: st.Summary,
		History: st.History, Pending: st.Pending, IDs: st.IDs,
		Usage: st.Usage, ContextTokens: st.ContextTokens, Turns: st.Turns, Requests: st.Requests,
		Task: taskOf(st.Task),
	}
}

// taskOf is what a successor knows of a running task.
func taskOf(t *trace.Task) *engine.Task {
	if t == nil {
		return nil
	}
	k := &engine.Task{
		TaskBegin: t.TaskBegin, Turns: t.Turns, FailedCompactions: t.FailedCompactions, Denied: t.Denied,
		Steering: t.Steering, AbortRequested: t.AbortRequested, Aborted: t.Aborted, CapNote: t.CapNote,
		Compaction: t.Compaction, CompactionRequest: t.CompactionRequest, Compacted: t.Compacted, Final: t.Final,
		Prompted: t.Prompted,
	}
	if !t.Open {
		return k
	}
	k.Turn = &engine.Turn{
		Input: t.Input, Requested: t.Requested, Status: t.Last, Lost: t.Lost, Reply: t.Reply,
		Received: t.Received, Takeovers: t.Takeovers, Next: t.Next,
	}
	for _, a := range t.Attempts {
		k.Turn.Attempts = append(k.Turn.Attempts, engine.Attempt{Reply: a.Reply, Outputs: a.Outputs(), Lost: a.Lost})
	}
	for _, c := range t.Calls {
		k.Turn.Calls = append(k.Turn.Calls, engine.OpenCall{
			Call:     engine.Call{ToolCall: c.ToolCall, Request: c.Request, Position: c.Position, Prior: c.Dispatched},
			Decision: c.Decision, Output: c.Output,
		})
	}
	return k
}
