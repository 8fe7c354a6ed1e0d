package engine

import (
	"context"
	"fmt"
	"slices"

	"rookery/protocol"
)

// maxTakeovers is how many orchestrators one request may cost.
const maxTakeovers = 3

// A Task is a running task as its records show it to a successor.
type Task struct {
	protocol.TaskBegin
	// Turns is how many turns it has begun, FailedCompactions how many of its
	// compactions failed, Denied whether a call was denied because nobody could
	// be asked.
	Turns             int
	FailedCompactions int
	Denied            bool
	// Steering holds accepted texts that no request got (L092).
	Steering []protocol.SteeringQueued
	// AbortRequested is an accepted abort, Aborted its last word, CapNote that
	// the note of L063 was said.
	AbortRequested *protocol.AbortRequested
	Aborted        *protocol.Abort
	CapNote        bool
	// Failing says why it must not go on: it is brought to its end like an aborted
	// one, and fails with that (L059).
	Failing string
	// Compaction has begun and not ended; CompactionRequest says that its request
	// has not, either. Compacted is one that has ended with no turn since, Final
	// that the turn before it made no call.
	Compaction        *protocol.CompactionBegin
	CompactionRequest bool
	Compacted, Final  bool
	// Turn is the open turn; nil before the next one has begun, whose input is
	// then all in Resume.Pending. Prompted says that the prompt was stored.
	Turn     *Turn
	Prompted bool
}

// A Turn is one whose request has begun and whose successor has not.
type Turn struct {
	Input    []protocol.Message
	Attempts []Attempt // failed ones
	// Requested says that the request has not ended; Status is how the last one
	// did. Reply and Calls are what came of it.
	Requested bool
	Status    protocol.StopReason
	Reply     []protocol.Message
	Calls     []OpenCall
	// Lost says that the last request ended with its orchestrator.
	Lost bool
	// Received is what was left of the reply when a person began to be asked.
	Received *protocol.ReplyReceived
	// Takeovers counts those that found the request open, this one included.
	Takeovers int
	// Next is input that came behind the turn's outputs and that no request got.
	Next []protocol.Message
}

// An Attempt is one that failed. Lost marks one that ended with its orchestrator
// and does not count (L099).
type Attempt struct {
	Reply, Outputs []protocol.Message
	Lost           bool
}

// An OpenCall is a call and what is recorded of it.
type OpenCall struct {
	Call
	Decision *protocol.ApprovalDecision
	Output   *protocol.Message
}

// goOnWith does a successor's first act and then works on (the takeover table).
func (r *run) goOnWith(k *Task) {
	r.in.TaskID, r.in.Options, r.in.By = k.TaskID, k.Options, k.By
	r.turns, r.failures, r.denied = k.Turns, k.FailedCompactions, k.Denied
	pending := r.from.Pending
	r.from.Pending = nil
	switch {
	case k.Aborted != nil:
		r.endQuietly(endingOf(k.Aborted))
		return
	case k.CapNote:
		r.endQuietly(&ending{status: protocol.TaskMaxTurns, reason: protocol.NoteMaxTurns(r.maxTurns())})
		return
	case k.Failing != "":
		r.failing, r.aborted = k.Failing, true
		r.cancel(ErrInterrupted)
	case k.AbortRequested != nil:
		r.box.abort(k.AbortRequested.By)
		r.aborted, r.by = true, k.AbortRequested.By
		r.cancel(ErrInterrupted)
	}
	if k.Compaction != nil {
		r.closeCompaction(k)
		if k.Of == "compact" {
			r.end(&ending{status: protocol.TaskFailed, reason: "compaction failed: the orchestrator was lost"})
			return
		}
	}
	switch {
	case k.Of == "compact" && k.Compacted:
		r.end(&ending{status: protocol.TaskCompleted})
	case k.Of == "compact":
		r.end(&ending{status: protocol.TaskFailed, reason: "compaction failed: the orchestrator was lost"})
	case k.Turn != nil:
		r.goOnWithTurn(k)
	case k.Compacted && k.Final && r.box.closeIfEmpty():
		r.end(&ending{status: protocol.TaskCompleted})
	case k.Compacted:
		r.work(nil, true)
	case !k.Prompted:
		r.end(failWith("the prompt was lost with the orchestrator", protocol.CodeLostOwner))
	default:
		r.work(pending, true)
	}
}

