package main

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"rookery/internal/config"
	"rookery/internal/sandbox"
	"rookery/internal/sandbox/backend"
	"rookery/internal/tool"
)

// newBackend makes the sandbox that is configured.
func newBackend(cfg *config.Config) (sandbox.Backend, error) {
	return backend.New(cfg.Sandbox, tool.Ops(), backend.Options{SoftLimits: cfg.Worker.SoftLimits})
}

// endBackend ends the processes that a sandbox keeps between sessions.
func endBackend(b sandbox.Backend) error {
	if c, ok := b.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// checkCommand tries the sandbox without serving.
func checkCommand(load func() (*config.Config, error)) *cobra.Command {
	return &cobra.Command{
		Use:   "sandbox-check",
		Short: "Try what the sandbox relies on, and what it must hold",
		Long: `sandbox-check opens a session of the configured sandbox, tries to leave it and to
exceed its limits, and prints one line for each thing that holds. The worker does
the same when it starts, and serves no call when something does not hold.`,
		Args: noArgs, SilenceErrors: true, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			cfg, err := load()
			if err != nil {
				return err
			}
			box, err := newBackend(cfg)
			if err != nil {
				return err
			}
			report, err := box.Check(cmd.Context())
			cmd.SetOut(os.Stdout)
			for _, line := range report.Lines {
				cmd.Println("ok   " + line)
			}
			if report.Warning != "" {
				cmd.Println("note " + report.Warning)
			}
			if e := endBackend(box); err == nil {
				err = e
			}
			return err
		},
	}
}
