// Command orchestrator hosts sessions: it runs their turns, asks the models and
// sends tool calls to workers, over any NATS server with JetStream.
//
// SIGTERM or SIGINT ends it: sessions are handed over to other orchestrators. A
// second signal ends it at once; the sessions are then taken over a little later.
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

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"rookery/internal/bus"
	"rookery/internal/config"
	"rookery/internal/host"
	"rookery/protocol"
)

func main() {
	if err := host.Harden(); err != nil {
		fmt.Fprintln(os.Stderr, "orchestrator:", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal finds the system's default
	err := command().ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "orchestrator:", err)
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

var errUsage = errors.New("usage")

func command() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "orchestrator",
		Short: "Host sessions on a NATS server",
		Long: `orchestrator hosts sessions: it runs their turns, asks the models and sends
tool calls to workers. Start as many as you like on one NATS server with
JetStream: each takes sessions, and takes over from one that has gone.

Flags win over ROOKERY_* variables, those over the configuration file. The
models' keys come from the environment, such as OPENAI_API_KEY.`,
		Version: host.Version(), Args: noArgs, SilenceErrors: true, SilenceUsage: true,
	}
	f := c.Flags()
	f.StringVar(&file, "config", "", "configuration `file` (ROOKERY_CONFIG)")
	f.String("server", "", "broker `URL`s, separated by commas (NATS_URL); default nats://127.0.0.1:4222")
	f.String("creds", "", "credentials `file` (NATS_CREDS)")
	f.String("context", "", "nats context `name` (NATS_CONTEXT)")
	f.String("node", "", "`id` of this orchestrator, unique among all; default made of the host's name")
	f.String("log-level", "", "debug, info, warn or error")
	f.Bool("json-log", false, "log in JSON")
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return fmt.Errorf("%w: %w; --help lists the flags", errUsage, err)
	})
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load(config.Sources{File: file, Flags: given(cmd.Flags())})
		if err != nil {
			return err
		}
		return run(cmd.Context(), cfg, newLogger(cfg))
	}
	return c
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%w: unexpected argument %q", errUsage, args[0])
	}
	return nil
}

// given returns the flags of settings that were given, by the setting's key.
func given(f *pflag.FlagSet) map[string]string {
	keys := map[string]string{
		"server": "server", "creds": "creds", "context": "context", "node": "node",
		"log-level": "log_level", "json-log": "json_log",
	}
	flags := map[string]string{}
	f.Visit(func(f *pflag.Flag) {
		if key, ok := keys[f.Name]; ok {
			flags[key] = f.Value.String()
		}
	})
	return flags
}

// run hosts sessions until ctx is done.
func run(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	for _, w := range cfg.Warnings {
		log.WarnContext(ctx, "configuration", "warning", w)
	}
	b, err := dial(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer b.Close()
	stack, err := host.Start(ctx, b, cfg, host.Roles{Orchestrator: true}, log)
	if err != nil {
		return err
	}
	log.InfoContext(ctx, "orchestrator serves", "node", stack.Node, "version", host.Version())
	stop := context.AfterFunc(ctx, func() {
		log.Info("orchestrator hands its sessions over", "node", stack.Node)
		stack.Stop()
	})
	defer stop()
	err = stack.Wait()
	log.Info("orchestrator has ended", "node", stack.Node)
	return err
}

// dial waits for the broker, and says so.
func dial(ctx context.Context, cfg *config.Config, log *slog.Logger) (*bus.Bus, error) {
	const every = time.Second
	for attempt := 0; ; attempt++ {
		b, err := bus.Connect(ctx, bus.Options{
			Servers: cfg.Server, Creds: cfg.Creds, Context: cfg.Context, Prefix: cfg.Prefix,
			Name: "rookery orchestrator", Logger: log,
		})
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
