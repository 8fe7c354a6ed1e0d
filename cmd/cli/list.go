package main

import (
	"context"
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"rookery/internal/bus"
	"rookery/protocol"
)

func (a *app) listCommand() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use: "ls", Short: "List sessions", Args: args(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.list(cmd.Context(), asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write one session a line, as JSON")
	return cmd
}

func (a *app) list(ctx context.Context, asJSON bool) error {
	l, err := a.dial(ctx)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	rows := 0
	for e, err := range l.List(ctx) {
		switch {
		case err != nil:
			return err
		case asJSON:
			say(a.stdout, "%s\n", protocol.Encode(e))
			continue
		case rows == 0:
			say(table, "%s\n", "SESSION\tSTATE\tCHANGED\tMODEL\tWORKSPACE\tTITLE")
		}
		rows++
		say(table, "%s\t%s\t%s\t%s\t%s\t%s\n", e.Session, e.State, since(e.At),
			visibleLine(e.Model), visibleLine(e.Workspace.Path), cut(visibleLine(e.Title), 60))
	}
	if rows == 0 && !asJSON {
		a.notice("no sessions yet; rookery run makes one")
	}
	return table.Flush()
}

func (a *app) statusCommand() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use: "status", Short: "Show orchestrators, workers and running sessions", Args: args(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.fleet(cmd.Context(), asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write it as one JSON object")
	return cmd
}

// A fleet is who lives on a broker.
type fleet struct {
	Orchestrators []bus.Lease           `json:"orchestrators"`
	Workers       []protocol.WorkerInfo `json:"workers"`
	Running       []protocol.Entry      `json:"running"`
	Sessions      int                   `json:"sessions"`
}

func (l *link) fleet(ctx context.Context) (fleet, error) {
	var f fleet
	leases, err := l.bus.Leases(ctx)
	if err != nil {
		return f, err
	}
	boots := map[protocol.ID]string{}
	for _, lease := range leases {
		if lease.Kind == bus.LeaseOrchestrator {
			f.Orchestrators = append(f.Orchestrators, lease)
		} else {
			boots[lease.ID] = lease.Boot
		}
	}
	if f.Workers, err = l.bus.Workers(ctx); err != nil {
		return f, err
	}
	f.Workers = slices.DeleteFunc(f.Workers, func(w protocol.WorkerInfo) bool { return boots[w.Worker] != w.Boot })
	for e, err := range l.List(ctx) {
		if err != nil {
			return f, err
		}
		if f.Sessions++; e.State != protocol.StateIdle {
			f.Running = append(f.Running, e)
		}
	}
	return f, nil
}

func (a *app) fleet(ctx context.Context, asJSON bool) error {
	l, err := a.dial(ctx)
	if err != nil {
		return err
	}
	f, err := l.fleet(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		_, err := fmt.Fprintf(a.stdout, "%s\n", protocol.Encode(f))
		return err
	}
	table := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	say(table, "orchestrators: %d\n", len(f.Orchestrators))
	for _, o := range f.Orchestrators {
		say(table, "  %s\n", o.ID)
	}
	say(table, "workers: %d\n", len(f.Workers))
	for _, w := range f.Workers {
		say(table, "  %s\t%s\tslots %d\tsandbox %s\tpools %v\t%s\n", w.Worker, visibleLine(w.Host), w.Slots,
			visibleLine(w.Sandbox), w.Pools, private(w.Private))
	}
	say(table, "sessions: %d, %d running\n", f.Sessions, len(f.Running))
	for _, e := range f.Running {
		say(table, "  %s\t%s\t%s\t%s\n", e.Session, e.State, e.Node, cut(visibleLine(e.Title), 60))
	}
	return table.Flush()
}

func private(p bool) string {
	if p {
		return "of one run"
	}
	return ""
}
