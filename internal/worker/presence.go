package worker

import (
	"context"
	"sync"
	"time"

	"rookery/internal/bus"
	"rookery/protocol"
)

// The pace of a worker's signs of life.
const (
	beatEvery  = 2 * time.Second
	retryAfter = time.Second
)

// Info is how the worker signs on.
func (w *Worker) Info() protocol.WorkerInfo {
	c := w.cfg
	return protocol.WorkerInfo{
		Worker: w.id, Boot: w.boot, Host: c.Host, User: c.User, Version: c.Version, Pools: c.Pools, Labels: c.Labels,
		Slots: c.Slots, Sandbox: c.Backend.Name(), Allow: w.places.allow, Tools: c.Tools.Specs(), Private: c.Private,
	}
}

// presence signs on, holds the lease and beats until ctx ends.
func (w *Worker) presence(ctx context.Context) {
	stop := w.cfg.Bus.Watch(func(l bus.Link) {
		if l.Up {
			w.wantSignOn()
		}
	})
	defer stop()
	w.wantSignOn()
	held := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		lease := bus.Lease{Kind: bus.LeaseWorker, ID: w.id, Boot: w.boot}
		if err := w.cfg.Bus.KeepLease(ctx, lease, func() { close(held) }); err != nil {
			w.log.WarnContext(ctx, "lease not kept", "err", err)
		}
	})
	wg.Go(func() {
		select {
		case <-held: // nobody takes one without a lease for a worker that lives
			w.keepSignedOn(ctx)
		case <-ctx.Done():
		}
	})
	defer wg.Wait()
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		w.beat()
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (w *Worker) wantSignOn() {
	select {
	case w.signOn <- struct{}{}:
	default: // wanted already
	}
}

// keepSignedOn signs on whenever it is wanted, and repeats until it worked.
func (w *Worker) keepSignedOn(ctx context.Context) {
	first := sync.OnceFunc(func() { close(w.signedOn) })
	said := ""
	for {
		select {
		case <-w.signOn:
		case <-ctx.Done():
			return
		}
		reply, err := w.cfg.Bus.Register(ctx, w.Info(), w.cfg.Orchestrator)
		switch {
		case err == nil && reply.Code.Accepted():
			w.log.InfoContext(ctx, "signed on", "boot", w.boot)
			said = ""
			first()
			continue
		case ctx.Err() != nil:
			return
		}
		why := reply.Reason
		if err != nil {
			why = err.Error()
		}
		if why != said { // once for each reason
			w.log.WarnContext(ctx, "not signed on, trying on", "code", string(reply.Code), "err", why)
			said = why
		}
		w.wantSignOn()
		select {
		case <-time.After(retryAfter):
		case <-ctx.Done():
		}
	}
}

// beat tells the worker's state.
func (w *Worker) beat() {
	if err := w.cfg.Bus.Heartbeat(w.state()); err != nil {
		w.log.Debug("heartbeat not sent", "err", err)
	}
}

func (w *Worker) state() protocol.Heartbeat {
	calls := w.running.list()
	open, background := w.sessions.state()
	return protocol.Heartbeat{
		Worker: w.id, Boot: w.boot, Slots: w.cfg.Slots, Free: max(w.cfg.Slots-len(calls), 0), Running: calls, Draining: w.draining(),
		Sessions: open, Background: background,
	}
}
