package trace

import (
	"slices"
	"time"

	"rookery/protocol"
)

// A Fold reads records in order and keeps what they add up to. It is not safe for
// concurrent use.
type Fold struct {
	s    State
	open turn // the turn that is being worked on, or was when its task ended

	task        *Task
	compaction  *protocol.CompactionBegin
	answer      string // the text of the compaction's last request
	answered    string // … once that request had completed
	asking      bool   // the compaction's request has begun and not ended
	compacted   bool   // a compaction completed and no turn since
	interrupted bool   // an abort follows the open turn

	known     map[string]bool // ids of accepted commands
	decisions map[string]decision
	positions map[string][2]int // request and position of each call
}

// turn is the open turn: its input, its failed attempts and the current one.
type turn struct {
	begun     bool
	requested bool // between request_begin and request_end
	status    protocol.StopReason
	input     []protocol.Message
	attempts  []Attempt
	current   Attempt
	request   int
	next      []protocol.Message // user-side messages for the next input, outputs apart
	received  *protocol.ReplyReceived
	emitted   int // of what was left then
	takeovers int
	lost      bool // a takeover found the request open
}

// NewFold returns the fold of an empty trace.
func NewFold() *Fold {
	return &Fold{
		s:     State{IDs: &protocol.CallIDs{}},
		known: map[string]bool{}, decisions: map[string]decision{}, positions: map[string][2]int{},
	}
}

// decision is a verdict and when it was recorded.
type decision struct {
	protocol.ApprovalDecision
	at time.Time
}

// Known reports whether a command with that id was accepted: a repeated one gets
// the same answer.
func (f *Fold) Known(id string) bool { return f.known[id] }

// Decision returns what was decided on a call, and when.
func (f *Fold) Decision(id string) (d protocol.ApprovalDecision, at time.Time, ok bool) {
	v, ok := f.decisions[id]
	return v.ApprovalDecision, v.at, ok
}

// Position names a call: the number of its request in the session and its place
// among the calls of the reply.
func (f *Fold) Position(id string) (request, position int, ok bool) {
	p, ok := f.positions[id]
	return p[0], p[1], ok
}

// Add takes the next record of the session, private ones included. context is the
// number of the trace context it was found in.
func (f *Fold) Add(context int, m protocol.Message) {
	if context > f.s.Context {
		f.s.Context = context
	}
	switch p := m.Payload.(type) {
	case protocol.SessionMeta:
		f.enter(p)
	case protocol.TaskBegin:
		f.settle()
		f.interrupted = false
		f.task = &Task{TaskBegin: p}
		f.known[p.TaskID] = true
	case protocol.TaskEnd:
		f.endCompaction(protocol.Failed)
		f.settle()
		f.task = nil
	case protocol.CompactionBegin:
		f.compaction, f.answer, f.answered = &p, "", ""
	case protocol.CompactionEnd:
		f.endCompaction(p.Status)
	case protocol.TokenUsage:
		f.s.Usage, f.s.ContextTokens = p.Session, p.Request.Total
	case protocol.RequestBegin:
		f.begin()
	case protocol.RequestEnd:
		f.end(p.Status)
	case protocol.Abort:
		f.interrupted = true
		if f.task != nil {
			f.task.Aborted = &p
		}
	case protocol.ToolCallOutput:
		f.output(p, m)
	case protocol.Text, protocol.Thinking, protocol.ToolCall, protocol.ImageURL, protocol.InlineData, protocol.InlineThinking:
		f.content(m)
	default:
		f.event(m)
	}
}

// enter opens a new context.
func (f *Fold) enter(p protocol.SessionMeta) {
	f.s.Meta = &p
	f.s.Rotate = false
	f.s.Summary = ""
	f.s.History = nil
	f.s.Turns, f.s.ContextTokens = 0, 0
	f.open = turn{}
	f.s.Pending = nil
	if f.task != nil {
		f.task.Compacted = false
	}
}

