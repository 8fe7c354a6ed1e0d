package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"rookery/internal/bus"
	"rookery/internal/crash"
	"rookery/internal/engine"
	"rookery/protocol"
)

// waitingAfter is when viewers are told that no worker took a call.
const waitingAfter = 2 * time.Second

// executor runs calls over the bus.
type executor struct {
	session *session
	news    *callNews
	first   int // number of a call's first attempt: 1, but see skipForgotten
}

// callNews is a task's subscription to what becomes of its calls. It is made while
// the first request runs, and an idle session has none.
type callNews struct {
	ready chan struct{} // closed once stop is there
	stop  func()
}

// hearCalls begins to listen for news of calls.
func (s *session) hearCalls() {
	s.hearNoCalls()
	n := &callNews{ready: make(chan struct{}), stop: func() {}}
	s.news = n
	s.working.Go(func() {
		defer close(n.ready)
		stop, err := s.h.bus.WatchCalls(s.id, s.hearCall)
		if err != nil { // results are read again from time to time
			s.log.Warn("news of calls not heard", "err", err)
			return
		}
		n.stop = stop
	})
}

// hearNoCalls ends that.
func (s *session) hearNoCalls() {
	if n := s.news; n != nil {
		s.news = nil
		s.working.Go(func() {
			<-n.ready
			n.stop()
		})
	}
}

// A dispatch is one attempt to have a call run. It belongs to the goroutine of its
// execution; news reaches it through the channel.
type dispatch struct {
	s    *session
	call engine.Call
	tool protocol.Tool
	id   string

	attempt int
	dest    bus.Destination
	news    chan bus.CallEvent // capacity 64; hearCall writes, the execution reads

	poke chan struct{} // capacity 1; the link is back: what was said meanwhile is lost

	claim    *protocol.Claim
	streamed strings.Builder // output that was handed on
	gap      bool            // a delta is missing: the rest comes with the result
	early    []bus.CallEvent

	unreachable time.Time // since when the claimant is; zero while it is not
	missing     int       // how often the claimant did not know the call
}

// hearCall routes news of a call; what nobody waits for is late and dropped.
func (s *session) hearCall(ev bus.CallEvent) {
	s.callsMu.Lock()
	d := s.calls[ev.Dispatch]
	s.callsMu.Unlock()
	if d == nil {
		if ev.Result != nil {
			s.log.Info("late result dropped", "call", ev.Dispatch, "worker", ev.Worker)
		}
		return
	}
	select {
	case d.news <- ev:
	default: // a lost delta is a gap, lost claims and results are read again
	}
}

// Execute implements engine.Executor.
func (x executor) Execute(ctx context.Context, c engine.Call, emit func(string)) engine.Output {
	s := x.session
	if len(c.Arguments) > protocol.MaxBody {
		return engine.Output{Text: protocol.NoteTooLarge, Stop: protocol.Failed}
	}
	<-x.news.ready // at once, but for the first call
	tool := s.tool(c.Name)
	if c.Prior != nil {
		return x.resume(ctx, c, tool, emit)
	}
	return x.attempt(ctx, c, tool, x.first, emit)
}

// attempt makes one dispatch and follows it to its end.
func (x executor) attempt(ctx context.Context, c engine.Call, tool protocol.Tool, n int, emit func(string)) engine.Output {
	s := x.session
	d := s.newDispatch(c, tool, n, s.destination(tool))
	defer d.forget()
	if err := d.send(ctx); err != nil {
		return d.unsent(ctx, err)
	}
	return d.await(ctx, emit)
}

func (s *session) newDispatch(c engine.Call, tool protocol.Tool, n int, dest bus.Destination) *dispatch {
	d := &dispatch{
		s: s, call: c, tool: tool, attempt: n, id: fmt.Sprintf("%d-%d-%d", c.Request, c.Position, n),
		dest: dest, news: make(chan bus.CallEvent, 64), poke: make(chan struct{}, 1),
	}
	s.callsMu.Lock()
	s.calls[d.id] = d
	s.callsMu.Unlock()
	return d
}

