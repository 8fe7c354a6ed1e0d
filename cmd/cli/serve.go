package main

import (
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"rookery/internal/host"
)

func (a *app) serveCommand() *cobra.Command {
	var listen, sandbox string
	var allow []string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run broker, orchestrator and worker, for one machine",
		Args:  args(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			flags := map[string]string{}
			if sandbox != "" {
				flags["sandbox"] = sandbox
			}
			cfg, err := a.load("", flags)
			if err != nil {
				return err
			}
			for _, dir := range allow {
				if !isDir(dir) {
					return usagef("--allow %s: no such directory; make it first", dir)
				}
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return host.Serve(ctx, cfg, host.ServeOptions{
				Listen: listen, Out: a.stdout, Log: a.log(cfg),
				Roles: host.Roles{Orchestrator: true, Worker: true, Allow: allow},
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&listen, "listen", "", "`HOST:PORT` of the broker (default "+host.DefaultListen+")")
	fs.StringVar(&sandbox, "sandbox", "", "native, landlock or none")
	fs.StringArrayVar(&allow, "allow", nil, "`directory` under which workspaces may be named (repeatable)")
	return cmd
}

// brokerCommand is what run starts in the background; people use serve.
func (a *app) brokerCommand() *cobra.Command {
	var o host.BrokerOptions
	cmd := &cobra.Command{
		Use: "broker", Hidden: true, Short: "Run the broker of a store in the background", Args: args(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			o.Log = slog.New(slog.NewTextHandler(a.stderr, nil))
			return host.RunBroker(ctx, o)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&o.Store, "store", "", "`directory` of the store")
	fs.DurationVar(&o.ExitIdle, "exit-idle", host.DefaultExitIdle, "end after this `duration` without a client")
	fs.BoolVar(&o.Strict, "strict", false, "wait for the disk before each acknowledgement")
	fs.Int64Var(&o.MaxStore, "size", 0, "most `bytes` of the store")
	return cmd
}

// since is how long ago a wire timestamp is, for people.
func since(at string) string {
	t, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return "?"
	}
	switch d := time.Since(t); {
	case d < time.Minute:
		return "now"
	case d < time.Hour:
		return d.Truncate(time.Minute).String()[:len(d.Truncate(time.Minute).String())-2]
	default:
		return t.Local().Format("2006-01-02 15:04")
	}
}
