package engine

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"rookery/protocol"
)

// Settings are the constants of the loop. The zero value of a field is its default.
type Settings struct {
	// MaxTurns caps the turns of one task. Default 100; negative = no cap (L061, L065).
	MaxTurns int
	// Reconnects is how often a turn's request is sent again. Default 2; negative = never (L099).
	Reconnects int
	// Backoff is the wait before the first reconnect; the n-th waits n times as
	// long. Default 250 ms (L100).
	Backoff time.Duration
	// RetryAfterCap is the longest Retry-After that is obeyed. Default 30 s (L100).
	RetryAfterCap time.Duration
	// MaxContext triggers a compaction by tokens. Default 128000; negative = off (L110).
	MaxContext int64
	// MaxSessionTurns triggers one by turns. Default off (L110).
	MaxSessionTurns int
	// Mode is summarize (default) or discard; any other is summarize (L110).
	Mode string
	// CompactionPrompt asks for the summary; required unless NoCompaction (L131).
	CompactionPrompt string
	// NoCompaction switches compaction off (L128: unsupported).
	NoCompaction bool
	// Thinking is the session's default level (L011).
	Thinking string
	// MaxTokens caps an answer; 0 = the model's default.
	MaxTokens int
	// Grace is how long a cancelled tool may take. Default 3 s (L067).
	Grace time.Duration
	// Abandon is how long a cancelled model stream may take. Default 2 s (L081).
	Abandon time.Duration
}

func (s Settings) withDefaults() Settings {
	s.MaxTurns = cmp.Or(s.MaxTurns, 100)
	s.Reconnects = max(0, cmp.Or(s.Reconnects, 2))
	s.Backoff = cmp.Or(s.Backoff, 250*time.Millisecond)
	s.RetryAfterCap = cmp.Or(s.RetryAfterCap, 30*time.Second)
	s.MaxContext = cmp.Or(s.MaxContext, 128000)
	s.Grace = cmp.Or(s.Grace, 3*time.Second)
	s.Abandon = cmp.Or(s.Abandon, 2*time.Second)
	if s.Mode != modeDiscard {
		s.Mode = modeSummarize
	}
	return s
}

// A Config holds the ports and constants of an Engine.
type Config struct {
	Model    Model    // required
	Executor Executor // required
	Approver Approver // nil denies every call (L009)
	// Meta is the session_meta of each new trace context (L015).
	Meta protocol.SessionMeta
	Settings
}

func (c Config) validate() error {
	var errs []error
	if c.Model == nil {
		errs = append(errs, errors.New("engine: no Model"))
	}
	if c.Executor == nil {
		errs = append(errs, errors.New("engine: no Executor"))
	}
	if c.CompactionPrompt == "" && !c.NoCompaction {
		errs = append(errs, errors.New("engine: no CompactionPrompt"))
	}
	return errors.Join(errs...)
}

// An Input starts a task. A task that a Resume carries ignores all but Options.
type Input struct {
	TaskID  string
	By      string
	Options protocol.TaskOptions
	Prompt  protocol.Payloads
}

// A Resume is what a fold of the trace knows of a session. The zero value is a
// session that never ran.
type Resume struct {
	// Context is the number of the current trace context, 0 when there is none.
	// Rotate says that the next write opens a new one (L130).
	Context int
	Rotate  bool
	// Summary is held for the first input of the next context (L119).
	Summary string
	// History holds inputs and replies of the committed turns of this context;
	// Pending is what goes out ahead of the next prompt: carry-over, raw input
	// (L069-L077, L160).
	History []protocol.Message
	Pending []protocol.Message
	// IDs are the call ids that the session has seen.
	IDs *protocol.CallIDs
	// Usage is the session's running total, ContextTokens the context figure
	// (L112), Turns the committed requests since the last compaction (L113),
	// Requests how many request_begin the session has had.
	Usage         protocol.Usage
	ContextTokens int64
	Turns         int
	Requests      int
	// Task is a task that another process began: Run or Compact goes on with it
	// instead of beginning one. nil when the session is idle.
	Task *Task
}

// An Engine runs the tasks of one session, one at a time.
type Engine struct {
	cfg Config

	mu    sync.Mutex
	inbox *inbox // of the running task; nil when idle
}

// New checks the configuration; its error joins all faults.
func New(cfg Config) (*Engine, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.Settings = cfg.Settings.withDefaults()
	return &Engine{cfg: cfg}, nil
}

// Run works on one task to its end and yields every message in trace order; it
// ends with task_end. Cancelling ctx or leaving the loop abandons the run: it
// stops what it started and yields nothing more. Use Abort for an interruption
// that is told (L066). The task counts as running from the call of Run on.
func (e *Engine) Run(ctx context.Context, from Resume, in Input) iter.Seq[protocol.Message] {
	return e.start(ctx, from, in, true, (*run).task)
}

// Compact compacts by hand, without a prompt (L127). It yields task_begin,
// the compaction's messages and task_end. Whether there is something to compact
// is the caller's to ask before (L128).
func (e *Engine) Compact(ctx context.Context, from Resume, in Input) iter.Seq[protocol.Message] {
	return e.start(ctx, from, in, false, (*run).compactByHand)
}

// Steer queues a text for the running task. True means that it will be delivered
// or named in task_end; false that no task runs (L084, L092). Safe for
// concurrent use, also from inside the loop over Run.
func (e *Engine) Steer(id, text string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.inbox != nil && e.inbox.steer(protocol.SteeringQueued{SteerID: id, Text: text})
}

// Abort interrupts the running task or compaction and reports whether there was
// one (L135). Safe for concurrent use, also from inside the loop over Run.
func (e *Engine) Abort(by string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.inbox != nil && e.inbox.abort(by)
}

func (e *Engine) start(ctx context.Context, from Resume, in Input, steerable bool, body func(*run)) iter.Seq[protocol.Message] {
	from.IDs = from.IDs.Clone()              // the model's goroutine writes them
	from.History = slices.Clip(from.History) // the fold keeps appending to its own
	box := newInbox(steerable, from.Task)
	e.mu.Lock()
	e.inbox = box
	e.mu.Unlock()
	return func(yield func(protocol.Message) bool) {
		r := newRun(ctx, e.cfg, from, in, box, yield)
		defer r.close()
		body(r)
	}
}
