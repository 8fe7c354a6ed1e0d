package trace

import "rookery/protocol"

func (v *verifier) beginTask(p protocol.TaskBegin) {
	if v.task != nil {
		v.fault("task %q begins inside task %q", p.TaskID, v.task.TaskID)
	}
	v.task, v.aborted, v.turn, v.block = &p, false, nil, false
}

func (v *verifier) endTask(p protocol.TaskEnd) {
	switch {
	case v.task == nil:
		v.fault("task_end of %q, which has not begun or has ended", p.TaskID)
		return
	case v.task.TaskID != p.TaskID:
		v.fault("task_end of %q inside task %q", p.TaskID, v.task.TaskID)
	}
	if v.request {
		v.fault("task_end inside a request")
	}
	if v.compaction != nil {
		v.fault("task_end inside a compaction")
	}
	if !v.aborted && !v.compactRun() {
		v.answered("the end of the task")
	}
	v.task = nil
}

func (v *verifier) compactRun() bool { return v.task != nil && v.task.Of == "compact" }

// inTask checks that what stands here may stand here.
func (v *verifier) inTask(what string) {
	if !v.tasks {
		return
	}
	if v.task == nil {
		v.fault("%s outside a task", what)
	} else if v.aborted {
		v.fault("%s behind an abort", what)
	}
}

func (v *verifier) beginRequest() {
	if v.request {
		v.fault("request_begin inside a request")
	}
	v.inTask("request_begin")
	v.request, v.block = true, false
	if v.compaction == nil {
		v.answered("the next request")
		v.turn, v.taken = nil, false
		if !v.tasks {
			v.aborted = false
		}
	}
}

func (v *verifier) endRequest(p protocol.RequestEnd) {
	if !v.request {
		v.fault("request_end without request_begin")
	}
	v.request = false
	if v.compaction == nil {
		v.status = p.Status
	}
}

// tokens checks the sum over the session (L026).
func (v *verifier) tokens(p protocol.TokenUsage) {
	if !v.request {
		v.fault("token_usage outside a request")
	}
	if want := v.usage.Add(p.Request); p.Session != want {
		v.fault("token_usage: the session has %d, but its requests add up to %d", p.Session.Total, want.Total)
	}
	v.usage = p.Session
}

func (v *verifier) beginCompaction(p protocol.CompactionBegin) {
	if v.compaction != nil {
		v.fault("compaction_begin inside a compaction")
	}
	if v.request {
		v.fault("compaction_begin inside a request")
	}
	v.inTask("compaction_begin")
	if !v.compactRun() {
		v.answered("the compaction")
	}
	v.compaction = &p
}

func (v *verifier) endCompaction(p protocol.CompactionEnd) {
	if v.compaction == nil {
		v.fault("compaction_end without compaction_begin")
		return
	}
	if v.compaction.Reason != p.Reason || v.compaction.Mode != p.Mode {
		v.fault("compaction_end(%s,%s) of a compaction (%s,%s)", p.Reason, p.Mode, v.compaction.Reason, v.compaction.Mode)
	}
	if v.request {
		v.fault("compaction_end inside a request")
	}
	v.compaction = nil
	if p.Status == protocol.Completed {
		v.rotates, v.summary, v.turn = true, p.Mode != "discard", nil
	}
}

// text checks that nothing of the carry-over was recorded (L074, L105), and that
// the assistant speaks inside requests; the note at the cap is the exception (L063).
func (v *verifier) text(p protocol.Text) {
	if p.Role == protocol.User {
		v.userText(p)
		return
	}
	if !v.request && p.StopReason != protocol.Failed {
		v.fault("%s outside a request", protocol.Notation(p, false))
	}
}

// userText lets a block pass that is the whole prompt: a person may write one.
// Carry-over has another text behind it.
func (v *verifier) userText(p protocol.Text) {
	whole := protocol.IsBlock(protocol.TagTurnAborted, p.Text) || protocol.IsBlock(protocol.TagTurnRetried, p.Text)
	_, prompt := v.last.(protocol.TaskBegin)
	if v.block || whole && !prompt {
		v.fault("a [turn_aborted] or [turn_retried] block is recorded")
	}
	v.block = whole && prompt
}

func (v *verifier) call(p protocol.ToolCall) {
	if !v.request {
		v.fault("tool_call %q outside a request", p.ToolCallID)
	}
	if v.ids[p.ToolCallID] != nil {
		v.fault("tool_call %q stands twice", p.ToolCallID)
		return
	}
	c := &verified{id: p.ToolCallID, completed: p.StopReason == protocol.Completed || p.StopReason == ""}
	v.ids[c.id] = c
	if c.completed && v.compaction == nil {
		v.turn = append(v.turn, c)
	}
}

// known returns the call, which has to stand before what refers to it.
func (v *verifier) known(what, id string) *verified {
	c := v.ids[id]
	if c == nil {
		v.fault("%s of %q, which was not called", what, id)
	}
	return c
}

func (v *verifier) decision(p protocol.ApprovalDecision) {
	c := v.known("approval_decision", p.ToolCallID)
	if c == nil {
		return
	}
	switch {
	case !c.completed:
		v.fault("approval_decision on %q, which is not complete", c.id)
	case c.decision != "":
		v.fault("a second approval_decision on %q", c.id)
	case c.outputs > 0:
		v.fault("approval_decision on %q behind its output", c.id)
	}
	c.decision = p.Decision
}

func (v *verifier) dispatch(p protocol.CallDispatched) {
	c := v.known("call_dispatched", p.ToolCallID)
	if c == nil {
		return
	}
	switch {
	case c.decision != protocol.Allow:
		v.fault("call_dispatched of %q, which was not allowed", c.id)
	case c.outputs > 0:
		v.fault("call_dispatched of %q behind its output", c.id)
	case p.Attempt <= c.dispatched:
		v.fault("call_dispatched of %q: attempt %d behind attempt %d", c.id, p.Attempt, c.dispatched)
	}
	c.dispatched = p.Attempt
}

func (v *verifier) output(p protocol.ToolCallOutput) {
	if p.Output == protocol.NoteExited {
		v.fault("the placeholder output of %q is recorded", p.ToolCallID)
	}
	c := v.known("tool_call_output", p.ToolCallID)
	if c == nil {
		return
	}
	c.outputs++
	switch {
	case c.outputs > 1:
		v.fault("a second output of %q", c.id)
	case c.decision == "":
		v.fault("output of %q before its approval_decision", c.id)
	case c.decision == protocol.Deny && p.Output != protocol.NoteDenied:
		v.fault("%q was denied, but has an output of its own", c.id)
	}
}

// answered checks that the calls so far have their output. A call of a failed
// attempt that nobody decided on has none, nor has one whose owner went before it
// was sent.
func (v *verifier) answered(before string) {
	if v.aborted && !v.tasks {
		return // the loop was interrupted; placeholders stand in memory only
	}
	for _, c := range v.turn {
		unsent := v.taken && c.dispatched == 0
		if c.outputs == 0 && (v.status == protocol.Completed || c.decision != "" && !unsent) {
			v.fault("%q has no output before %s", c.id, before)
		}
	}
}
