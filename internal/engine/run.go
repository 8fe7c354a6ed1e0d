package engine

import (
	"context"
	"sync"
	"time"

	"rookery/protocol"
)

// A run is one task while it is worked on. All of it belongs to the goroutine that
// iterates; producers reach it through its channels.
type run struct {
	cfg   Config
	in    Input
	box   *inbox
	yield func(protocol.Message) bool
	from  Resume // moves on with the run: history, counters, usage

	parent context.Context         //nolint:containedctx // the run is the extent of one call
	ctx    context.Context         //nolint:containedctx // cancelled by abort and by leaving
	cancel context.CancelCauseFunc // with ErrInterrupted or ErrAbandoned

	tools    chan toolEvent // unbuffered; tools write, the run reads
	asks     chan asking    // unbuffered; the approver writes, the run reads
	verdicts chan Verdict   // unbuffered; the approval goroutine writes, the run reads
	over     chan struct{}  // closed when the run ends: late events go nowhere
	working  sync.WaitGroup // every goroutine that was not abandoned

	deaf    bool   // an opening is being emitted that nothing may come between
	gone    bool   // the consumer left: nothing more is emitted
	aborted bool   // an abort was seen and told to everything that runs
	failing string // what the end says instead of an abort
	by      string

	turns    int  // begun in this task
	denied   bool // a call was denied because nobody could be asked
	failures int  // compactions that failed in this task
	noShrink int  // fresh contexts that were full at once, in this task
	fresh    bool // no request has completed in this context

	graceOver <-chan time.Time
}

func newRun(ctx context.Context, cfg Config, from Resume, in Input, box *inbox, yield func(protocol.Message) bool) *run {
	r := &run{
		cfg: cfg, in: in, box: box, yield: yield, from: from, parent: ctx,
		tools: make(chan toolEvent), asks: make(chan asking), verdicts: make(chan Verdict),
		over:  make(chan struct{}),
		fresh: from.Rotate || (from.Context > 1 && from.Turns == 0),
	}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	return r
}

// close lets go of everything and waits for the goroutines that were not abandoned.
func (r *run) close() {
	r.box.close()
	r.cancel(ErrAbandoned)
	close(r.over)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		r.working.Wait()
	}()
	select {
	case <-gone:
	case <-time.After(max(r.cfg.Grace, r.cfg.Abandon)):
	}
}

// task is the life of a prompt: begin, turns, end.
func (r *run) task() {
	if r.from.Task != nil {
		r.goOnWith(r.from.Task)
		return
	}
	r.deaf = true
	input := r.begin("run")
	for _, p := range r.in.Prompt {
		input = append(input, r.emit(p))
	}
	r.deaf = false
	r.hear()
	r.work(input, true)
}

// work takes turn after turn while there is more to do.
func (r *run) work(input []protocol.Message, more bool) {
	for more && !r.gone {
		input, more = r.step(input)
	}
}

// begin opens a context where one is due, then the task; it returns the input that
// goes ahead of the prompt (L075, L130).
func (r *run) begin(of string) []protocol.Message {
	input := append(r.open(), r.from.Pending...)
	r.from.Pending = nil
	r.emit(protocol.TaskBegin{TaskID: r.in.TaskID, Of: of, Options: r.in.Options, By: r.in.By})
	return input
}

// open starts a new trace context if the present one is closed or there is none,
// with the held summary as its first input.
func (r *run) open() []protocol.Message {
	if r.from.Context > 0 && !r.from.Rotate {
		return nil
	}
	r.emit(r.cfg.Meta)
	r.from.Context++
	r.from.Rotate = false
	if r.from.Summary == "" {
		return nil
	}
	m := r.emit(protocol.UserText(protocol.ContextSummary(r.from.Summary)))
	r.from.Summary = ""
	return []protocol.Message{m}
}

// step works one turn. It returns the next turn's input, or false when the task
// has ended.
func (r *run) step(input []protocol.Message) ([]protocol.Message, bool) {
	r.hear()
	if r.aborted {
		return r.end(abortWith(protocol.AbortedByUser))
	}
	limit := r.maxTurns()
	full := limit > 0 && r.turns >= limit
	if full && r.from.Rotate {
		return r.endAtCap(limit) // in the context that is closed (L130)
	}
	input = append(input, r.goOn()...)
	input = append(input, r.steering()...)
	if full {
		return r.endAtCap(limit)
	}
	if r.aborted {
		return r.end(abortWith(protocol.AbortedByUser))
	}
	r.turns++
	t := &turn{run: r, input: input}
	return r.conclude(t, t.work(0))
}

