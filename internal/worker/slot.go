package worker

import (
	"context"
	"errors"
	"sync"
	"time"

	"rookery/internal/bus"
	"rookery/internal/crash"
	"rookery/internal/tool"
	"rookery/protocol"
)

const (
	// replayEvery is how often results that were refused are sent again.
	replayEvery = 5 * time.Second
	// syncEvery is how long a result may wait without being on the disk: as long as
	// the broker takes by default with what it has acknowledged.
	syncEvery = time.Second
)

// startSlots starts the slots of each queue once queues exist.
func (w *Worker) startSlots(slots *sync.WaitGroup, fetch, work, send context.Context) {
	queues := []bus.Destination{bus.ToWorker(w.id)}
	for _, p := range w.cfg.Pools {
		queues = append(queues, bus.ToPool(p))
	}
	for _, q := range queues {
		for range w.cfg.Slots {
			slots.Go(func() { w.slot(q, fetch, work, send) })
		}
	}
}

// slot fetches one call after the other and runs each to its stored result.
func (w *Worker) slot(q bus.Destination, fetch, work, send context.Context) {
	select {
	case <-w.signedOn:
	case <-fetch.Done():
	}
	for fetch.Err() == nil {
		d, err := w.cfg.Bus.Fetch(fetch, q)
		if err == nil {
			w.take(work, send, d)
			continue
		}
		if fetch.Err() != nil {
			return
		}
		w.log.DebugContext(fetch, "no call fetched", "queue", q.String(), "err", err)
		if errors.Is(err, bus.ErrNoQueue) {
			w.wantSignOn()
		}
		select {
		case <-time.After(time.Second):
		case <-fetch.Done():
		}
	}
}

// take runs a delivered call if it is ours to run. A call that is not acked comes
// again; the claim decides who runs it.
func (w *Worker) take(work, send context.Context, d *bus.Delivery) {
	sid, dispatch := d.Call.Session, d.Call.Dispatch
	log := w.log.With("session", sid, "call", dispatch, "tool", d.Call.Tool)
	// A draining worker may have asked for it before; another one of the pool has the tool.
	if w.draining() || d.Dest.Pool && !w.cfg.Tools.Has(d.Call.Tool) {
		d.Pass()
		return
	}
	ctx, started := w.running.start(work, sid, dispatch)
	if !started {
		if w.running.claimed(key(sid, dispatch)) { // only the ack was lost
			w.acks <- d
		}
		return // else it comes again should the claim, which another slot makes, fail
	}
	defer w.running.end(sid, dispatch)
	if w.journal.has(key(sid, dispatch)) {
		w.acks <- d
		return
	}
	crash.At("before-claim")
	won, err := d.Claim(work, protocol.Claim{Worker: w.id, Boot: w.boot, At: time.Now().UTC()})
	if err != nil {
		log.WarnContext(work, "call not claimed", "err", err)
		return
	}
	crash.At("after-claim")
	w.running.claim(key(sid, dispatch))
	w.acks <- d
	if !won {
		log.DebugContext(work, "call is somebody else's")
		return
	}
	began := time.Now()
	res := w.execute(ctx, d.Call)
	crash.At("after-effect")
	log.InfoContext(work, "call finished", "status", string(res.StopReason), "took", time.Since(began))
	w.deliver(send, held{Session: sid, Dispatch: dispatch, Result: &res})
}

// ackEvery is how long an ack may wait for others. A queue that is emptied costs the
// broker a new file, so it is not emptied after each call; the claim is what
// counts, and the queue waits much longer before it hands a call out again.
const ackEvery = 50 * time.Millisecond

// ackAll takes claimed calls off their queues, until no slot sends any more.
func (w *Worker) ackAll() {
	for d := range w.acks {
		w.ack(w.gather(d))
	}
}

// gather returns d and what follows it soon.
func (w *Worker) gather(d *bus.Delivery) []*bus.Delivery {
	due := []*bus.Delivery{d}
	timer := time.NewTimer(ackEvery)
	defer timer.Stop()
	for {
		select {
		case d, ok := <-w.acks:
			if !ok {
				return due
			}
			due = append(due, d)
		case <-timer.C:
			return due
		}
	}
}

func (w *Worker) ack(due []*bus.Delivery) {
	for _, d := range due {
		crash.At("before-ack")
		if err := d.Ack(); err != nil {
			w.log.Debug("ack not sent", "session", d.Call.Session, "call", d.Call.Dispatch, "err", err)
		}
	}
}

