package session

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"rookery/internal/bus"
	"rookery/internal/engine"
	"rookery/protocol"
)

// A Model is one that sessions can be run with.
type Model struct {
	engine.Model
	// Name is what sessions are started with; ID and Provider what the trace says.
	Name, ID, Provider string
	ContextWindow      int
	MaxTokens          int
	Thinking           string
}

// A Policy says what a tool may do, by the orchestrator's configuration.
type Policy struct {
	Permission protocol.Permission
	Idempotent bool
	// Timeout bounds one call; 0 = what the tool says, else Config.ToolTimeout;
	// negative = none.
	Timeout time.Duration
}

// A Config holds what an orchestrator needs to host sessions.
type Config struct {
	Bus *bus.Bus // required
	// Node is the orchestrator's id, Boot that of its process. Defaults are random.
	Node protocol.ID
	Boot string
	// Models finds a model by name, "" being the default one. Required.
	Models func(name string) (Model, error)
	// System makes the system prompt from the workspace's AGENTS.md.
	System func(instructions string) string
	// Policy is asked for each tool. Default: rw, not idempotent.
	Policy func(pool, tool string) Policy
	// Enabled lists the tools that are offered; empty = all.
	Enabled []string
	// ToolTimeout bounds calls of tools that say nothing themselves, MaxOutput
	// their output in characters. Defaults 2 min and 16000; negative = none.
	ToolTimeout time.Duration
	MaxOutput   int
	// ApprovalTimeout bounds a person's decision; then it is deny. 0 = none.
	ApprovalTimeout time.Duration
	// Titler names sessions after their first task; nil leaves them the first line of
	// its prompt.
	Titler Titler
	// Settings of the loop; a task's options come first.
	Settings engine.Settings
	// Pool serves sessions that name none. Default "default".
	Pool string
	// Private keeps the orchestrator out of the queue: it serves only sessions
	// that are asked of it by name.
	Private bool

	// QueueTimeout is how long a call may wait for a worker of a pool, PinnedTimeout
	// for the one worker that can take it. Defaults 10 min and 1 min.
	QueueTimeout, PinnedTimeout time.Duration
	// UnreachableGrace is how long a claimed call may outlive its deadline
	// without a word of its worker. Default 2 min.
	UnreachableGrace time.Duration
	// ReplaceAfter is how long a worker must have been away before a session whose
	// workspace it made gets another one. Default 15 s.
	ReplaceAfter time.Duration
	// Builtin are the tools whose names are reserved.
	Builtin []protocol.Tool
	// Resync is how often an open call is looked after: its result read again, its
	// worker asked. Default 5 s.
	Resync time.Duration
	// IdleAfter is how long an idle session stays open. Default 10 min.
	IdleAfter time.Duration
	// WriteTimeout bounds the retries of one append (L059). Default 30 s.
	WriteTimeout time.Duration
	// Logger; nil discards.
	Logger *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	var errs []error
	if c.Bus == nil {
		errs = append(errs, errors.New("session: no Bus"))
	}
	if c.Models == nil {
		errs = append(errs, errors.New("session: no Models"))
	}
	c.Node = cmp.Or(c.Node, protocol.ID("o-"+protocol.Token(5)))
	c.Boot = cmp.Or(c.Boot, protocol.Token(8))
	c.Pool = cmp.Or(c.Pool, "default")
	if c.System == nil {
		c.System = func(instructions string) string { return instructions }
	}
	if c.Policy == nil {
		c.Policy = func(string, string) Policy { return Policy{Permission: protocol.ReadWrite} }
	}
	c.ToolTimeout = cmp.Or(c.ToolTimeout, 2*time.Minute)
	c.MaxOutput = cmp.Or(c.MaxOutput, 16000)
	c.QueueTimeout = cmp.Or(c.QueueTimeout, 10*time.Minute)
	c.PinnedTimeout = cmp.Or(c.PinnedTimeout, time.Minute)
	c.UnreachableGrace = cmp.Or(c.UnreachableGrace, 2*time.Minute)
	c.ReplaceAfter = cmp.Or(c.ReplaceAfter, 15*time.Second)
	c.Resync = cmp.Or(c.Resync, 5*time.Second)
	c.IdleAfter = cmp.Or(c.IdleAfter, 10*time.Minute)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, 30*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, errors.Join(errs...)
}