// endingOf is how a task ends whose last word was said.
func endingOf(a *protocol.Abort) *ending {
	reason := ""
	if a.Reason != nil {
		reason = *a.Reason
	}
	switch reason {
	case protocol.AbortedByUser, protocol.AbortedInBackoff, protocol.AbortedInCompact, "":
		return &ending{status: protocol.TaskAborted}
	}
	return &ending{status: protocol.TaskFailed, reason: reason}
}

// endQuietly says task_end for a task whose other last words are recorded.
func (r *run) endQuietly(e *ending) {
	e.abort = ""
	r.end(e)
}

// closeCompaction closes one that was cut (L162): it failed, and the old context
// goes on.
func (r *run) closeCompaction(k *Task) {
	if k.CompactionRequest {
		r.emit(protocol.RequestEnd{Status: protocol.Timeout})
	}
	r.emit(protocol.CompactionEnd{Reason: k.Compaction.Reason, Mode: k.Compaction.Mode, Status: protocol.Failed})
	r.failures++
}

// goOnWithTurn enters a turn where its records end.
func (r *run) goOnWithTurn(k *Task) {
	o := k.Turn
	t := &turn{run: r, input: o.Input, reply: o.Reply, next: o.Next}
	n := 0
	for _, a := range o.Attempts {
		t.block.Attempt(a.Reply, a.Outputs)
		if !a.Lost {
			n++
		}
	}
	t.sent = t.input
	if s := t.block.String(protocol.TagTurnRetried); s != "" {
		t.sent = append(slices.Clip(t.input), protocol.New(protocol.UserText(s)))
	}
	t.stream = r.noStream()
	var e *ending
	switch {
	case o.Requested && o.Received != nil:
		e = t.goOnWithReply(o, n)
	case o.Requested:
		e = t.again(o, n)
	case o.Status == protocol.Completed:
		t.outcome = &Outcome{Status: o.Status}
		t.known = true
		if t.cut = cutByLength(o.Reply); t.cut {
			t.outcome.Finish = finishLength
		}
		t.restore(o.Calls)
		t.settle()
	default:
		e = t.goOnAfter(o, n)
	}
	if r.gone {
		return
	}
	r.work(r.conclude(t, e))
}

// cutByLength reports a committed reply whose call was cut; only the length limit
// does that (L057).
func cutByLength(reply []protocol.Message) bool {
	for _, m := range reply {
		if tc, ok := m.Payload.(protocol.ToolCall); ok && tc.StopReason == protocol.Failed {
			return true
		}
	}
	return false
}

// again ends the request that was lost with its orchestrator and makes it anew. The
// attempt is not counted; a request that costs orchestrator after orchestrator ends.
func (t *turn) again(o *Turn, n int) *ending {
	t.outcome = &Outcome{Status: protocol.Timeout}
	if t.aborted {
		t.outcome.Status = protocol.Aborted
	}
	t.emit(protocol.RequestEnd{Status: t.outcome.Status})
	return t.afterLoss(o, n)
}

// afterLoss goes on behind a request that ended with its orchestrator.
func (t *turn) afterLoss(o *Turn, n int) *ending {
	t.attach(o.Calls)
	t.settle()
	t.block.Attempt(t.reply, t.outputs())
	switch {
	case t.gone:
		return &ending{}
	case t.aborted && t.outcome.Status == protocol.Aborted:
		return abortWith(protocol.AbortedByUser)
	case t.aborted:
		return abortWith(protocol.AbortedInBackoff)
	case o.Takeovers >= maxTakeovers:
		return failWith(fmt.Sprintf("orchestrator lost %d times in this turn", maxTakeovers), protocol.CodeLostOwner)
	}
	return t.work(n)
}

// goOnAfter goes on behind a request that did not complete.
func (t *turn) goOnAfter(o *Turn, n int) *ending {
	t.outcome = &Outcome{Status: o.Status, Message: "the reason was lost with the orchestrator"}
	if o.Lost {
		return t.afterLoss(o, n)
	}
	t.attach(o.Calls)
	e, over := t.judge(n)
	if over {
		return e
	}
	return t.work(n + 1)
}

