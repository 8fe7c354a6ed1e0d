package main

import (
	"context"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"rookery/internal/config"
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
	// Reasoning is part of the output. Cost is money, by the prices that the
	// configuration has for the models; nil without any.
	Reasoning int64    `json:"reasoning"`
	Cost      *float64 `json:"cost,omitempty"`
}

// prices are those of the configured models, by name.
func prices(cfg *config.Config) map[string]config.Prices {
	all := map[string]config.Prices{}
	for _, m := range cfg.Models {
		if m.Prices != (config.Prices{}) {
			all[m.Name] = m.Prices
		}
	}
	return all
}

func cost(p config.Prices, u protocol.Usage) float64 {
	return (p.CacheRead*float64(u.CacheRead) + p.CacheWrite*float64(u.CacheWrite) + p.Output*float64(u.Output)) / 1e6
}

// add counts a row; an aborted request is no failure of the model (L151).
func (s *sum) add(r protocol.UsageRow, priced map[string]config.Prices) {
	s.Requests++
	if r.Status != protocol.Completed && r.Status != protocol.Aborted {
		s.Failed++
	}
	s.Usage = s.Usage.Add(r.Usage)
	s.Reasoning += r.Reasoning
	if p, ok := priced[r.Model]; ok {
		if s.Cost == nil {
			s.Cost = new(float64)
		}
		*s.Cost += cost(p, r.Usage)
	}
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
	sums, priced := map[string]*sum{}, prices(l.cfg)
	for r, err := range l.Usage(ctx) {
		if err != nil {
			return err
		}
		key, _ := usageKey(by, r)
		if sums[key] == nil {
			sums[key] = &sum{Key: key}
		}
		sums[key].add(r, priced)
	}
	keys := make([]string, 0, len(sums))
	for key := range sums {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	if !asJSON {
		return a.usageTable(by, keys, sums, len(priced) > 0)
	}
	for _, key := range keys {
		say(a.stdout, "%s\n", protocol.Encode(sums[key]))
	}
	return nil
}

// usageTable prints the sums; with money where the configuration has prices.
func (a *app) usageTable(by string, keys []string, sums map[string]*sum, money bool) error {
	table := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	head := "requests\tfailed\tcached\tuncached\toutput\treasoning\ttotal\t"
	if money {
		head += "cost\t"
	}
	say(table, "%s  %s\n", head, by)
	for _, key := range keys {
		s := sums[key]
		u := s.Usage
		say(table, "%d\t%d\t%d\t%d\t%d\t%d\t%d\t", s.Requests, s.Failed, u.CacheRead, u.CacheWrite, u.Output, s.Reasoning, u.Total)
		switch {
		case money && s.Cost != nil:
			say(table, "%.4f\t", *s.Cost)
		case money:
			say(table, "-\t")
		}
		say(table, "  %s\n", visibleLine(key))
	}
	return table.Flush()
}
