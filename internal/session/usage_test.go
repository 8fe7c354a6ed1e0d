package session_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/engine"
	"rookery/internal/session"
	"rookery/protocol"
)

// ends is a reply without content.
func ends(o engine.Outcome) step {
	return func(context.Context, func(protocol.Payload) error) engine.Outcome { return o }
}

func TestUsage_OneRowForEachRequest(t *testing.T) { // L151
	m := &script{steps: []step{
		ends(engine.Outcome{Status: protocol.Timeout}), says("one"),
		says("[summary]s[/summary]"), ends(engine.Outcome{Status: protocol.Failed, Message: "no"}),
	}}
	r := newRig(t, m)
	r.host(t, "o1", func(c *session.Config) {
		c.Settings = engine.Settings{MaxContext: 10, CompactionPrompt: "SUM"}
	})
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	r.untilIdle(t, "s1")
	r.command(t, "s1", protocol.VerbRun, prompt("t2", "again", allow))
	r.untilIdle(t, "s1")
	require.Eventually(t, func() bool { return len(r.rows(t)) == 4 }, wait, tick)
	type row struct {
		kind   string
		status protocol.StopReason
		total  int64
	}
	got := map[string]row{}
	for id, u := range r.rows(t) {
		require.Equal(t, protocol.ID("s1"), u.Session)
		require.Equal(t, "m", u.Model)
		got[id] = row{u.Kind, u.Status, u.Usage.Total}
	}
	require.Equal(t, map[string]row{
		"1": {"turn", protocol.Timeout, 0}, "2": {"turn", protocol.Completed, 10},
		"3": {"compaction", protocol.Completed, 10}, "4": {"turn", protocol.Failed, 0},
	}, got)
}

func TestUsage_ASuccessorBooksWhatWasLostOnce(t *testing.T) { // L151
	m := &script{steps: []step{calls("A"), says("end")}}
	r := newRig(t, m)
	r.worker.tools["A"] = func(protocol.Call) string { <-r.worker.over; return "" }
	stop := r.host(t, "o1")
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	r.until(t, "request_end(completed)")
	require.Eventually(t, func() bool { return len(r.rows(t)) == 1 }, wait, tick)
	first := r.rows(t)["1"]
	stop()
	r.host(t, "o2")
	r.until(t, "+takeover")
	require.Equal(t, protocol.ReplyAborting, r.command(t, "s1", protocol.VerbAbort, protocol.Command{ID: "ab"}).Code)
	r.until(t, "+task_end(aborted)")
	require.Equal(t, map[string]protocol.UsageRow{"1": first}, r.rows(t), "the same row, and the first one stays")
}
