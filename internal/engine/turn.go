package engine

import (
	"fmt"
	"math"
	"slices"
	"time"

	"rookery/protocol"
)

// finishLength is the finish reason of an answer that the length limit cut (L057).
const finishLength = "length"

// A turn is one model request with its further attempts and the calls of its reply.
type turn struct {
	*run
	input []protocol.Message // original; no attempt changes it
	sent  []protocol.Message // what the last attempt was sent
	block protocol.Block     // of the failed attempts (L101)
	next  []protocol.Message // delivered already for the turn behind this one
	known bool               // another process committed it: the history has it

	// Of the current attempt:
	stream   *stream
	reply    []protocol.Message
	calls    []*call
	segments []segment // started and not complete, in order
	asked    *call     // its approval is awaited
	askShown bool      // … of a person
	outcome  *Outcome
	cut      bool // a call was cut by the length limit
}

// work makes attempts, beginning with the n-th, until one is committed and its
// calls are terminal. It returns the task's ending when the turn is not committed.
func (t *turn) work(n int) *ending {
	for ; ; n++ {
		t.attempt()
		if e, over := t.judge(n); over {
			return e
		}
	}
}

// judge waits for the calls of the n-th attempt and says what follows from its
// outcome: over with nil is a committed turn; not over is a further attempt.
func (t *turn) judge(n int) (e *ending, over bool) {
	if t.gone {
		return &ending{}, true
	}
	t.settle()
	switch status := t.outcome.Status; status {
	case protocol.Completed:
		return nil, true
	case protocol.Aborted:
		return abortWith(protocol.AbortedByUser), true
	case protocol.Timeout, protocol.Malformed:
		e = t.backoff(n, status)
		return e, e != nil
	default:
		return failWith("llm request error: "+t.outcome.Message, t.outcome.Code), true
	}
}

// attempt sends one request and emits the reply up to request_end (L035-L043).
func (t *turn) attempt() {
	t.reply, t.calls, t.segments, t.outcome, t.cut = nil, nil, nil, nil, false
	t.sent = t.input
	if s := t.block.String(protocol.TagTurnRetried); s != "" {
		t.sent = append(slices.Clip(t.input), protocol.New(protocol.UserText(s)))
	}
	t.from.Requests++
	t.emit(protocol.RequestBegin{})
	t.stream = t.startStream(t.cfg.Model, t.request(t.sent, t.in.Options.Thinking))
	t.finishAttempt()
}

// finishAttempt takes the stream to its outcome and closes the request.
func (t *turn) finishAttempt() {
	t.loop(func() bool { return t.outcome != nil && (!t.aborted || t.running() == 0) })
	if t.gone {
		return
	}
	t.closeRequest()
}

func (r *run) request(input []protocol.Message, thinking string) Request {
	if thinking == "" {
		thinking = r.cfg.Thinking
	}
	return Request{
		System: r.cfg.Meta.SystemPrompt, Tools: r.cfg.Meta.Tools,
		History: r.from.History, Input: input,
		Thinking: thinking, MaxTokens: r.cfg.MaxTokens, IDs: r.from.IDs,
		Session: r.cfg.Meta.SessionID, Number: r.from.Requests,
	}
}

// closeRequest closes what the stream left open and says how the request ended.
func (t *turn) closeRequest() {
	o := t.outcome
	if t.aborted && o.Status != protocol.Completed {
		o.Status = protocol.Aborted // L109
	}
	t.closeSegments(o.Status)
	if o.Status != protocol.Completed {
		t.emit(protocol.RequestEnd{Status: o.Status})
		return
	}
	t.from.Turns++
	if o.Usage == nil {
		t.emit(protocol.RequestEnd{Status: o.Status})
		return
	}
	t.emit(t.usage(o), protocol.RequestEnd{Status: o.Status}) // one step (L043)
}

func (r *run) usage(o *Outcome) protocol.TokenUsage {
	r.from.Usage = r.from.Usage.Add(*o.Usage)
	r.from.ContextTokens = o.Usage.Total
	return protocol.TokenUsage{Session: r.from.Usage, Request: *o.Usage, Estimated: o.Estimated, Reasoning: o.Reasoning}
}

// settle waits for the calls after request_end (L044, L103).
func (t *turn) settle() {
	if t.outcome.Status == protocol.Failed {
		t.interruptTools()
	}
	t.loop(func() bool { return t.running() == 0 })
}

// backoff keeps a failed attempt for the next one's input and waits (L098-L104).
func (t *turn) backoff(n int, status protocol.StopReason) *ending {
	t.block.Attempt(t.reply, t.outputs())
	return t.wait(n, status)
}