// begin opens a request: of a compaction, a further attempt of the open turn, or a
// new turn whose input is what was left plus what came since.
func (f *Fold) begin() {
	f.s.Requests++
	if f.compaction != nil {
		f.answer, f.asking = "", true
		return
	}
	f.compacted = false
	if f.open.begun && f.retrying() && len(f.open.next) == 0 {
		f.open.requested, f.open.request, f.open.received, f.open.lost = true, f.s.Requests, nil, false
		return
	}
	input := f.input()
	f.open = turn{begun: true, requested: true, input: input, request: f.s.Requests}
	f.s.Pending = nil
	f.interrupted = false
	if f.task != nil {
		f.task.Turns++
		f.task.Compacted = false
	}
}

func (f *Fold) retrying() bool {
	return f.open.status == protocol.Timeout || f.open.status == protocol.Malformed
}

// end closes a request. A completed one commits its turn (L155).
func (f *Fold) end(status protocol.StopReason) {
	if f.compaction != nil {
		f.asking = false
		if status == protocol.Completed {
			f.answered = f.answer
		}
		return
	}
	o := &f.open
	if !o.requested {
		return
	}
	o.requested, o.status, o.received = false, status, nil
	switch status {
	case protocol.Completed:
		f.s.History = append(f.s.History, withRetried(o.input, o.attempts)...)
		f.s.History = append(f.s.History, committed(o.current.Reply)...)
		f.s.Turns++
		o.takeovers = 0
	case protocol.Timeout, protocol.Malformed:
		o.current.Lost = o.lost
		o.attempts = append(o.attempts, o.current)
		o.current = Attempt{}
	case protocol.Failed, protocol.Aborted:
	}
}

// content takes a model message: user-side ones are input, assistant ones belong to
// the open request, others are for rendering only (L156).
func (f *Fold) content(m protocol.Message) {
	if tc, ok := m.Payload.(protocol.ToolCall); ok {
		f.s.IDs.Reserve(tc.ToolCallID)
	}
	if f.compaction != nil {
		if t, ok := m.Payload.(protocol.Text); ok && t.Role == protocol.Assistant {
			f.answer += t.Text
		}
		return
	}
	if userSide(m.Payload) {
		if f.task != nil {
			f.task.Prompted = true
		}
		f.delivered(m.Payload)
		f.open.next = append(f.open.next, m)
		return
	}
	if !f.open.requested {
		if t, ok := m.Payload.(protocol.Text); ok && f.task != nil && t.StopReason == protocol.Failed {
			f.task.CapNote = true
		}
		return
	}
	f.open.emitted++
	cur := &f.open.current
	cur.Reply = append(cur.Reply, m)
	if tc, ok := m.Payload.(protocol.ToolCall); ok && tc.StopReason == protocol.Completed {
		f.positions[tc.ToolCallID] = [2]int{f.open.request, len(cur.Calls)}
		cur.Calls = append(cur.Calls, &Call{ToolCall: tc, Request: f.open.request, Position: len(cur.Calls)})
	}
}

func userSide(p protocol.Payload) bool {
	switch p := p.(type) {
	case protocol.Text:
		return p.Role == protocol.User
	case protocol.InlineData:
		return p.Role == protocol.User
	case protocol.ImageURL:
		return true
	default:
		return false
	}
}

func (f *Fold) output(p protocol.ToolCallOutput, m protocol.Message) {
	if c := f.call(p.ToolCallID); c != nil && c.Output == nil {
		c.Output = &m
	}
}

// call finds a call of the open turn, of its failed attempts, too.
func (f *Fold) call(id string) *Call {
	for _, c := range f.open.current.Calls {
		if c.ToolCallID == id {
			return c
		}
	}
	for _, a := range slices.Backward(f.open.attempts) {
		for _, c := range a.Calls {
			if c.ToolCallID == id {
				return c
			}
		}
	}
	return nil
}

