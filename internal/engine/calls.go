package engine

import (
	"context"
	"fmt"
	"strings"
	"time"

	"rookery/protocol"
)

// A call is one complete tool call of the reply while its fate is open.
type call struct {
	Call
	started  bool
	streamed strings.Builder
	output   *protocol.Message // terminal
	left     chan struct{}     // closed when the run no longer waits for its end
}

// A toolEvent is a piece of a running call's output, or its end.
type toolEvent struct {
	call  *call
	piece string
	end   *Output
}

// asking is a request of the approver to show that a person is asked.
type asking struct {
	ask   Ask
	shown chan struct{} // closed by the run once the approval_request is out
}

// approve asks for the verdict on a call. Model messages wait until it is there.
func (t *turn) approve(c *call) {
	t.calls = append(t.calls, c)
	if t.aborted || t.gone {
		return // no new approval after the signal (L067)
	}
	t.asked, t.askShown = c, false
	if t.cfg.Approver == nil {
		t.decide(Verdict{Decision: protocol.Deny, By: "policy", Reason: "nobody can be asked"})
		return
	}
	t.working.Go(func() {
		v := t.askApprover(c.Call)
		select {
		case t.verdicts <- v:
		case <-t.ctx.Done():
		case <-t.over:
		}
	})
}

// askApprover never fails: what breaks is a deny (L010).
func (r *run) askApprover(c Call) (v Verdict) {
	defer func() {
		if p := recover(); p != nil {
			v = Verdict{Decision: protocol.Deny, By: "policy", Reason: fmt.Sprintf("approver broke: %v", p)}
		}
	}()
	v, err := r.cfg.Approver.Approve(r.ctx, c, r.askPerson)
	if err != nil {
		return Verdict{Decision: protocol.Deny, By: "policy", Reason: err.Error()}
	}
	if v.Decision != protocol.Allow {
		v.Decision = protocol.Deny
	}
	return v
}

func (r *run) askPerson(a Ask) {
	req := asking{ask: a, shown: make(chan struct{})}
	select {
	case r.asks <- req:
		<-req.shown
	case <-r.ctx.Done():
	case <-r.over:
	}
}

// show tells viewers that a person's decision is awaited.
func (t *turn) show(a asking) {
	defer close(a.shown)
	if t.asked == nil || t.aborted {
		return
	}
	t.askShown = true
	t.emit(protocol.ApprovalRequest{
		ToolCallID: t.asked.ToolCallID, Name: t.asked.Name, Arguments: t.asked.Arguments,
		Permission: string(a.ask.Permission), Deadline: a.ask.Deadline,
	})
}

// decide takes a verdict: an allowed call starts at once (L040), a denied one has
// its output at once (L048).
func (t *turn) decide(v Verdict) {
	c := t.asked
	if c == nil || t.aborted {
		return
	}
	t.asked = nil
	t.emit(protocol.ApprovalDecision{Decision: v.Decision, ToolCallID: c.ToolCallID, By: v.By, Reason: v.Reason})
	if v.Decision != protocol.Allow {
		t.denied = t.denied || v.By == "policy" || v.By == "timeout"
		t.record(c, protocol.ToolCallOutput{Output: protocol.NoteDenied, StopReason: protocol.Aborted})
		return
	}
	if t.aborted || t.gone {
		return
	}
	t.start(c)
}

// start runs a call in its own goroutine; one that can't be run ends at once (L052).
func (t *turn) start(c *call) {
	c.started = true
	t.emit(protocol.PartialToolCallOutput{Role: protocol.User, EventType: protocol.Start, ToolCallID: c.ToolCallID, StopReason: protocol.Completed})
	if why := t.refusal(c); why != "" {
		t.finish(c, Output{Text: why, Stop: protocol.Failed})
		return
	}
	ended, left := make(chan struct{}), make(chan struct{})
	c.left = left
	emit := func(piece string) { t.send(toolEvent{call: c, piece: protocol.Clean(piece)}) }
	go func() {
		defer close(ended)
		out := execute(t.ctx, t.cfg.Executor, c.Call, emit)
		t.send(toolEvent{call: c, end: &out})
	}()
	t.working.Go(func() {
		select {
		case <-ended:
		case <-left: // a tool that ignores its cancellation is abandoned (L067)
		}
	})
}

