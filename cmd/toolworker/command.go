package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"rookery/internal/config"
	"rookery/internal/tool"
	"rookery/internal/worker"
	"rookery/protocol"
)

var errUsage = errors.New("usage")

func command() *cobra.Command {
	var file string
	var o options
	c := &cobra.Command{
		Use:   "toolworker",
		Short: "Run the tool calls of sessions",
		Long: `toolworker runs the tool calls of sessions, sandboxed, for orchestrators on the
same NATS server. Its root keeps its id, its journal of results and the
workspaces that it makes; give each worker a root of its own.

Flags win over ROOKERY_* variables, those over the configuration file.`,
		Version: version(), Args: noArgs, SilenceErrors: true, SilenceUsage: true,
	}
	f := c.PersistentFlags()
	f.StringVar(&file, "config", "", "configuration `file` (ROOKERY_CONFIG)")
	f.String("server", "", "broker `URL`s, separated by commas (NATS_URL); default nats://127.0.0.1:4222")
	f.String("creds", "", "credentials `file` (NATS_CREDS)")
	f.String("context", "", "nats context `name` (NATS_CONTEXT)")
	f.String("sandbox", "", "native, landlock or none")
	f.String("log-level", "", "debug, info, warn or error")
	f.Bool("json-log", false, "log in JSON")
	o.add(f)
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return fmt.Errorf("%w: %w; --help lists the flags", errUsage, err)
	})
	load := func() (*config.Config, error) {
		cfg, err := config.Load(config.Sources{File: file, Flags: given(f)})
		if err == nil {
			o.lay(f, cfg)
		}
		return cfg, err
	}
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := load()
		if err != nil {
			return err
		}
		return run(cmd.Context(), cfg, newLogger(cfg))
	}
	c.AddCommand(checkCommand(load), drainCommand(load))
	return c
}

// options are the flags of the worker itself.
type options struct {
	root         string
	allow, pools []string
	labels       map[string]string
	slots        int
	grace        time.Duration
	tools        string
	soft         bool
}

func (o *options) add(f *pflag.FlagSet) {
	f.StringVar(&o.root, "root", "", "`directory` of the worker's id, journal and workspaces; default in the user's data")
	f.StringArrayVar(&o.allow, "allow", nil, "`directory` under which workspaces may be named; may be repeated")
	f.StringArrayVar(&o.pools, "pool", nil, "`pool` to serve; may be repeated; default default")
	f.StringToStringVar(&o.labels, "label", nil, "`key=value` that tells something of this worker; may be repeated")
	f.IntVar(&o.slots, "slots", 0, "how many calls run at once; default twice the processors")
	f.StringVar(&o.tools, "tools", "", "`file` with tools of one's own")
	f.DurationVar(&o.grace, "grace", 0, "how long running calls may take at the end; default 30s")
	f.BoolVar(&o.soft, "soft-limits", false, "accept limits on memory and processes that are watched, not enforced, where there are no control groups")
}

// lay puts the flags that were given over the configuration.
func (o *options) lay(f *pflag.FlagSet, cfg *config.Config) {
	w := &cfg.Worker
	for name, set := range map[string]func(){
		"root":  func() { w.Root = o.root },
		"allow": func() { w.Allow = o.allow },
		"pool":  func() { w.Pools = o.pools },
		"label": func() { w.Labels = o.labels },
		"slots": func() { w.Slots = o.slots },
		"grace": func() { w.Grace = o.grace },
		"tools": func() { w.ToolsFile = o.tools },

		"soft-limits": func() { w.SoftLimits = o.soft },
	} {
		if f.Changed(name) {
			set()
		}
	}
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
		"server": "server", "creds": "creds", "context": "context", "sandbox": "sandbox",
		"log-level": "log_level", "json-log": "json_log",
	}
	flags := map[string]string{}
	f.VisitAll(func(f *pflag.Flag) { // Visit does not see what a subcommand parsed
		if key, ok := keys[f.Name]; ok && f.Changed {
			flags[key] = f.Value.String()
		}
	})
	return flags
}

// workerConfig is what a worker needs but the bus.
func workerConfig(cfg *config.Config, log *slog.Logger) (worker.Config, error) {
	box, err := newBackend(cfg)
	if err != nil {
		return worker.Config{}, err
	}
	tools, err := tool.Standard(cfg.Worker.ToolsFile)
	if err != nil {
		return worker.Config{}, fmt.Errorf("%w: tools: %w", errUsage, err)
	}
	paths := config.FindPaths()
	c := worker.Config{
		Backend: box, Tools: tools, Version: version(),
		Root:  cmp.Or(cfg.Worker.Root, filepath.Join(paths.Worker, "daemon")),
		Allow: cfg.Worker.Allow, Deny: []string{paths.Store, paths.Worker, paths.Logs, filepath.Dir(paths.User)},
		Labels: cfg.Worker.Labels, Slots: cfg.Worker.Slots, Grace: cfg.Worker.Grace, Logger: log,
	}
	for _, p := range cfg.Worker.Pools {
		id, err := protocol.ParseID(p)
		if err != nil {
			return c, fmt.Errorf("%w: --pool: %w", errUsage, err)
		}
		c.Pools = append(c.Pools, id)
	}
	return c, nil
}

// version names the build of this program.
func version() string {
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
