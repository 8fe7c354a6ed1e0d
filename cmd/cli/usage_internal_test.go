package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/config"
	"rookery/protocol"
)

func TestUsage_AddsUpByModelSessionAndDay(t *testing.T) { // L151
	rows := []protocol.UsageRow{
		{
			Session: "s1", Request: "1", Model: "big", At: "2026-01-01T10:00:00Z", Status: protocol.Completed, Reasoning: 5,
			Usage: protocol.Usage{CacheRead: 1_000_000, CacheWrite: 500_000, Output: 100_000, Total: 1_600_000},
		},
		{Session: "s1", Request: "2", Model: "big", At: "2026-01-02T10:00:00Z", Status: protocol.Timeout},
		{Session: "s2", Request: "1", Model: "own", At: "2026-01-02T11:00:00Z", Status: protocol.Aborted, Usage: protocol.Usage{Output: 7, Total: 7}},
	}
	cfg := &config.Config{Models: []config.Model{{Name: "big", Prices: config.Prices{CacheRead: 1, CacheWrite: 2, Output: 10}}, {Name: "own"}}}
	add := func(by string) (map[string]*sum, []string) {
		sums := map[string]*sum{}
		var keys []string
		for _, r := range rows {
			key, ok := usageKey(by, r)
			require.True(t, ok)
			if sums[key] == nil {
				sums[key], keys = &sum{Key: key}, append(keys, key)
			}
			sums[key].add(r, prices(cfg))
		}
		return sums, keys
	}
	for by, want := range map[string][]string{"model": {"big", "own"}, "session": {"s1", "s2"}, "day": {"2026-01-01", "2026-01-02"}} {
		_, keys := add(by)
		require.Equal(t, want, keys)
	}
	sums, keys := add("model")
	require.InDelta(t, 3, *sums["big"].Cost, 1e-9)
	require.Nil(t, sums["own"].Cost, "no price, no money")
	require.Equal(t, 1, sums["big"].Failed)
	require.Zero(t, sums["own"].Failed, "an aborted request is no failure")

	var out bytes.Buffer
	require.NoError(t, (&app{stdout: &sink{w: &out}}).usageTable("model", keys, sums, true))
	require.Equal(t, ""+
		"  requests  failed   cached  uncached  output  reasoning    total    cost  model\n"+
		"         2       1  1000000    500000  100000          5  1600000  3.0000  big\n"+
		"         1       0        0         0       7          0        7       -  own\n", out.String())
}
