package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"rookery/client"
	"rookery/internal/bus"
	"rookery/internal/config"
	"rookery/internal/host"
	"rookery/protocol"
)

// commandTimeout bounds a command that only asks or tells something.
const commandTimeout = 20 * time.Second

// An app is one invocation of the command line.
type app struct {
	stdin  *os.File
	stdout *sink
	stderr io.Writer
	out    *os.File // stdout, for asking whether it is a terminal
	status int      // exit status of a command that ran as it should
	ended  bool     // a task_end was written to stdout

	connection struct{ server, creds, context, file string }

	closers []func()
}

func newApp(stdin, stdout, stderr *os.File) *app {
	return &app{stdin: stdin, stdout: &sink{w: stdout}, out: stdout, stderr: stderr}
}

// close ends what the command opened, the last first.
func (a *app) close() {
	for _, c := range slices.Backward(a.closers) {
		c()
	}
	a.closers = nil
}

// notice tells the person something; stdout stays clean.
func (a *app) notice(format string, args ...any) {
	say(a.stderr, "%s\n", "rookery: "+visibleLine(fmt.Sprintf(format, args...)))
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "rookery",
		Short: "Run LLM agents whose tools live on other machines",
		Long: `rookery runs LLM agents whose tools live on other machines, over NATS.

Without a configured broker everything runs on this machine: the broker in a
process of its own, the agent and its tools in the run itself.`,
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q; rookery --help lists them", args[0])
			}
			return cmd.Help()
		},
		Args: cobra.ArbitraryArgs,
	}
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%s: %v; %s --help lists the flags", cmd.Name(), err, cmd.CommandPath())
	})
	f := root.PersistentFlags()
	f.StringVar(&a.connection.server, "server", "", "broker `URL`s, separated by commas (NATS_URL)")
	f.StringVar(&a.connection.creds, "creds", "", "credentials `file` for the broker (NATS_CREDS)")
	f.StringVar(&a.connection.context, "context", "", "nats context `name` (NATS_CONTEXT)")
	f.StringVar(&a.connection.file, "config", "", "configuration `file`")
	root.AddCommand(
		a.runCommand(), a.serveCommand(), a.brokerCommand(), a.attachCommand(), a.logsCommand(),
		a.listCommand(), a.showCommand(), a.statusCommand(),
		a.steerCommand(), a.abortCommand(), a.approveCommand(), a.compactCommand(), a.titleCommand(), a.removeCommand(),
		a.exportCommand(), a.importCommand(), a.verifyCommand(),
		a.usageCommand(), a.doctorCommand(), a.versionCommand(),
	)
	return root
}

// args checks the number of a command's arguments and names them in the error.
func args(least, most int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || most >= 0 && len(args) > most {
			return usagef("%s: want %s, got %d arguments", cmd.Name(), names, len(args))
		}
		return nil
	}
}

// load reads the configuration; workspace, when not empty, brings its own file.
func (a *app) load(workspace string, flags map[string]string) (*config.Config, error) {
	all := map[string]string{}
	for key, v := range map[string]string{
		"server": a.connection.server, "creds": a.connection.creds, "context": a.connection.context,
	} {
		if v != "" {
			all[key] = v
		}
	}
	maps.Copy(all, flags)
	cfg, err := config.Load(config.Sources{File: a.connection.file, Workspace: workspace, Flags: all})
	if err != nil {
		return nil, &fault{code: protocol.CodeUsage, text: joined(err), err: err}
	}
	for _, w := range cfg.Warnings {
		a.notice("%s", w)
	}
	return cfg, nil
}

// log is what a command's parts write to: problems, on stderr.
func (a *app) log(cfg *config.Config) *slog.Logger {
	level := slog.LevelError
	if cfg.Origin("log_level").Layer != config.LayerDefault {
		_ = level.UnmarshalText([]byte(cfg.LogLevel)) // was checked
	}
	h := &slog.HandlerOptions{Level: level}
	if cfg.JSONLog {
		return slog.New(slog.NewJSONHandler(a.stderr, h))
	}
	return slog.New(slog.NewTextHandler(a.stderr, h))
}

// join connects to the broker; the bus is closed with the app.
func (a *app) join(ctx context.Context, cfg *config.Config) (*bus.Bus, error) {
	b, err := host.Join(ctx, cfg, a.log(cfg))
	if err != nil {
		return nil, err
	}
	a.closers = append(a.closers, b.Close)
	return b, nil
}

// dial is load and join for commands that only need a client.
func (a *app) dial(ctx context.Context) (*link, error) {
	cfg, err := a.load("", nil)
	if err != nil {
		return nil, err
	}
	b, err := a.join(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &link{app: a, cfg: cfg, bus: b, Client: client.New(b)}, nil
}

// A link is a client and what it was made of.
type link struct {
	*client.Client
	app *app
	cfg *config.Config
	bus *bus.Bus
}

// act gives a command to a session. On a machine without an orchestrator this
// process becomes one for that long.
func (l *link) act(ctx context.Context, session protocol.ID, do func(context.Context, *client.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	err := do(ctx, l.Client)
	if !isNoOrchestrator(err) || host.Configured(l.cfg) {
		return err
	}
	if err := l.assist(ctx, host.Roles{Orchestrator: true}); err != nil {
		return err
	}
	if err := do(ctx, l.Client); err != nil {
		return err
	}
	return l.settle(ctx, session)
}

// assist starts roles in this process, until its end.
func (l *link) assist(ctx context.Context, roles host.Roles) error {
	s, err := host.Start(ctx, l.bus, l.cfg, roles, l.app.log(l.cfg))
	if err != nil {
		return err
	}
	l.app.closers = append(l.app.closers, s.Stop)
	if roles.Private {
		l.Client = l.Client.At(s.Node)
	}
	return nil
}

// settleEvery is how often a session that this process took over is looked at.
const settleEvery = 50 * time.Millisecond

// settle waits until a session that this process took over to abort it is idle.
func (l *link) settle(ctx context.Context, session protocol.ID) error {
	tick := time.NewTicker(settleEvery)
	defer tick.Stop()
	for {
		s, err := l.Status(ctx, session)
		if errors.Is(err, client.ErrNoSession) || err == nil && s.State == protocol.StateIdle {
			return nil
		} else if err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// session reads the id of a session and checks that it exists.
func (l *link) session(ctx context.Context, s string) (protocol.ID, error) {
	id, err := protocol.ParseID(s)
	if err != nil {
		return "", usagef("session: %v", err)
	}
	_, err = l.End(ctx, id)
	return id, err
}
