package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"rookery/internal/bus"
	"rookery/internal/config"
	"rookery/internal/session"
	"rookery/protocol"
)

// Roles say what a process does on a bus.
type Roles struct {
	Orchestrator, Worker bool
	// Private keeps others' sessions and workspaces away: the process of one run.
	Private bool

	// The rest is the worker's. Its default is what the configuration says.

	// Allow lists directories under which workspaces may be named.
	Allow []string
	// Sandbox is one that was begun before; Start makes the configured one.
	Sandbox *Sandbox
	// Root is where the worker keeps its id, journal and workspaces. Default: the
	// first of the numbered ones under the user's worker directory that no other
	// process uses.
	Root   string
	Pools  []string
	Labels map[string]string
	Slots  int
}

// A Stack is the roles that run in this process.
type Stack struct {
	// Node is the orchestrator's id, Worker the worker's; empty without that role.
	Node, Worker protocol.ID

	orchestrator, worker *role
	release              []func() // in reverse order, once all roles have ended

	ended chan struct{} // closed when the first role has ended
	first sync.Once
	stop  sync.Once
}

// Start starts the roles and returns once they serve: commands are taken and the
// worker has signed on. ctx bounds the start only; Stop ends the roles. The bus
// stays the caller's and must outlive the Stack.
func Start(ctx context.Context, b *bus.Bus, cfg *config.Config, roles Roles, log *slog.Logger) (*Stack, error) {
	s := &Stack{ended: make(chan struct{})}
	log = logger(log)
	err := errors.New("no role to start")
	if roles.Worker && roles.Sandbox == nil {
		if roles.Sandbox, err = NewSandbox(ctx, cfg.Sandbox); err != nil {
			return nil, err
		}
	}
	if roles.Orchestrator {
		err = s.startOrchestrator(ctx, b, cfg, roles, log)
	}
	if roles.Worker && (err == nil || !roles.Orchestrator) {
		err = s.startWorker(ctx, b, cfg, roles, log)
	}
	if err != nil {
		s.Stop()
		if roles.Sandbox != nil {
			_ = roles.Sandbox.Close() // the start failed already
		}
		return nil, err
	}
	return s, nil
}

func (s *Stack) startOrchestrator(ctx context.Context, b *bus.Bus, cfg *config.Config, roles Roles, log *slog.Logger) error {
	if err := b.Setup(ctx, bus.StoreOptions{Replicas: cfg.Store.Replicas}); err != nil {
		return fmt.Errorf("set up the broker: %w", err)
	}
	ms := newModels(cfg, log)
	s.release = append(s.release, ms.close)
	h, err := session.New(sessionConfig(b, cfg, roles.Private, ms, log))
	if err != nil {
		return fmt.Errorf("make the orchestrator: %w", err)
	}
	s.Node = h.Node()
	s.orchestrator, err = s.start(ctx, "orchestrator", h.Run)
	return err
}

// A role is one thing that runs until it is told to end.
type role struct {
	end  context.CancelFunc
	done chan struct{} // closed when err is there
	err  error
}

// start runs a role and returns once it is ready, or has failed.
func (s *Stack) start(ctx context.Context, name string, run func(ctx context.Context, ready func()) error) (*role, error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	r := &role{end: end, done: make(chan struct{})}
	ready := make(chan struct{})
	go func() { // close waits for it
		defer close(r.done)
		defer s.first.Do(func() { close(s.ended) })
		var once sync.Once
		if err := run(life, func() { once.Do(func() { close(ready) }) }); err != nil {
			r.err = fmt.Errorf("%s: %w", name, err)
		}
	}()
	select {
	case <-ready:
		return r, nil
	case <-r.done:
		end()
		return r, cmp.Or(r.err, fmt.Errorf("%s ended before it served", name))
	case <-ctx.Done():
		_ = r.close()
		return nil, fmt.Errorf("start the %s: %w", name, context.Cause(ctx))
	}
}

// close ends the role and waits for it.
func (r *role) close() error {
	if r == nil {
		return nil
	}
	r.end()
	<-r.done
	return r.err
}

// Stop ends the roles and returns after the last: sessions are handed over first,
// then the worker finishes its calls within its grace. It may be called again.
func (s *Stack) Stop() {
	s.stop.Do(func() {
		_ = s.orchestrator.close()
		_ = s.worker.close()
		for _, release := range slices.Backward(s.release) {
			release()
		}
	})
}

// Wait returns when a role has ended, by Stop or by itself, and then all have; its
// error says why if it was not Stop.
func (s *Stack) Wait() error {
	<-s.ended
	s.Stop()
	return errors.Join(s.orchestrator.close(), s.worker.close())
}
