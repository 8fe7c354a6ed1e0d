package main

import (
	"context"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"rookery/protocol"
)

func (a *app) usageCommand() *cobra.Command {
	by, asJSON := "model", false
	cmd := &cobra.Command{
		Use: "usage", Short: "Show the ledger of model requests", Args: args(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.usage(cmd.Context(), by, asJSON) },
	}
	cmd.Flags().StringVar(&by, "by", by, "what to add up by: model, session or day")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write one sum a line, as JSON")
	return cmd
}

// A sum is what requests of one key used.
type sum struct {
	Key      string         `json:"key"`
	Requests int            `json:"requests"`
	Failed   int            `json:"failed"`
	Usage    protocol.Usage `json:"usage"`
}

// add counts a row; an aborted request is no failure of the model (L151).
func (s *sum) add(r protocol.UsageRow) {
	s.Requests++
	if r.Status != protocol.Completed && r.Status != protocol.Aborted {
		s.Failed++
	}
	s.Usage = s.Usage.Add(r.Usage)
}

func usageKey(by string, r protocol.UsageRow) (string, bool) {
	switch by {
	case "model":
		return r.Model, true
	case "session":
		return string(r.Session), true
	case "day":
		return r.At[:min(len(r.At), len("2006-01-02"))], true
	}
	return "", false
}

func (a *app) usage(ctx context.Context, by string, asJSON bool) error {
	if _, ok := usageKey(by, protocol.UsageRow{}); !ok {
		return usagef("--by %s: want model, session or day", by)
	}
	l, err := a.dial(ctx)
	if err != nil {
		return err
	}
	sums := map[string]*sum{}
	for r, err := range l.Usage(ctx) {
		if err != nil {
			return err
		}
		key, _ := usageKey(by, r)
		if sums[key] == nil {
			sums[key] = &sum{Key: key}
		}
		sums[key].add(r)
	}
	keys := make([]string, 0, len(sums))
	for key := range sums {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	table := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	if !asJSON {
		say(table, "%s\n", "requests\tfailed\tcached\tuncached\toutput\ttotal\t  "+by)
	}
	for _, key := range keys {
		s := sums[key]
		if asJSON {
			say(a.stdout, "%s\n", protocol.Encode(s))
			continue
		}
		u := s.Usage
		say(table, "%d\t%d\t%d\t%d\t%d\t%d\t  %s\n", s.Requests, s.Failed, u.CacheRead, u.CacheWrite, u.Output, u.Total, visibleLine(key))
	}
	return table.Flush()
}