// event takes our own events and the approval decision.
func (f *Fold) event(m protocol.Message) {
	switch p := m.Payload.(type) {
	case protocol.ApprovalDecision:
		f.decisions[p.ToolCallID] = decision{p, m.Timestamp}
		if c := f.call(p.ToolCallID); c != nil && c.Decision == nil {
			c.Decision = &p
		}
		if f.task != nil && p.Decision == protocol.Deny && (p.By == "policy" || p.By == "timeout") {
			f.task.Denied = true
		}
	case protocol.ApprovalRequest:
		if c := f.call(p.ToolCallID); c != nil {
			c.Asked = true
		}
	case protocol.CallDispatched:
		if c := f.call(p.ToolCallID); c != nil {
			c.Dispatched, c.Fate = &p, nil
		}
	case protocol.CallFate:
		if c := f.call(p.ToolCallID); c != nil {
			c.Fate = &p
		}
	case protocol.ReplyReceived:
		f.open.received, f.open.emitted = &p, 0
	case protocol.Takeover:
		if f.open.requested && f.open.received == nil {
			f.open.takeovers++
			f.open.lost = true
		}
	case protocol.SteeringQueued:
		f.known[p.SteerID] = true
		if f.task != nil {
			f.task.Steering = append(f.task.Steering, p)
		}
	case protocol.AbortRequested:
		if f.task != nil {
			f.task.AbortRequested = &p
		}
	default:
	}
}

// delivered takes a steering text that went out off the queue.
func (f *Fold) delivered(p protocol.Payload) {
	t, ok := p.(protocol.Text)
	if !ok || f.task == nil || len(f.task.Steering) == 0 {
		return
	}
	for i, q := range f.task.Steering {
		if protocol.Steering(q.Text) == t.Text {
			f.task.Steering = slices.Delete(f.task.Steering, i, i+1)
			return
		}
	}
}

func (f *Fold) endCompaction(status protocol.StopReason) {
	if f.compaction == nil {
		return
	}
	mode := f.compaction.Mode
	f.compaction, f.asking = nil, false
	if status != protocol.Completed {
		if f.task != nil && status == protocol.Failed {
			f.task.FailedCompactions++
		}
		return
	}
	f.s.Summary = ""
	if mode != "discard" {
		f.s.Summary = protocol.ExtractSummary(f.answered)
	}
	if f.task != nil {
		f.task.Compacted, f.task.Final = true, len(f.open.current.Calls) == 0
	}
	f.s.History, f.s.Pending, f.open = nil, nil, turn{}
	f.s.Turns, f.s.ContextTokens = 0, 0
	f.s.Rotate, f.compacted = true, true
}

// State returns what the records so far add up to. Its slices are shared with the
// fold: it is true until the next Add.
func (f *Fold) State() State {
	s := f.s
	s.Pending = f.input()
	if f.task != nil {
		t := *f.task
		o := f.open
		t.Open, t.Requested, t.Last = o.begun, o.requested, o.status
		t.Input, t.Attempts, t.Reply, t.Calls = o.input, o.attempts, o.current.Reply, o.current.Calls
		t.Next, t.Received, t.Takeovers = o.next, o.left(), o.takeovers
		t.Compaction, t.CompactionRequest = f.compaction, f.asking
		if n := len(t.Attempts); !t.Requested && f.retrying() && n > 0 {
			last := t.Attempts[n-1] // whose calls may still run
			t.Attempts, t.Reply, t.Calls, t.Lost = t.Attempts[:n-1], last.Reply, last.Calls, last.Lost
		}
		s.Task = &t
	}
	return s
}

// left is what of a reply that had come when a person began to be asked is not
// recorded yet.
func (o *turn) left() *protocol.ReplyReceived {
	if o.received == nil {
		return nil
	}
	left := *o.received
	left.Rest = left.Rest[min(o.emitted, len(left.Rest)):]
	return &left
}

// Compactability says whether a compaction by hand has something to do (L128):
// empty, just_compacted or ok.
func (f *Fold) Compactability() string {
	switch {
	case f.s.Turns > 0:
		return "ok"
	case f.compacted || f.s.Context > 1:
		return "just_compacted"
	}
	return "empty"
}