// A Host runs the sessions that one orchestrator owns.
type Host struct {
	cfg   Config
	bus   *bus.Bus
	log   *slog.Logger
	fleet *fleet
	peers peers

	ctx context.Context //nolint:containedctx // the extent of Run; handlers of the bus have none

	mu       sync.Mutex
	sessions map[protocol.ID]*session
	stopping bool
	left     chan struct{}          // closed when nothing is asked of this orchestrator any more
	failed   map[protocol.ID]string // tasks of this process whose trace could not be written, and why
	open     sync.WaitGroup         // running sessions and handlers
	imports  imports
}

// New checks the configuration; its error joins all faults.
func New(cfg Config) (*Host, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Host{
		cfg: cfg, bus: cfg.Bus, log: cfg.Logger,
		fleet: newFleet(cfg), sessions: map[protocol.ID]*session{}, failed: map[protocol.ID]string{},
		left:    make(chan struct{}),
		imports: imports{open: map[protocol.ID][]protocol.Message{}},
	}, nil
}

// Node is the orchestrator's id.
func (h *Host) Node() protocol.ID { return h.cfg.Node }

// Run serves commands until ctx is done, then lets go of every session and
// returns when the last one has ended. ready, if not nil, is called once commands
// are served and others see that this orchestrator lives.
func (h *Host) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h.ctx = ctx
	stopFleet, err := h.fleet.watch(ctx)
	if err != nil {
		return err
	}
	defer stopFleet()
	stop, err := h.bus.ServeOrch(h.cfg.Node, h.handler(), !h.cfg.Private)
	if err != nil {
		return err
	}
	defer stop()
	var lease sync.WaitGroup
	lctx, giveUp := context.WithCancel(context.WithoutCancel(ctx)) // outlives the sessions
	defer giveUp()
	held := make(chan struct{})
	lease.Go(func() {
		l := bus.Lease{Kind: bus.LeaseOrchestrator, ID: h.cfg.Node, Boot: h.cfg.Boot}
		if err := h.bus.KeepLease(lctx, l, func() { close(held) }); err != nil && lctx.Err() == nil {
			h.log.WarnContext(ctx, "lease not kept", "err", err)
		}
	})
	if !h.cfg.Private {
		lease.Go(func() { h.watchPeers(ctx) })
	}
	select {
	case <-held:
		if ready != nil {
			ready()
		}
	case <-ctx.Done():
	}
	<-ctx.Done()
	h.mu.Lock()
	h.stopping = true
	h.mu.Unlock()
	stop()
	close(h.left)
	h.open.Wait()
	giveUp()
	lease.Wait()
	return nil
}

// deliver gives a command to its session, opening it if need be.
//
//nolint:contextcheck // a session outlives the command that opens it
func (h *Host) deliver(sid protocol.ID, verb protocol.Verb, cmd protocol.Command, respond func(protocol.Reply)) {
	h.mu.Lock()
	if h.stopping {
		h.mu.Unlock()
		respond(h.elsewhere("the orchestrator is stopping"))
		return
	}
	s, ok := h.sessions[sid]
	if !ok {
		s = newSession(h, sid)
		h.sessions[sid] = s
		h.open.Go(func() { s.run(h.ctx) })
	}
	h.mu.Unlock()
	if !s.put(order{verb: verb, cmd: cmd, respond: respond}) {
		h.deliver(sid, verb, cmd, respond) // it has just ended
	}
}

// elsewhere has the sender ask anew: here first, and when nobody is left here,
// whoever owns the session then.
func (h *Host) elsewhere(why string) protocol.Reply {
	return protocol.Reply{Code: protocol.ReplyUse, Use: h.cfg.Node, Reason: why}
}

// forget drops a session that has ended, so that the next command opens it anew.
func (h *Host) forget(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sessions[s.id] == s {
		delete(h.sessions, s.id)
	}
}
