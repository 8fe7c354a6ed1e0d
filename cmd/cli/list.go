package main

import (
	"context"
	"text/tabwriter"

	"github.com/spf13/cobra"

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