// wait is the pause behind the n-th attempt, or why there is no other.
func (t *turn) wait(n int, status protocol.StopReason) *ending {
	switch wait := max(time.Duration(n+1)*t.cfg.Backoff, t.outcome.RetryAfter); {
	case n >= t.cfg.Reconnects:
		return failWith(exhausted(status, t.cfg.Reconnects), t.outcome.Code)
	case t.aborted:
		return abortWith(protocol.AbortedInBackoff)
	case t.outcome.RetryAfter > t.cfg.RetryAfterCap:
		return failWith(fmt.Sprintf("provider asks to wait %d s", int(math.Ceil(t.outcome.RetryAfter.Seconds()))), t.outcome.Code)
	default:
		t.emit(protocol.Retry{Attempt: n + 1, WaitMS: wait.Milliseconds(), Status: status, Message: t.outcome.Message})
		t.pause(wait)
	}
	if t.aborted {
		return abortWith(protocol.AbortedInBackoff)
	}
	if t.gone {
		return &ending{}
	}
	return nil
}

func exhausted(status protocol.StopReason, n int) string {
	if status == protocol.Malformed {
		return fmt.Sprintf("malformed response failed after %d retries", n)
	}
	return fmt.Sprintf("reconnect failed after %d retries", n)
}

// pause waits for d, or until an abort.
func (r *run) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for !r.aborted && !r.gone {
		select {
		case <-timer.C:
			return
		case <-r.box.notify:
			r.hear()
		case <-r.parent.Done():
			r.gone = true
		}
	}
}

// loop handles events until done holds. Model messages wait while an approval is
// pending (L038); after an abort tools have Grace and the stream has Abandon.
func (t *turn) loop(done func() bool) {
	for !t.gone && !done() {
		t.watchAbort()
		messages, outcome := t.stream.messages, t.stream.outcome
		if t.asked != nil || t.outcome != nil {
			messages, outcome = nil, nil
		}
		select {
		case p := <-messages:
			t.take(p)
		case o := <-outcome:
			t.outcome = &o
		case ev := <-t.tools:
			t.hearTool(ev)
		case a := <-t.asks:
			t.show(a)
		case v := <-t.verdicts:
			t.decide(v)
		case <-t.box.notify:
			t.hear()
		case <-t.graceOver:
			t.giveUpTools()
		case <-t.stream.abandonOver:
			t.stream.abandon()
			t.outcome = &Outcome{Status: protocol.Aborted, Message: "the model did not stop"}
		case <-t.parent.Done():
			t.gone = true
		}
	}
}

// watchAbort does once what an abort asks for: no approval is waited for, clocks run.
func (t *turn) watchAbort() {
	if !t.aborted {
		return
	}
	if t.asked != nil {
		c := t.asked
		t.asked = nil
		if t.askShown {
			t.emit(protocol.ApprovalClosed{ToolCallID: c.ToolCallID, Reason: protocol.AbortedByUser})
		}
	}
	if t.graceOver == nil {
		t.graceOver = time.After(t.cfg.Grace)
	}
	if t.stream.abandonOver == nil && t.outcome == nil {
		t.stream.abandonOver = time.After(t.cfg.Abandon)
	}
}

// take emits one payload of the model and acts on a complete call.
func (t *turn) take(p protocol.Payload) {
	t.track(p)
	m := t.emit(p)
	if protocol.IsPartial(p) {
		return
	}
	t.reply = append(t.reply, m)
	tc, ok := p.(protocol.ToolCall)
	switch {
	case !ok:
	case tc.StopReason == protocol.Completed:
		t.approve(&call{Call: Call{ToolCall: tc, Request: t.from.Requests, Position: len(t.calls)}})
	case tc.StopReason == protocol.Failed:
		t.cut = true
	}
}

// committed returns the reply as later requests carry it (L058).
func (t *turn) committed() []protocol.Message {
	var ms []protocol.Message
	for _, m := range t.reply {
		if tc, ok := m.Payload.(protocol.ToolCall); ok && tc.StopReason != protocol.Completed {
			continue
		}
		ms = append(ms, m)
	}
	return ms
}

// verdict is how a task ends whose last turn made no call (L047, L057).
func (t *turn) verdict() *ending {
	if t.cut && t.outcome.Finish == finishLength {
		return &ending{
			status: protocol.TaskFailed, code: protocol.CodeLength,
			reason: "the answer was cut by the model's length limit in the middle of a tool call",
		}
	}
	return &ending{status: protocol.TaskCompleted}
}