func (r *run) send(ev toolEvent) {
	select {
	case r.tools <- ev:
	case <-r.over:
	}
}

func (t *turn) refusal(c *call) string {
	if _, err := protocol.Arguments(c.Arguments); err != nil {
		return protocol.NoteError("the arguments are not a JSON object: " + err.Error())
	}
	if t.cfg.Meta.Tools == nil {
		return ""
	}
	for _, s := range t.cfg.Meta.Tools {
		if s.Name == c.Name {
			return ""
		}
	}
	return protocol.NoteUnknownTool(c.Name)
}

// execute turns a tool layer that breaks into a failed output (L050).
func execute(ctx context.Context, x Executor, c Call, emit func(string)) (out Output) {
	defer func() {
		if p := recover(); p != nil {
			out = Output{Text: protocol.NoteError(fmt.Sprint(p)), Stop: protocol.Failed}
		}
	}()
	return x.Execute(ctx, c, emit)
}

// hearTool takes an event of a running call. What comes after its end is dropped.
func (t *turn) hearTool(ev toolEvent) {
	c := ev.call
	switch {
	case c.output != nil:
	case ev.end != nil:
		t.finish(c, *ev.end)
	case ev.piece != "":
		c.streamed.WriteString(ev.piece)
		t.emitPiece(c, ev.piece, nil)
	}
}

func (t *turn) emitPiece(c *call, piece string, images []string) {
	t.emit(protocol.PartialToolCallOutput{
		Role: protocol.User, EventType: protocol.Delta, Output: piece, Images: images,
		ToolCallID: c.ToolCallID, StopReason: protocol.Completed,
	})
}

// finish ends a call: the rest as a delta, images on one delta of their own, stop,
// and the complete output (L022, L023, L051, L055).
func (t *turn) finish(c *call, out Output) {
	if out.Stop != protocol.Completed {
		out.Images = nil
	}
	if out.Stop == "" {
		out.Stop = protocol.Completed
	}
	if t.aborted && out.Stop != protocol.Completed {
		out.Stop = protocol.Aborted
	}
	streamed := c.streamed.String()
	text := protocol.Clean(out.Text)
	switch {
	case text == "" && streamed == "":
		text = protocol.NoteNoOutput
	case !strings.HasPrefix(text, streamed):
		text = onOwnLine(streamed, text)
	}
	if rest := text[len(streamed):]; rest != "" {
		t.emitPiece(c, rest, nil)
	}
	if len(out.Images) > 0 {
		t.emitPiece(c, "", out.Images)
	}
	t.emit(protocol.PartialToolCallOutput{Role: protocol.User, EventType: protocol.Stop, ToolCallID: c.ToolCallID, StopReason: out.Stop})
	t.record(c, protocol.ToolCallOutput{Output: text, Images: out.Images, StopReason: out.Stop})
}

func onOwnLine(head, note string) string {
	if head == "" || note == "" || strings.HasSuffix(head, "\n") {
		return head + note
	}
	return head + "\n" + note
}

func (t *turn) record(c *call, out protocol.ToolCallOutput) {
	out.Role, out.ToolCallID = protocol.User, c.ToolCallID
	m := protocol.New(out)
	c.output = &m // terminal before a hook on it is heard
	*c.output = t.emit(out)
}

// running counts the calls that have started and are not terminal.
func (t *turn) running() int {
	n := 0
	for _, c := range t.calls {
		if c.started && c.output == nil {
			n++
		}
	}
	return n
}

// interruptTools cancels what runs without an abort of the task.
func (t *turn) interruptTools() {
	if t.running() > 0 {
		t.cancel(ErrInterrupted)
		t.graceOver = time.After(t.cfg.Grace)
	}
}

// giveUpTools closes calls whose worker did not answer within the grace (L067).
func (t *turn) giveUpTools() {
	for _, c := range t.calls {
		if c.started && c.output == nil {
			close(c.left)
			t.finish(c, Output{Text: onOwnLine(c.streamed.String(), protocol.NoteInterrupted), Stop: protocol.Aborted})
		}
	}
}

// outputs returns the real outputs in call order (L046).
func (t *turn) outputs() []protocol.Message {
	var ms []protocol.Message
	for _, c := range t.calls {
		if c.output != nil {
			ms = append(ms, *c.output)
		}
	}
	return ms
}
