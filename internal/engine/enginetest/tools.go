package enginetest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	"rookery/internal/engine"
	"rookery/protocol"
)

// Tools runs calls as the tool statements say; a call without one answers
// "done ID" at once. Safe for concurrent use.
type Tools struct {
	// Gates are where holds wait; required.
	Gates *Gates
	// Dispatch, when set, is told of each call that is about to run; false keeps it
	// from running.
	Dispatch func(engine.Call) bool

	mu     sync.Mutex
	timing Config
	tools  map[string]Tool
	runs   map[string]int
	calls  map[string]*running
	over   context.Context //nolint:containedctx // runs outlive the Execute that began them
	close  context.CancelFunc
}

// A running call goes on when the engine that had it run is gone, as on a worker:
// the next Execute of it waits for the same run.
type running struct {
	done chan struct{} // closed when out is there
	out  engine.Output
	stop context.CancelCauseFunc
}

var _ engine.Executor = (*Tools)(nil)

// NewTools returns an executor with these tools by call id.
func NewTools(tools map[string]Tool, gates *Gates) *Tools {
	over, stop := context.WithCancel(context.Background())
	return &Tools{
		Gates: gates, tools: maps.Clone(tools), runs: map[string]int{}, calls: map[string]*running{}, over: over, close: stop,
	}
}

// Close ends the calls that still run.
func (x *Tools) Close() { x.close() }

// Set defines or replaces what a call does.
func (x *Tools) Set(t Tool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.tools[t.ID] = t
}

// Limit takes the tool timeout and the output cap from c.
func (x *Tools) Limit(c Config) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.timing = c
}

// Runs returns how often each call really ran.
func (x *Tools) Runs() map[string]int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return maps.Clone(x.runs)
}

func (x *Tools) count(id string) (Tool, Config) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.runs[id]++
	t, ok := x.tools[id]
	if !ok {
		t = Tool{ID: id, Stop: protocol.Completed}
	}
	return t, x.timing
}

// Execute implements engine.Executor.
func (x *Tools) Execute(ctx context.Context, call engine.Call, emit func(string)) engine.Output {
	if _, err := protocol.Arguments(call.Arguments); err != nil {
		text := protocol.NoteError("the arguments are not a JSON object")
		return engine.Output{Text: text, Stop: protocol.Failed}
	}
	run := x.find(call)
	if run == nil {
		if x.Dispatch != nil && !x.Dispatch(call) {
			return engine.Output{Stop: protocol.Aborted} // nobody is there to take it
		}
		run = x.begin(call.ToolCallID, emit)
	}
	select {
	case <-run.done:
	case <-ctx.Done():
		if errors.Is(context.Cause(ctx), engine.ErrInterrupted) {
			run.stop(context.Cause(ctx))
			<-run.done
		}
	}
	select {
	case <-run.done:
		return run.out
	default: // abandoned
		return engine.Output{Stop: protocol.Aborted}
	}
}

// find returns the run of a call that another engine had begun.
func (x *Tools) find(call engine.Call) *running {
	x.mu.Lock()
	defer x.mu.Unlock()
	if call.Prior == nil {
		return nil
	}
	return x.calls[call.ToolCallID]
}

// begin starts a call: its deltas go out at once, the rest takes its time.
func (x *Tools) begin(id string, emit func(string)) *running {
	t, cfg := x.count(id)
	out := &protocol.Output{Max: cmp.Or(cfg.MaxOutput, defaultMaxOutput)}
	if t.Output == nil {
		for _, d := range t.Deltas {
			if piece := out.Write([]byte(d)); piece != "" {
				emit(piece)
			}
		}
	}
	ctx, stop := context.WithCancelCause(x.over)
	run := &running{done: make(chan struct{}), stop: stop}
	x.mu.Lock()
	x.calls[id] = run
	x.mu.Unlock()
	go func() { // ends with its pauses, or by Close
		defer close(run.done)
		defer stop(nil)
		run.out = x.finish(ctx, t, cfg, out)
	}()
	return run
}

func (x *Tools) finish(ctx context.Context, t Tool, cfg Config, out *protocol.Output) engine.Output {
	limit := cmp.Or(cfg.ToolTimeout, defaultToolTimeout)
	switch err := x.pause(ctx, t, limit); {
	case errors.Is(err, errToolTimeout):
		out.Finish("", protocol.NoteTimeout(limit.Milliseconds()))
		return engine.Output{Text: out.Text(), Stop: protocol.Failed}
	case err != nil:
		out.Finish("", protocol.NoteInterrupted)
		return engine.Output{Text: out.Text(), Stop: protocol.Aborted}
	}
	return t.end(out)
}

const (
	defaultMaxOutput   = 16000
	defaultToolTimeout = 120 * time.Second
)

var errToolTimeout = errors.New("tool timeout")

// pause waits through the tool's pauses, in order, within the limit.
func (x *Tools) pause(ctx context.Context, t Tool, limit time.Duration) error {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, errToolTimeout)
		defer cancel()
	}
	for _, p := range t.Pauses {
		if p.Gate != "" {
			if err := x.Gates.Wait(ctx, p.Gate); err != nil {
				return err
			}
			continue
		}
		if !sleepUntil(ctx, time.Now().Add(p.For)) {
			return context.Cause(ctx)
		}
	}
	return nil
}

// end is what the tool returns when nobody stopped it. A tool with none returns
// nothing at all, and a tool with twice has its second answer thrown away here:
// the port has room for one.
func (t Tool) end(out *protocol.Output) engine.Output {
	switch {
	case t.Die:
		out.Finish("", protocol.NoteUnknown)
		return engine.Output{Text: out.Text(), Stop: protocol.Failed}
	case t.None:
		return engine.Output{Text: out.Text(), Stop: t.Stop}
	case t.Output != nil:
		out.Write([]byte(*t.Output))
	case len(t.Deltas) == 0:
		out.Write([]byte("done " + t.ID))
	}
	if t.Output == nil || *t.Output != "" || out.Truncated() {
		out.Finish("")
	}
	return engine.Output{Text: out.Text(), Stop: t.Stop}
}

// readOnly are the built-in tools that change nothing; unknown ones may.
func readOnly(tool string) bool {
	switch strings.TrimSpace(tool) {
	case "read_file", "list_files", "search_files", "read_image":
		return true
	}
	return false
}
