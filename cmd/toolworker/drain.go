package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"rookery/internal/bus"
	"rookery/internal/config"
	"rookery/internal/worker"
	"rookery/protocol"
)

// drainTimeout bounds the request, not the draining.
const drainTimeout = 10 * time.Second

// drainCommand tells a worker on the same broker to take no more calls.
func drainCommand(load func() (*config.Config, error)) *cobra.Command {
	return &cobra.Command{
		Use:   "drain ID",
		Short: "Have a worker take no more calls and end",
		Long: `drain tells a worker to take no new calls and to end when those that run have
ended, as SIGTERM does but without a limit of time. Sessions whose workspace it made
go on when it is started again on its root, else with a new workspace.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("%w: drain needs the ID of one worker; rookery status lists them", errUsage)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := load()
			if err != nil {
				return err
			}
			return drain(cmd, cfg, args[0])
		},
	}
}

func drain(cmd *cobra.Command, cfg *config.Config, name string) error {
	id, err := protocol.ParseID(name)
	if err != nil {
		return fmt.Errorf("%w: worker %w", errUsage, err)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), drainTimeout)
	defer cancel()
	b, err := bus.Connect(ctx, busOptions(cfg, newLogger(cfg)))
	if err != nil {
		return err
	}
	defer b.Close()
	r, err := b.Control(ctx, id, worker.VerbDrain, protocol.Control{Reason: "toolworker drain"})
	switch {
	case errors.Is(err, bus.ErrGone):
		return fmt.Errorf("worker %s is not there", id)
	case err != nil:
		return err
	case !r.OK:
		return fmt.Errorf("worker %s: %s", id, r.Error)
	}
	running, background := 0, 0
	if r.Info != nil {
		running, background = len(r.Info.Running), len(r.Info.Background)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "worker %s takes no more calls and ends after %d that run; %d background commands end with it\n", id, running, background)
	return err
}
