package session

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"rookery/internal/bus"
	"rookery/internal/engine"
	"rookery/internal/trace"
	"rookery/protocol"
)

// An order is a command on its way to the owner.
type order struct {
	verb    protocol.Verb
	cmd     protocol.Command
	respond func(protocol.Reply)
}

// A session is one that is hosted here. Everything below the channels belongs to
// the owner goroutine.
type session struct {
	h   *Host
	id  protocol.ID
	log *slog.Logger

	orders chan *order   // capacity 64; handlers of the bus write, the owner reads
	events chan any      // capacity 64; the engine's goroutines write in order, the owner reads
	stored chan stored   // capacity 1; the appender writes, the owner reads
	closed chan struct{} // closed by the owner when it takes nothing more

	deposed chan struct{} // capacity 1; there is another owner: hearOwn writes, the owner reads

	closeOnce func() // closes closed
	clerk     clerk

	trace  *bus.Log
	fold   *trace.Fold
	placer trace.Placer
	queue  []record // to be stored, in order
	flying []record // in the publish that is in flight
	held   []any    // events that came between a token_usage and its request_end
	n      uint64   // dense number of the last visible record that was queued
	seen   uint64   // sequence of the last visible frame that is stored
	fault  error    // why nothing can be recorded any more

	state    agentState
	place    protocol.WorkspaceRef
	tools    []protocol.Tool
	pooled   map[string]bool // tools that the holder of the workspace does not have
	lost     protocol.ID     // worker with which a workspace went; the model does not know yet
	model    Model
	title    string
	untitled bool     // it is the first line of a prompt, and the model was not asked yet
	naming   bool     // it is being asked
	material material // what it will be made of
	engine   *engine.Engine
	stop     context.CancelFunc // of the running task
	working  sync.WaitGroup     // the engine goroutine and the clerk
	ending   bool               // task_end is queued and not stored
	deferred []order            // came while ending
	waits    map[string][]waiter
	answers  map[string]protocol.Reply // of accepted commands, by id
	pending  map[string]*pending       // approvals that a person must give
	live     live
	news     *callNews    // of the running task's calls; nil without one
	unwatch  func()       // stops looking at the link
	unown    func()       // stops listening for another owner
	serving  func()       // stops the subscription to commands
	requests requests     // figures for the usage ledger
	previous protocol.Own // who owned the session before
	prompt   int          // messages of the prompt that are not stored yet
	changed  time.Time    // when the session last began or ended something
	task     string       // id of the task that began last
	unlisted bool         // the directory does not have the running task yet
	begun    []string     // keys of waits that wait for the directory alone

	abortStored bool

	callsMu sync.Mutex
	calls   map[string]*dispatch // running calls by dispatch id; executions write, hearCall reads
}

// A waiter is a command whose answer waits for a record.
type waiter struct {
	respond func(protocol.Reply)
	reply   protocol.Reply
}

// agentState is what session_meta keeps for rookery itself.
type agentState struct {
	Model  string      `json:"model"`
	Pool   string      `json:"pool,omitempty"`
	Worker protocol.ID `json:"worker,omitempty"`
	// Labels are those the worker must have.
	Labels  map[string]string `json:"labels,omitempty"`
	Sandbox string            `json:"sandbox,omitempty"`
	Tools   []string          `json:"tools,omitempty"`
	Source  string            `json:"source,omitempty"`
}

func (a agentState) raw() json.RawMessage { return protocol.Encode(a) }

func newSession(h *Host, id protocol.ID) *session {
	s := &session{
		h: h, id: id, log: h.log.With("session", id),
		orders: make(chan *order, 64), events: make(chan any, 64), stored: make(chan stored, 1),
		closed: make(chan struct{}), deposed: make(chan struct{}, 1),
		fold: trace.NewFold(), waits: map[string][]waiter{}, answers: map[string]protocol.Reply{},
		pending: map[string]*pending{}, calls: map[string]*dispatch{},
	}
	s.closeOnce = sync.OnceFunc(func() { close(s.closed) })
	return s
}

// put hands an order to the owner; false when the session has ended.
func (s *session) put(o order) bool {
	select {
	case <-s.closed:
		return false
	default:
	}
	select {
	case s.orders <- &o:
		return true
	case <-s.closed:
		return false
	}
}

// run is the owner goroutine.
func (s *session) run(ctx context.Context) {
	defer s.h.forget(s)
	first, ok := s.firstOrder(ctx)
	if !ok {
		s.closeOnce()
		return
	}
	if reply, err := s.load(ctx, first); err != nil {
		s.refuseAll(first, reply)
		return
	}
	s.log.InfoContext(ctx, "session opened", "epoch", s.trace.Epoch())
	s.book()
	if err := s.takeOver(ctx, first); err != nil {
		s.refuseAll(first, protocol.Reply{Code: protocol.ReplyWorkspace, Reason: err.Error()})
		s.shut(ctx)
		return
	}
	s.command(ctx, first)
	s.serve(ctx)
	s.shut(ctx)
	if s.fault == nil && s.fold.State().Task != nil && !s.h.cfg.Private {
		s.handOver()
	}
}

