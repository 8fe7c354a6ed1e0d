// Command toolworker runs the tool calls of sessions, sandboxed, for orchestrators
// on the same NATS server.
//
// SIGTERM or SIGINT ends it: it takes no new call, gives running ones their grace
// and stores their results. A second signal ends it at once; results that were
// not stored are sent at its next start on the same root.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rookery/internal/bus"
	"rookery/internal/config"
	"rookery/internal/sandbox/backend"
	"rookery/internal/tool"
	"rookery/internal/worker"
	"rookery/protocol"
)

func main() {
	backend.Main(tool.Ops())
	// A tool without confinement must not read the worker's memory or environment.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "toolworker: close this process to others:", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal finds the system's default
	err := command().ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "toolworker:", err)
	}
	os.Exit(exitCode(err))
}

func exitCode(err error) int {
	var setting *config.SettingError
	switch {
	case err == nil:
		return protocol.ExitOK
	case errors.Is(err, bus.ErrAuth), errors.Is(err, bus.ErrUnreachable):
		return protocol.ExitBroker
	case errors.Is(err, errUsage), errors.As(err, &setting):
		return protocol.ExitUsage
	}
	return protocol.ExitFailed
}

// run serves calls until ctx is done.
func run(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	for _, w := range cfg.Warnings {
		log.WarnContext(ctx, "configuration", "warning", w)
	}
	wcfg, err := workerConfig(cfg, log)
	if err != nil {
		return err
	}
	if wcfg.Bus, err = dial(ctx, cfg, log); err != nil {
		return err
	}
	defer wcfg.Bus.Close()
	w, err := worker.New(wcfg)
	if err != nil {
		return err
	}
	log.InfoContext(ctx, "worker starts", "worker", w.ID(), "pools", wcfg.Pools, "sandbox", wcfg.Backend.Name(), "version", version())
	stop := context.AfterFunc(ctx, func() {
		log.Info("worker takes no more calls", "worker", w.ID(), "grace", wcfg.Grace)
	})
	defer stop()
	return errors.Join(w.Run(ctx), endBackend(wcfg.Backend))
}

// dial waits for the broker, and says so.
func dial(ctx context.Context, cfg *config.Config, log *slog.Logger) (*bus.Bus, error) {
	const every = time.Second
	for attempt := 0; ; attempt++ {
		b, err := bus.Connect(ctx, busOptions(cfg, log))
		if !errors.Is(err, bus.ErrUnreachable) {
			return b, err
		}
		if attempt%30 == 0 {
			log.WarnContext(ctx, "broker is not there; trying again", "err", err, "every", every)
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(every):
		}
	}
}

func newLogger(cfg *config.Config) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(cfg.LogLevel)) // the configuration has checked it
	o := &slog.HandlerOptions{Level: level}
	if cfg.JSONLog {
		return slog.New(slog.NewJSONHandler(os.Stderr, o))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, o))
}

func busOptions(cfg *config.Config, log *slog.Logger) bus.Options {
	return bus.Options{
		Servers: cfg.Server, Creds: cfg.Creds, Context: cfg.Context, Prefix: cfg.Prefix,
		Name: "rookery toolworker", Logger: log,
	}
}
