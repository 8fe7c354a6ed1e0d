package enginetest

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"rookery/internal/engine"
	"rookery/internal/resume"
	"rookery/internal/trace"
	"rookery/protocol"
)

// runner stands in for the session: it starts runs, records what they yield and
// answers commands. One goroutine drives the run under way; the script's goroutine
// and hooks do actions. mu guards the fields below it and is never held while the
// engine is called.
type runner struct {
	t     *testing.T
	s     *Scenario
	gates *Gates
	model *Model
	tools *Tools

	mu       sync.Mutex
	cfg      Config
	engine   *engine.Engine // for the next run; nil after a change of cfg and a resume
	running  *engine.Engine // of the run under way, or the last one
	approver *Approver
	fold     *trace.Fold
	placer   trace.Placer
	records  []trace.Record
	output   []protocol.Message
	hooks    []*hook
	commands int

	busy    protocol.ReplyCode // why a second run is refused; empty = idle
	ending  bool               // task_end has passed
	dropped bool               // the run under way is abandoned
	bare    bool               // the state was rebuilt without what tells of tasks
	reload  *Statement         // the resume that is due when the run under way is gone
	done    chan struct{}      // closed when the run under way is over
	cancel  context.CancelCauseFunc
	next    *Statement // a run or compact that came while task_end passed
}

type hook struct {
	At   *Hook
	line int
	left int // how many more messages until it fires; 0 = has fired
}

func newRunner(t *testing.T, s *Scenario) *runner {
	t.Helper()
	r := &runner{t: t, s: s, gates: &Gates{}, fold: trace.NewFold()}
	r.model = NewModel(s.Replies(), r.gates, r.fault)
	r.tools = NewTools(s.Tools(), r.gates)
	r.tools.Dispatch = r.dispatch
	return r
}

// act does a client's action, checks its reply and reports whether it was accepted.
func (r *runner) act(st Statement) bool {
	var reply protocol.Reply
	switch st.Verb {
	case VerbRun, VerbStart, VerbCompact:
		reply = r.start(st)
	case VerbSteer:
		reply = r.steer(st.Text)
	case VerbAbort:
		reply = r.abort()
	case VerbApprove:
		r.mu.Lock()
		a := r.approver
		r.mu.Unlock()
		reply = a.Decide(st.Call, st.Decision)
	case VerbRelease:
		r.gates.Release(st.Gate)
		return true
	case VerbResume: // behind at: a run is under way, and its driver does the rest
		r.mu.Lock()
		defer r.mu.Unlock()
		r.dropped, r.reload, r.next = true, &st, nil
		return true
	case VerbWait: // behind at: a slow viewer
		time.Sleep(st.For)
		return true
	case VerbKill, VerbConfig, VerbModel, VerbTool, VerbWaitIdle, VerbAt, VerbExpect:
		r.fault(st.Line, "%s is not an action of this runner", st.Verb)
		return false
	}
	if st.Want != nil && !st.Want.Match(reply.Code, reply.Reason) {
		r.fault(st.Line, "%s: the reply is %s %q, wanted %s %s", st.Verb, reply.Code, reply.Reason, st.Want.Word, st.Want.Reason)
	}
	return reply.Code.Accepted()
}

// start begins a run or a compaction, or refuses it.
func (r *runner) start(st Statement) protocol.Reply {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case st.Verb != VerbCompact && strings.TrimSpace(st.Text) == "":
		return protocol.Reply{Code: protocol.ReplyBadRequest, Reason: "the prompt is empty"}
	case r.busy != "" && r.ending && r.next == nil:
		r.next = &st // task_end is in flight: it waits, and is not refused
		return protocol.Reply{Code: protocol.ReplyAccepted}
	case r.busy != "":
		return protocol.Reply{Code: r.busy}
	}
	return r.begin(st)
}

// begin starts the run; mu is held and the session is idle.
func (r *runner) begin(st Statement) protocol.Reply {
	r.busy = protocol.ReplyTaskInProgress
	if st.Verb == VerbCompact {
		if why := r.compactable(); why != "ok" {
			r.busy = ""
			return protocol.Reply{Code: protocol.ReplyNothing, Reason: why}
		}
		r.busy = protocol.ReplyCompacting
	}
	eng, err := r.build()
	if err != nil {
		r.busy = ""
		r.fault(st.Line, "%v", err)
		return protocol.Reply{Code: protocol.ReplyFailed, Reason: err.Error()}
	}
	r.commands++
	in := engine.Input{TaskID: fmt.Sprintf("task-%d", r.commands), Options: protocol.TaskOptions{Approve: r.cfg.Approve, Thinking: st.Thinking}}
	run := eng.Compact
	if st.Verb != VerbCompact {
		run = eng.Run
		in.Prompt = protocol.Payloads{protocol.UserText(st.Text)}
	}
	r.launch(eng, run, in, nil)
	return protocol.Reply{Code: protocol.ReplyAccepted}
}

// goOn takes over the task that the records tell of, if there is one; mu is held and
// the session is idle.
func (r *runner) goOn() {
	task := r.fold.State().Task
	if task == nil {
		return
	}
	eng, err := r.build()
	if err != nil {
		r.t.Errorf("%s: %v", r.s.File, err)
		return
	}
	r.busy = protocol.ReplyTaskInProgress
	run := eng.Run
	if task.Of == "compact" {
		r.busy = protocol.ReplyCompacting
		run = eng.Compact
	}
	r.dropped = false
	due := r.note(protocol.New(protocol.Takeover{From: "before", To: "scenario"}).Sealed())
	r.launch(eng, run, engine.Input{TaskID: task.TaskID, Options: task.Options}, due)
}