// execute runs a call in its session and signs the result.
func (w *Worker) execute(ctx context.Context, call protocol.Call) protocol.Result {
	out := newStream(w.boot, func(d protocol.ToolDelta) {
		_ = w.cfg.Bus.PublishToolDelta(w.id, call.Session, call.Dispatch, d) // may be lost; the result has it all
	})
	defer out.close()
	res := w.inSession(ctx, call, func(text string) {
		crash.At("running")
		out.write(text)
	})
	res.Worker, res.Boot, res.Sandbox = w.id, w.boot, w.cfg.Backend.Name()
	return res
}

func (w *Worker) inSession(ctx context.Context, call protocol.Call, emit func(string)) protocol.Result {
	var s *tool.Session
	done := func() {}
	var err error
	switch {
	case w.cfg.Tools.Workspace(call.Tool):
		s, done, err = w.sessions.use(ctx, call.Session, call.Workspace)
	case w.cfg.Tools.Sandbox(call.Tool):
		s, done, err = w.sessions.single(ctx)
	}
	if err != nil {
		return tool.NotRun(ctx, err, emit)
	}
	defer done()
	return w.cfg.Tools.Execute(ctx, s, call, emit)
}

// deliver keeps a result until it is stored.
func (w *Worker) deliver(ctx context.Context, h held) {
	if err := w.journal.put(h); err != nil { // sent all the same: it may well be stored
		w.log.ErrorContext(ctx, "result not in the journal", "session", h.Session, "call", h.Dispatch, "err", err)
	}
	crash.At("after-journal")
	w.publish(ctx, h)
}

func (w *Worker) publish(ctx context.Context, h held) {
	err := w.cfg.Bus.PublishResult(ctx, h.Session, h.Dispatch, *h.Result)
	if err != nil && !errors.Is(err, bus.ErrSettled) && !errors.Is(err, bus.ErrTooLarge) {
		w.log.WarnContext(ctx, "result waits in the journal", "session", h.Session, "call", h.Dispatch, "err", err)
		return
	}
	if err != nil {
		w.log.ErrorContext(ctx, "result dropped", "session", h.Session, "call", h.Dispatch, "err", err)
	}
	crash.At("after-result")
	if err := w.journal.done(h); err != nil {
		w.log.WarnContext(ctx, "journal not tidied", "err", err)
	}
}

// replay sends what an earlier run left in the journal, and what a slot could not
// send, until ctx ends. What has to wait it brings to the disk.
func (w *Worker) replay(ctx context.Context) {
	again, tick := time.NewTicker(replayEvery), time.NewTicker(syncEvery)
	defer again.Stop()
	defer tick.Stop()
	w.sendHeld(ctx)
	for ctx.Err() == nil {
		select {
		case <-again.C:
			w.sendHeld(ctx)
		case <-tick.C:
		case <-ctx.Done():
		}
		if err := w.journal.sync(); err != nil {
			w.log.WarnContext(ctx, "journal not on the disk", "held", w.journal.len(), "err", err)
		}
	}
}

func (w *Worker) sendHeld(ctx context.Context) {
	for _, h := range w.journal.all() {
		if !w.running.has(h.key()) { // else its slot sends it
			w.publish(ctx, h)
		}
	}
}

// running knows the calls of this process from before their claim to their
// stored result. It is safe for concurrent use.
type running struct {
	mu    sync.Mutex
	calls map[string]*active
}

// An active call is one that this process claims or runs.
type active struct {
	session protocol.ID
	stop    context.CancelCauseFunc
	claimed bool // whoever has the claim
}

func newRunning() *running { return &running{calls: map[string]*active{}} }

// start returns the call's own context; false when the dispatch is here already.
func (r *running) start(ctx context.Context, sid protocol.ID, dispatch string) (context.Context, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := key(sid, dispatch)
	if r.calls[k] != nil {
		return nil, false
	}
	ctx, stop := context.WithCancelCause(ctx)
	r.calls[k] = &active{session: sid, stop: stop}
	return ctx, true
}

func (r *running) end(sid protocol.ID, dispatch string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := key(sid, dispatch)
	r.calls[k].stop(nil)
	delete(r.calls, k)
}

// claim notes that it is decided who runs the call.
func (r *running) claim(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls[key].claimed = true
}

func (r *running) claimed(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[key] != nil && r.calls[key].claimed
}

func (r *running) has(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.calls[key]
	return ok
}

// cancel interrupts the named calls of a session, all where none is named.
func (r *running) cancel(sid protocol.ID, dispatches []string, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range dispatches {
		if a := r.calls[key(sid, d)]; a != nil {
			a.stop(cause)
		}
	}
	for _, a := range r.calls {
		if len(dispatches) == 0 && a.session == sid {
			a.stop(cause)
		}
	}
}

func (r *running) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for k := range r.calls {
		all = append(all, k)
	}
	return all
}