func (d *dispatch) forget() {
	d.s.callsMu.Lock()
	defer d.s.callsMu.Unlock()
	delete(d.s.calls, d.id)
}

func (s *session) tool(name string) protocol.Tool {
	for _, t := range s.tools {
		if t.Name == name {
			return t
		}
	}
	return protocol.Tool{}
}

func (s *session) destination(t protocol.Tool) bus.Destination {
	if t.Workspace || s.state.Worker != "" && !s.pooled[t.Name] {
		return bus.ToWorker(s.place.Worker)
	}
	return bus.ToPool(protocol.ID(s.state.Pool))
}

// send stores the intent and then publishes the call (barrier 2).
func (d *dispatch) send(ctx context.Context) error {
	s := d.s
	err := s.keep(ctx, protocol.CallDispatched{ToolCallID: d.call.ToolCallID, Attempt: d.attempt, Destination: d.dest.String()})
	if err != nil {
		return err
	}
	err = s.h.bus.Dispatch(ctx, d.dest, protocol.Call{
		Session: s.id, Dispatch: d.id, Key: fmt.Sprintf("%s/%d-%d", s.id, d.call.Request, d.call.Position),
		ToolCallID: d.call.ToolCallID, Tool: d.call.Name, Arguments: d.call.Arguments,
		Workspace: s.place, TimeoutMS: d.tool.TimeoutMS, MaxOutput: d.tool.MaxOutput, Epoch: s.trace.Epoch(),
	})
	crash.At("after-dispatch")
	return err
}

// unsent closes a call that may or may not be in the queue: it is revoked, so that
// nobody runs it.
func (d *dispatch) unsent(ctx context.Context, err error) engine.Output {
	if errors.Is(err, bus.ErrTooLarge) {
		return engine.Output{Text: protocol.NoteTooLarge, Stop: protocol.Failed}
	}
	if interruptedBy(ctx) {
		return d.interrupted(func(string) {})
	}
	return engine.Output{Text: protocol.NoteError(err.Error()), Stop: protocol.Failed}
}

// await follows the dispatch to its end.
func (d *dispatch) await(ctx context.Context, emit func(string)) engine.Output {
	patience := d.s.h.cfg.QueueTimeout
	if !d.dest.Pool {
		patience = d.s.h.cfg.PinnedTimeout
	}
	lost := time.NewTimer(patience)
	defer lost.Stop()
	waiting := time.NewTimer(waitingAfter)
	defer waiting.Stop()
	resync := time.NewTicker(d.s.h.cfg.Resync)
	defer resync.Stop()
	for {
		select {
		case ev := <-d.news:
			if r := d.hear(ev, emit); r != nil {
				return d.output(r)
			}
		case <-waiting.C:
			if d.claim == nil {
				d.waitFor(ctx, "a worker of "+d.dest.String())
			}
		case <-d.poke:
			if r := d.resync(ctx); r != nil {
				return d.output(r)
			}
		case <-resync.C:
			if r := d.resync(ctx); r != nil {
				return d.output(r)
			}
			if d.claim != nil && d.gone(ctx) {
				return d.bury(ctx, emit)
			}
		case <-lost.C:
			if d.claim == nil && d.giveUp(ctx) {
				return engine.Output{Text: protocol.NoteLost(int(patience.Seconds())), Stop: protocol.Failed}
			}
		case <-ctx.Done():
			if interruptedBy(ctx) {
				return d.interrupted(emit)
			}
			return engine.Output{Text: protocol.NoteError("the session moved"), Stop: protocol.Failed}
		}
	}
}

// hear takes one event; a result counts only from the claimant. What comes before
// the claim is kept for it.
func (d *dispatch) hear(ev bus.CallEvent, emit func(string)) *protocol.Result {
	switch {
	case ev.Claim != nil:
		if d.claim == nil && !ev.Claim.Revoked {
			d.claim = ev.Claim
			early := d.early
			d.early = nil
			for _, e := range early {
				if r := d.hear(e, emit); r != nil {
					return r
				}
			}
		}
	case d.claim == nil:
		if len(d.early) < cap(d.news) {
			d.early = append(d.early, ev)
		}
	case ev.Delta != nil:
		d.delta(ev, emit)
	case ev.Result != nil && ev.Result.Worker == d.claim.Worker && ev.Result.Boot == d.claim.Boot:
		return ev.Result
	}
	return nil
}

