package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"runtime/debug"
	"sync"

	"rookery/internal/bus"
	"rookery/internal/config"
	"rookery/internal/sandbox"
	"rookery/internal/sandbox/backend"
	"rookery/internal/tool"
	"rookery/internal/worker"
	"rookery/protocol"
)

// ErrSandbox reports a sandbox that this program does not have.
var ErrSandbox = backend.ErrUnknown

// A Sandbox is a backend whose self-test runs ahead of who waits for it.
type Sandbox struct {
	backend sandbox.Backend
	check   func() (sandbox.Report, error)
}

// NewSandbox makes the backend of that name and begins its self-test, which ends with
// ctx. Its error wraps ErrSandbox. A worker that takes it closes it.
func NewSandbox(ctx context.Context, name string) (*Sandbox, error) {
	// One machine's own user is told of limits that are only watched; he need not allow them.
	b, err := backend.New(name, tool.Ops(), backend.Options{SoftLimits: true})
	if err != nil {
		return nil, err
	}
	s := &Sandbox{b, sync.OnceValues(func() (sandbox.Report, error) { return b.Check(ctx) })}
	go func() { _, _ = s.check() }() // Close waits for it
	return s, nil
}

// Close ends the processes that a sandbox keeps between sessions. It may be called again.
func (s *Sandbox) Close() error {
	_, _ = s.check()
	if c, ok := s.backend.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

func (s *Stack) startWorker(ctx context.Context, b *bus.Bus, cfg *config.Config, roles Roles, log *slog.Logger) error {
	c, err := s.workerConfig(b, cfg, roles, log)
	if err != nil {
		return fmt.Errorf("make the worker: %w", err)
	}
	var w *worker.Worker
	if root := cmp.Or(roles.Root, cfg.Worker.Root); root != "" {
		c.Root = root
		w, err = worker.New(c)
	} else {
		w, err = newWorker(config.FindPaths().Worker, c)
	}
	if err != nil {
		return fmt.Errorf("make the worker: %w", err)
	}
	s.Worker = w.ID()
	s.worker, err = s.start(ctx, "worker", func(ctx context.Context, ready func()) error {
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() {
			select {
			case <-w.SignedOn():
				ready()
			case <-ctx.Done():
			}
		})
		defer wg.Wait()
		defer cancel()
		return errors.Join(w.Run(ctx), roles.Sandbox.Close())
	})
	return err
}

func (s *Stack) workerConfig(b *bus.Bus, cfg *config.Config, roles Roles, log *slog.Logger) (worker.Config, error) {
	tools, err := tool.Standard(cfg.Worker.ToolsFile)
	if err != nil {
		return worker.Config{}, err
	}
	c := worker.Config{
		Bus: b, Backend: roles.Sandbox.backend, Check: roles.Sandbox.check, Tools: tools, Version: Version(),
		Labels: cfg.Worker.Labels, Slots: cmp.Or(roles.Slots, cfg.Worker.Slots), Grace: cfg.Worker.Grace,
		Allow: cfg.Worker.Allow, Deny: secret(cfg), Private: roles.Private, Logger: log,
	}
	if roles.Allow != nil {
		c.Allow = roles.Allow
	}
	if roles.Labels != nil {
		c.Labels = roles.Labels
	}
	pools := roles.Pools
	if pools == nil {
		pools = cfg.Worker.Pools
	}
	for _, p := range pools {
		c.Pools = append(c.Pools, protocol.ID(p))
	}
	if roles.Private {
		c.Orchestrator = s.Node // which is not in the queue
	}
	return c, nil
}

// secret lists the directories of ours that no workspace may hold or lie in.
func secret(cfg *config.Config) []string {
	paths := config.FindPaths()
	dirs := []string{paths.Store, paths.Worker, paths.Logs, filepath.Dir(paths.User), cfg.Store.Dir, cfg.Worker.Root}
	if file, err := config.RuntimeFile(paths.Store); err == nil {
		dirs = append(dirs, filepath.Dir(file))
	}
	return dirs
}

// Version names the build of this program.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && (v == "" || v == "(devel)") {
			v = s.Value[:min(len(s.Value), 12)]
		}
	}
	return cmp.Or(v, "(devel)")
}