// launch starts a run from what is folded; mu is held. due are hooks that a message
// before it has fired.
func (r *runner) launch(eng *engine.Engine, run runFunc, in engine.Input, due []*hook) {
	ctx, cancel := context.WithCancelCause(r.t.Context())
	r.cancel, r.done, r.ending, r.dropped = cancel, make(chan struct{}), false, false
	r.running = eng
	messages := run(ctx, resume.Of(r.fold), in)
	go r.drive(messages, due, r.done)
}

type runFunc = func(context.Context, engine.Resume, engine.Input) iter.Seq[protocol.Message]

// build returns the session's engine, a new one after a change; mu is held.
func (r *runner) build() (*engine.Engine, error) {
	if r.engine != nil {
		return r.engine, nil
	}
	cfg := engine.Config{
		Model: r.model, Executor: r.tools, Settings: r.cfg.Settings,
		Meta: protocol.SessionMeta{
			SessionID: "scenario", Provider: "script", ModelID: "script",
			SystemPrompt: "You are a script.", Workspace: "/workspace",
		},
	}
	cfg.CompactionPrompt = cmp.Or(cfg.CompactionPrompt, "Summarize the conversation.")
	r.approver = NewApprover(r.cfg.Approve)
	if r.approver != nil {
		cfg.Approver = r.approver
	}
	eng, err := engine.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("make the engine: %w", err)
	}
	r.engine = eng
	return eng, nil
}

// drive takes a run to its end. It owns the loop; done tells those who wait.
func (r *runner) drive(seq iter.Seq[protocol.Message], due []*hook, done chan struct{}) {
	defer close(done)
	for _, h := range due {
		r.act(h.At.Do)
	}
	for m := range seq {
		if r.pass(m) {
			break
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cancel(nil)
	r.busy = ""
	if st := r.reload; st != nil {
		r.reload = nil
		r.refold(st.Bare)
		r.goOn()
	}
	if next := r.next; next != nil {
		r.next = nil
		r.begin(*next)
	}
}

// pass records a message as a session does, shows it, and fires the hooks that wait
// for it. True means that the run is dropped.
func (r *runner) pass(m protocol.Message) bool {
	m = m.Sealed()
	r.mu.Lock()
	if r.dropped {
		r.mu.Unlock()
		return true
	}
	due := r.note(m)
	r.mu.Unlock()
	for _, h := range due {
		r.act(h.At.Do)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dropped
}

// note records and shows a message and returns the hooks that wait for it; mu is held.
func (r *runner) note(m protocol.Message) []*hook {
	ctx, private, recorded := r.placer.Place(m)
	if recorded {
		r.records = append(r.records, trace.Record{Context: ctx, Private: private, Message: m})
		r.fold.Add(ctx, m)
	}
	if m.Kind() == (protocol.TaskEnd{}).Kind() {
		r.ending = true
	}
	if private {
		return nil
	}
	r.output = append(r.output, m)
	return r.due(fullLine(m))
}

// dispatch records that a call is about to run; false when the process that would
// have it run is gone. It is for who takes over, and not shown.
func (r *runner) dispatch(c engine.Call) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dropped {
		return false
	}
	m := protocol.New(protocol.CallDispatched{ToolCallID: c.ToolCallID, Attempt: 1, Destination: "w.script"}).Sealed()
	ctx, private, _ := r.placer.Place(m)
	at := len(r.records)
	if r.records[at-1].Message.Kind() == (protocol.TokenUsage{}).Kind() {
		at-- // nothing parts it from its request_end (L043)
	}
	r.records = slices.Insert(r.records, at, trace.Record{Context: ctx, Private: private, Message: m})
	r.fold.Add(ctx, m)
	return true
}

// due counts a line against the hooks and returns those that fire; mu is held.
func (r *runner) due(line string) []*hook {
	var due []*hook
	for _, h := range r.hooks {
		if h.left > 0 && strings.HasPrefix(line, h.At.Message) {
			if h.left--; h.left == 0 {
				due = append(due, h)
			}
		}
	}
	return due
}

func (r *runner) steer(text string) protocol.Reply {
	text = strings.TrimSpace(text)
	if text == "" {
		return protocol.Reply{Code: protocol.ReplyBadRequest, Reason: "the text is blank"}
	}
	r.mu.Lock()
	eng, running := r.running, r.busy == protocol.ReplyTaskInProgress
	r.commands++
	id := fmt.Sprintf("steer-%d", r.commands)
	r.mu.Unlock()
	if !running || !eng.Steer(id, text) {
		return protocol.Reply{Code: protocol.ReplyNotRunning, Reason: "no task runs"}
	}
	return protocol.Reply{Code: protocol.ReplyAccepted}
}

func (r *runner) abort() protocol.Reply {
	r.mu.Lock()
	eng, busy := r.running, r.busy != ""
	r.mu.Unlock()
	if !busy || !eng.Abort("user") {
		return protocol.Reply{Code: protocol.ReplyIdle}
	}
	return protocol.Reply{Code: protocol.ReplyAborting}
}
