package trace

import (
	"fmt"

	"rookery/protocol"
)

// A Record is one message of a trace and where it was found.
type Record struct {
	// Context is the number of the trace context, from 1.
	Context int
	// Private records are kept from viewers (L008).
	Private bool
	Message protocol.Message
}

// A Fault is a rule that a trace breaks.
type Fault struct {
	// Record is the place in what Verify was given, from 0; its length stands for the end.
	Record  int
	Context int
	// What says which rule, and on what.
	What string
}

// String returns the fault for people; records are counted from 1 there.
func (f Fault) String() string {
	return fmt.Sprintf("context %03d, record %d: %s", f.Context, f.Record+1, f.What)
}

// VerifyOptions change what Verify asks for. Nil is the zero value.
type VerifyOptions struct {
	// Open allows the trace to end in the middle of a task.
	Open bool
}

// Verify holds a session's whole trace, private records included, against the
// rules of the loop and returns what breaks them, in order. A trace without any
// task_begin and task_end, as other programs write it, is held against the rest.
func Verify(records []Record, opts *VerifyOptions) []Fault {
	v := &verifier{ids: map[string]*verified{}}
	for _, r := range records {
		switch r.Message.Payload.(type) {
		case protocol.TaskBegin, protocol.TaskEnd:
			v.tasks = true
		default:
		}
	}
	for i, r := range records {
		v.at, v.context = i, r.Context
		v.record(r)
	}
	v.at = len(records)
	if opts == nil || !opts.Open {
		v.end()
	}
	return v.faults
}

// verifier is the state of one Verify.
type verifier struct {
	faults  []Fault
	at      int
	context int
	tasks   bool // the trace has tasks at all

	placer  Placer
	session string
	last    protocol.Payload // the record before this one
	block   bool             // the record before this one is a block right behind task_begin
	rotates bool             // a compaction has completed in this context
	summary bool             // … and its summary opens the next one

	task       *protocol.TaskBegin
	aborted    bool // an abort stands in this task, or behind the last request
	request    bool
	status     protocol.StopReason // of the last ended request of a turn
	compaction *protocol.CompactionBegin
	usage      protocol.Usage
	turn       []*verified // completed calls since the last completed turn was answered
	taken      bool        // its owner went, and another one took over
	ids        map[string]*verified
}

// verified is what was seen of a call.
type verified struct {
	id         string
	completed  bool
	decision   protocol.Decision
	dispatched int
	outputs    int
}

func (v *verifier) fault(format string, args ...any) {
	v.faults = append(v.faults, Fault{Record: v.at, Context: v.context, What: fmt.Sprintf(format, args...)})
}

func (v *verifier) record(r Record) {
	p := r.Message.Payload
	if _, meta := p.(protocol.SessionMeta); meta {
		v.enter(r)
	}
	v.place(r)
	v.adjacent(p)
	v.payload(p)
	v.last = p
}

// place compares where the record stands with where it belongs.
func (v *verifier) place(r Record) {
	context, private, recorded := v.placer.Place(r.Message)
	switch {
	case !recorded:
		v.fault("%s is never recorded", r.Message)
	case context == 0:
		v.fault("%s before the first session_meta", r.Message)
	case context != r.Context:
		v.fault("%s belongs to context %03d", r.Message, context)
	case private && !r.Private:
		v.fault("%s must be private", r.Message)
	case !private && r.Private:
		v.fault("%s must not be private", r.Message)
	}
}

// enter checks a session_meta: the first record of the next context.
func (v *verifier) enter(r Record) {
	m := r.Message.Payload.(protocol.SessionMeta)
	switch {
	case v.placer.Context == r.Context:
		v.fault("a second session_meta in this context")
		v.placer.Context-- // so that Place stays in this context
	case v.placer.Context > 0 && !v.rotates:
		v.fault("a new context without a completed compaction")
	}
	if v.session == "" {
		v.session = m.SessionID
	}
	if m.SessionID != v.session {
		v.fault("session_meta of session %q in a trace of %q", m.SessionID, v.session)
	}
	if v.compaction != nil || v.request {
		v.fault("a new context inside a request or a compaction")
	}
	v.rotates = false
}

// adjacent checks the pairs that stand right behind one another.
func (v *verifier) adjacent(p protocol.Payload) {
	switch v.last.(type) {
	case protocol.TokenUsage:
		if _, taken := p.(protocol.Takeover); taken && v.compaction != nil {
			return // of a compaction request the two are stored one after the other
		}
		if end, ok := p.(protocol.RequestEnd); !ok || end.Status != protocol.Completed {
			v.fault("token_usage is followed by %s, not by request_end(completed)", protocol.Notation(p, false))
		}
	case protocol.SessionMeta:
		if !v.summary {
			return
		}
		v.summary = false
		if t, ok := p.(protocol.Text); ok {
			if _, ok := protocol.ParseContextSummary(t.Text); ok {
				return
			}
		}
		v.fault("the new context begins without its summary")
	default:
	}
}

func (v *verifier) payload(p protocol.Payload) {
	switch p := p.(type) {
	case protocol.TaskBegin:
		v.beginTask(p)
	case protocol.TaskEnd:
		v.endTask(p)
	case protocol.RequestBegin:
		v.beginRequest()
	case protocol.RequestEnd:
		v.endRequest(p)
	case protocol.TokenUsage:
		v.tokens(p)
	case protocol.CompactionBegin:
		v.beginCompaction(p)
	case protocol.CompactionEnd:
		v.endCompaction(p)
	case protocol.Abort:
		if v.request {
			v.fault("abort inside a request")
		}
		v.aborted = true
	case protocol.Text:
		v.text(p)
	case protocol.Thinking, protocol.InlineThinking:
		if !v.request {
			v.fault("%s outside a request", p.Kind())
		}
	case protocol.ToolCall:
		v.call(p)
	case protocol.ApprovalDecision:
		v.decision(p)
	case protocol.Takeover:
		v.taken = true
	case protocol.CallDispatched:
		v.dispatch(p)
	case protocol.ToolCallOutput:
		v.output(p)
	case protocol.ApprovalRequest:
		v.known("approval_request", p.ToolCallID)
	case protocol.Retry:
		failed := v.status == protocol.Timeout || v.status == protocol.Malformed || v.compaction != nil
		if !failed || v.request {
			v.fault("retry behind no failed request")
		}
	default:
	}
}

func (v *verifier) end() {
	if v.request {
		v.fault("the last request has no request_end")
	}
	if v.compaction != nil {
		v.fault("the last compaction has no compaction_end")
	}
	if v.task != nil {
		v.fault("task %q has no task_end", v.task.TaskID)
	}
	if _, ok := v.last.(protocol.TokenUsage); ok {
		v.fault("token_usage at the end, without request_end")
	}
}