// handOver asks the other orchestrators for one that goes on with the task at once;
// without it they notice by themselves, a little later.
func (s *session) handOver() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	select {
	case <-s.h.left:
	case <-ctx.Done():
		return
	}
	reply, err := s.h.bus.Command(ctx, s.id, protocol.VerbTakeover, protocol.Command{ID: protocol.Token(8)})
	s.log.InfoContext(ctx, "session handed over", "code", string(reply.Code), "err", err)
}

func (s *session) firstOrder(ctx context.Context) (order, bool) {
	select {
	case o := <-s.orders:
		return *o, true
	case <-ctx.Done():
		return order{}, false
	}
}

// refuseAll answers the command that could not open the session. What came behind
// it tries for itself: an abort may do where nothing else does.
func (s *session) refuseAll(first order, reply protocol.Reply) {
	s.h.forget(s)
	s.closeOnce()
	first.respond(reply)
	for {
		select {
		case o := <-s.orders:
			s.h.deliver(s.id, o.verb, o.cmd, o.respond)
		default:
			return
		}
	}
}

// serve handles what comes until the session is idle for long, lost, or ctx ends.
func (s *session) serve(ctx context.Context) {
	beat := time.NewTicker(5 * time.Second)
	defer beat.Stop()
	idle := time.NewTimer(s.h.cfg.IdleAfter)
	defer idle.Stop()
	for s.fault == nil {
		s.flush(ctx)
		select {
		case o := <-s.orders:
			s.command(ctx, *o)
			idle.Reset(s.h.cfg.IdleAfter)
		case ev := <-s.events:
			s.take(ev)
			s.drainEvents()
		case st := <-s.stored:
			s.settle(ctx, st)
			idle.Reset(s.h.cfg.IdleAfter)
		case <-s.deposed:
			if len(s.flying) == 0 { // else the publish is refused
				s.lose(ctx, bus.ErrFenced, nil)
			}
		case <-s.live.due():
			s.live.flush(s)
		case <-beat.C:
			s.beat()
		case <-idle.C:
			if s.idle() {
				return
			}
			idle.Reset(s.h.cfg.IdleAfter)
		case <-ctx.Done():
			return
		}
	}
}

// yields is how often drainEvents lets others run who are about to say more.
const yields = 4

// drainEvents takes what is ready, so that it leaves in one frame. Between a call
// and its dispatch nobody waits for anything but a processor: they are let run.
func (s *session) drainEvents() {
	for left, taken := yields, 0; taken < cap(s.events); {
		select {
		case ev := <-s.events:
			s.take(ev)
			taken++
		default:
			if left == 0 || len(s.flying) > 0 || !s.dispatching() {
				return
			}
			left--
			runtime.Gosched()
		}
	}
}

// dispatching reports that what was queued last is a call that has not been
// dispatched, and waits for no person.
func (s *session) dispatching() bool {
	if len(s.queue) == 0 {
		return false
	}
	switch p := s.queue[len(s.queue)-1].message.Payload.(type) {
	case protocol.ToolCall:
		return p.StopReason == protocol.Completed
	case protocol.ApprovalDecision:
		return p.Decision == protocol.Allow
	default:
		return false
	}
}

func (s *session) idle() bool {
	return s.engine == nil && len(s.queue) == 0 && len(s.flying) == 0 && !s.ending && len(s.orders) == 0
}

// shut lets go of the session: nothing new, the engine abandoned, what is queued
// is stored if that is still possible.
func (s *session) shut(ctx context.Context) {
	if s.serving != nil {
		s.serving()
	}
	if s.stop != nil {
		s.stop()
	}
	s.h.forget(s)
	s.closeOnce()
	s.drainStored()
	s.failWaiters()
	s.hearNoCalls()
	for _, stop := range []func(){s.unwatch, s.unown} {
		if stop != nil {
			stop()
		}
	}
	if s.fault == nil {
		s.letGo()
	}
	s.working.Wait()
	s.log.InfoContext(ctx, "session closed", "fault", errText(s.fault))
}

// drainStored waits for the publish in flight and keeps the engine's goroutines
// from waiting for an owner that is gone.
func (s *session) drainStored() {
	left := s.h.cfg.WriteTimeout
	timeout := time.After(left)
	for len(s.flying) > 0 || len(s.queue) > 0 && s.fault == nil {
		if s.flush(context.Background()); len(s.flying) == 0 {
			return // half a step, of which the other half will not come
		}
		select {
		case st := <-s.stored:
			s.settle(context.Background(), st)
		case ev := <-s.events:
			s.dropEvent(ev)
		case <-timeout:
			return
		}
	}
}

// failWaiters answers what can't be confirmed any more: the client asks again, by
// the same id, and the next owner knows.
func (s *session) failWaiters() {
	reply := s.h.elsewhere("the session moved: " + errText(s.fault))
	for _, ws := range s.waits {
		for _, w := range ws {
			w.respond(reply)
		}
	}
	for _, o := range s.deferred {
		o.respond(reply)
	}
	for {
		select {
		case o := <-s.orders:
			o.respond(reply)
		default:
			return
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// stateNow tells what the session does (L138).
func (s *session) stateNow() protocol.State {
	switch {
	case s.placer.Compacting:
		return protocol.StateCompacting
	case s.engine != nil || s.ending:
		return protocol.StateRunning
	}
	return protocol.StateIdle
}

var errLost = errors.New("the session has another owner")