// delta hands on what follows directly; after a gap the result brings the rest.
func (d *dispatch) delta(ev bus.CallEvent, emit func(string)) {
	switch {
	case ev.Worker != d.claim.Worker || ev.Delta.Boot != d.claim.Boot:
	case ev.Delta.Offset > d.streamed.Len():
		d.gap = true
	case !d.gap && ev.Delta.Offset == d.streamed.Len():
		d.streamed.WriteString(ev.Delta.Text)
		emit(ev.Delta.Text)
	}
}

func (d *dispatch) output(r *protocol.Result) engine.Output {
	d.s.log.Debug("call finished", "call", d.id, "tool", d.call.Name, "worker", r.Worker, "took", r.Resources.Wall)
	return engine.Output{Text: r.Output, Images: r.Images, Stop: r.StopReason}
}

// resync reads claim and result, whose news may have been lost.
func (d *dispatch) resync(ctx context.Context) *protocol.Result {
	if d.claim == nil {
		c, err := d.s.h.bus.Claim(ctx, d.dest, d.s.id, d.id)
		if err != nil || c == nil || c.Revoked {
			return nil
		}
		d.claim = c
	}
	r, err := d.s.h.bus.Result(ctx, d.claim.Worker, d.s.id, d.id)
	if err != nil || r == nil || r.Boot != d.claim.Boot {
		return nil
	}
	return r
}

func (d *dispatch) waitFor(ctx context.Context, what string) {
	_ = d.s.tell(ctx, protocol.New(protocol.Waiting{ToolCallID: d.call.ToolCallID, For: what}))
}

// giveUp ends a dispatch that nobody took: told first, then revoked. It is false
// when a worker was faster.
func (d *dispatch) giveUp(ctx context.Context) bool {
	if err := d.s.keep(ctx, protocol.CallFate{ToolCallID: d.call.ToolCallID, Fate: "lost"}); err != nil {
		return false
	}
	return d.revoke(ctx, "lost")
}

// revoke claims the dispatch for the owner; false when a worker has it.
func (d *dispatch) revoke(ctx context.Context, reason string) bool {
	claim := protocol.Claim{Boot: d.s.h.cfg.Boot, At: time.Now().UTC(), Revoked: true, Reason: reason}
	existing, err := d.s.h.bus.Revoke(ctx, d.dest, d.s.id, d.id, claim)
	switch {
	case err != nil:
		return false
	case existing == nil || existing.Revoked:
		return true
	}
	d.claim = existing
	return false
}

// interrupted stops a call after an abort (L056, L067): nobody may take it any more,
// and whoever has it ends it and says what there was. The engine bounds the wait.
func (d *dispatch) interrupted(emit func(string)) engine.Output {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	aborted := engine.Output{Text: protocol.NoteInterrupted, Stop: protocol.Aborted}
	if err := d.s.sync(ctx); err != nil {
		return aborted
	}
	if d.claim == nil && d.revoke(ctx, "aborted") {
		return aborted
	}
	if d.claim == nil {
		return aborted
	}
	_, err := d.s.h.bus.Control(ctx, d.claim.Worker, "cancel", protocol.Control{Session: d.s.id, Dispatch: []string{d.id}})
	if err != nil {
		d.s.log.Info("cancel not delivered", "call", d.id, "worker", d.claim.Worker, "err", err)
	}
	resync := time.NewTicker(time.Second)
	defer resync.Stop()
	for {
		select {
		case ev := <-d.news:
			if r := d.hear(ev, emit); r != nil {
				return d.output(r)
			}
		case <-resync.C:
			if r := d.resync(ctx); r != nil {
				return d.output(r)
			}
		case <-d.s.closed: // a successor asks again
			return aborted
		case <-ctx.Done():
			return aborted
		}
	}
}