// conclude goes on after a turn, or ends the task with it.
func (r *run) conclude(t *turn, e *ending) ([]protocol.Message, bool) {
	if e != nil {
		return r.end(e)
	}
	return r.after(t)
}

// after decides what follows a committed turn whose calls are terminal: an end, a
// compaction, the next turn.
func (r *run) after(t *turn) ([]protocol.Message, bool) {
	if !t.known {
		r.from.History = append(append(r.from.History, t.sent...), t.committed()...)
	}
	outputs := t.outputs()
	if r.aborted {
		return r.end(abortWith(protocol.AbortedByUser))
	}
	compacted, failed := r.checkpoint(outputs)
	switch {
	case failed != nil:
		return r.end(failed)
	case len(outputs) == 0 && r.box.closeIfEmpty():
		return r.end(t.verdict())
	case compacted:
		return nil, true // the summary is the input (L120)
	}
	return append(outputs, t.next...), true
}

// goOn opens the context that is due after a compaction in mid-task.
func (r *run) goOn() []protocol.Message {
	if !r.from.Rotate {
		return nil
	}
	r.deaf = true
	input := r.open()
	r.deaf = false
	r.hear()
	return input
}

// steering delivers the queued texts as input (L085-L089).
func (r *run) steering() []protocol.Message {
	var ms []protocol.Message
	for _, s := range r.box.drain() {
		ms = append(ms, r.emit(protocol.UserText(protocol.Steering(s.Text))))
	}
	return ms
}

func (r *run) maxTurns() int {
	if r.in.Options.MaxTurns != 0 {
		return r.in.Options.MaxTurns
	}
	return r.cfg.MaxTurns
}

// emit yields one message and then looks at what came from outside, so that a hook
// on the message is heard before anything more is decided.
func (r *run) emit(ps ...protocol.Payload) protocol.Message {
	var last protocol.Message
	for _, p := range ps {
		last = protocol.New(p)
		if !r.gone && (r.parent.Err() != nil || !r.yield(last)) {
			r.gone = true
			r.cancel(ErrAbandoned)
		}
	}
	r.hear()
	return last
}

// hear announces accepted steering and starts an accepted abort.
func (r *run) hear() {
	if r.gone || r.deaf {
		return
	}
	if s, ok := r.box.news(); ok {
		r.emit(s) // hears again
		return
	}
	by, yes := r.box.interrupted()
	if !yes || r.aborted {
		return
	}
	r.aborted, r.by = true, by
	r.cancel(ErrInterrupted)
	r.emit(protocol.AbortRequested{By: by})
}

// An ending is how a task ends: its abort reason, if any, and task_end.
type ending struct {
	abort  string
	status protocol.TaskStatus
	code   protocol.Code
	reason string
}

func abortWith(reason string) *ending {
	return &ending{abort: reason, status: protocol.TaskAborted}
}

func failWith(reason string, code protocol.Code) *ending {
	return &ending{abort: reason, status: protocol.TaskFailed, code: code, reason: reason}
}

// end says the last words of the task.
func (r *run) end(e *ending) ([]protocol.Message, bool) {
	r.hear()
	left := r.box.close()
	if r.failing != "" && e.abort != "" {
		e = failWith(r.failing, protocol.CodeTrace)
	}
	if e.abort != "" {
		r.emit(protocol.AbortOf(e.abort))
	}
	if e.status == protocol.TaskAborted && r.by == string(protocol.CodeTimeout) {
		e.code = protocol.CodeTimeout
	}
	if e.status == protocol.TaskCompleted && r.denied {
		e.code = protocol.CodeDenied
	}
	r.emit(protocol.TaskEnd{TaskID: r.in.TaskID, Status: e.status, Code: e.code, Reason: e.reason, UndeliveredSteering: left})
	return nil, false
}

// endAtCap says that the cap was reached, to viewers and not to the model (L063).
func (r *run) endAtCap(limit int) ([]protocol.Message, bool) {
	note := protocol.NoteMaxTurns(limit)
	r.emit(protocol.PartialText{Role: protocol.Assistant, EventType: protocol.Start, StopReason: protocol.Completed})
	r.emit(protocol.PartialText{Role: protocol.Assistant, EventType: protocol.Delta, Text: note, StopReason: protocol.Completed})
	r.emit(protocol.PartialText{Role: protocol.Assistant, EventType: protocol.Stop, StopReason: protocol.Failed})
	r.emit(protocol.Text{Role: protocol.Assistant, Text: note, StopReason: protocol.Failed})
	return r.end(&ending{status: protocol.TaskMaxTurns, reason: note})
}