// goOnWithReply takes the rest of a reply that had come when a person began to be
// asked; the attempt counts as completed.
func (t *turn) goOnWithReply(o *Turn, n int) *ending {
	t.stream = t.startStream(received{o.Received}, Request{})
	t.restore(o.Calls)
	t.finishAttempt()
	e, over := t.judge(n)
	if over {
		return e
	}
	return t.work(n + 1)
}

// restore brings calls back and does what is due on each: a decision, a denial's
// output, a dispatch.
func (t *turn) restore(calls []OpenCall) {
	for _, oc := range calls {
		c := &call{Call: oc.Call, output: oc.Output}
		switch {
		case c.output != nil:
			t.calls = append(t.calls, c)
		case oc.Decision == nil:
			t.approve(c)
		case oc.Decision.Decision != protocol.Allow:
			t.calls = append(t.calls, c)
			t.record(c, protocol.ToolCallOutput{Output: protocol.NoteDenied, StopReason: protocol.Aborted})
		case t.aborted && c.Prior == nil:
			t.calls = append(t.calls, c)
		default:
			t.calls = append(t.calls, c)
			t.start(c)
		}
	}
}

// attach brings back the calls of an attempt that does not count: those that were
// sent come to their end, no other is started (L102, L103).
func (t *turn) attach(calls []OpenCall) {
	for _, oc := range calls {
		c := &call{Call: oc.Call, output: oc.Output}
		t.calls = append(t.calls, c)
		switch {
		case c.output != nil:
		case oc.Decision != nil && oc.Decision.Decision != protocol.Allow:
			t.record(c, protocol.ToolCallOutput{Output: protocol.NoteDenied, StopReason: protocol.Aborted})
		case c.Prior != nil:
			t.start(c)
		}
	}
}

// noStream stands for a stream that is over.
func (r *run) noStream() *stream {
	return &stream{messages: make(chan protocol.Payload), outcome: make(chan Outcome), left: make(chan struct{})}
}

// received is a model that says what was left of a reply.
type received struct{ *protocol.ReplyReceived }

// Stream implements Model.
func (m received) Stream(_ context.Context, _ Request, emit func(protocol.Payload) error) Outcome {
	for _, p := range m.Rest {
		for _, q := range inPieces(p) {
			if emit(q) != nil {
				return Outcome{Status: protocol.Aborted}
			}
		}
	}
	return Outcome{
		Status: m.Status, Message: m.Message, Usage: m.Usage, Estimated: m.Estimated, Reasoning: m.Reasoning, Finish: m.Finish,
	}
}

// inPieces gives a complete payload its partials again (L022).
func inPieces(p protocol.Payload) []protocol.Payload {
	const done = protocol.Completed
	switch p := p.(type) {
	case protocol.Text:
		return []protocol.Payload{
			protocol.PartialText{Role: p.Role, EventType: protocol.Start, StopReason: done},
			protocol.PartialText{Role: p.Role, EventType: protocol.Delta, Text: p.Text, StopReason: done},
			protocol.PartialText{Role: p.Role, EventType: protocol.Stop, StopReason: p.StopReason},
			p,
		}
	case protocol.Thinking:
		return []protocol.Payload{
			protocol.PartialThinking{Role: p.Role, EventType: protocol.Start, StopReason: done},
			protocol.PartialThinking{Role: p.Role, EventType: protocol.Delta, Thinking: p.Thinking, StopReason: done},
			protocol.PartialThinking{Role: p.Role, EventType: protocol.Stop, StopReason: p.StopReason},
			p,
		}
	case protocol.ToolCall:
		return []protocol.Payload{
			protocol.PartialToolCall{Role: p.Role, EventType: protocol.Start, Name: p.Name, ToolCallID: p.ToolCallID, StopReason: done},
			protocol.PartialToolCall{Role: p.Role, EventType: protocol.Delta, Arguments: p.Arguments, ToolCallID: p.ToolCallID, StopReason: done},
			protocol.PartialToolCall{Role: p.Role, EventType: protocol.Stop, ToolCallID: p.ToolCallID, StopReason: p.StopReason},
			p,
		}
	default:
		return []protocol.Payload{p}
	}
}
