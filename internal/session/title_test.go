package session_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/engine"
	"rookery/internal/session"
	"rookery/protocol"
)

// titles is a titler that waits until it may answer.
type titles struct {
	title string
	ask   atomic.Int32
	task  atomic.Pointer[[]protocol.Message]
	may   chan struct{}
}

func (m *titles) make(ctx context.Context, _ session.Model, task []protocol.Message) (string, engine.Outcome, bool) {
	m.task.Store(&task)
	m.ask.Add(1)
	select {
	case <-m.may:
		return m.title, completed(), true
	case <-ctx.Done():
		return "", engine.Outcome{Status: protocol.Aborted}, true
	}
}

func (r *rig) title(t *testing.T) string {
	t.Helper()
	return r.command(t, "s1", protocol.VerbStatus, protocol.Command{ID: protocol.Token(4)}).Status.Title
}

func (r *rig) rows(t *testing.T) map[string]protocol.UsageRow {
	t.Helper()
	rows := map[string]protocol.UsageRow{}
	for row, err := range r.client.Usage(t.Context()) {
		require.NoError(t, err)
		_, twice := rows[row.Request]
		require.False(t, twice, "two rows of request %s", row.Request)
		rows[row.Request] = row
	}
	return rows
}

func TestTitle_ComesAfterTheFirstTaskAndBlocksNobody(t *testing.T) { // L148 L149 L150 L152
	m := &script{steps: []step{calls("A"), says("one"), says("two")}}
	r := newRig(t, m)
	names := &titles{title: "Chickens", may: make(chan struct{})}
	r.host(t, "o1", func(c *session.Config) { c.Titler = names.make })
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "count the hens\nplease", allow))
	r.untilIdle(t, "s1")
	require.Equal(t, "count the hens", r.title(t), "until it comes")
	require.Eventually(t, func() bool { return names.ask.Load() == 1 }, wait, tick)
	said := *names.task.Load()
	require.Len(t, said, 2, "its texts, no calls")
	require.Equal(t, `text[user]"count the hens\nplease"`, said[0].String())
	require.Equal(t, `text[assistant]"one"`, said[1].String())

	r.command(t, "s1", protocol.VerbRun, prompt("t2", "more", allow))
	r.untilIdle(t, "s1")
	require.Len(t, m.request(2).History, 4, "the title is no part of the conversation")
	close(names.may)
	require.Eventually(t, func() bool { return r.title(t) == "Chickens" }, wait, tick)
	require.Eventually(t, func() bool { return len(r.rows(t)) == 4 }, wait, tick)
	require.Equal(t, "title", r.rows(t)["title"].Kind)
	require.Equal(t, int64(10), r.rows(t)["title"].Usage.Total)
	require.EqualValues(t, 1, names.ask.Load())
	e, err := r.client.Session(t.Context(), "s1")
	require.NoError(t, err)
	require.Equal(t, "Chickens", e.Title)
	require.False(t, e.Untitled)
	r.verify(t)
}

func TestTitle_APersonsWordCounts(t *testing.T) {
	r := newRig(t, &script{steps: []step{says("one")}})
	names := &titles{title: "Chickens", may: make(chan struct{})}
	r.host(t, "o1", func(c *session.Config) { c.Titler = names.make })
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	require.Eventually(t, func() bool { return names.ask.Load() == 1 }, wait, tick)
	require.Equal(t, protocol.ReplyAccepted, r.command(t, "s1", protocol.VerbTitle, protocol.Command{ID: "ti", Text: " Hens "}).Code)
	e, err := r.client.Session(t.Context(), "s1")
	require.NoError(t, err)
	require.Equal(t, "Hens", e.Title, "accepted means stored")
	close(names.may)
	require.Eventually(t, func() bool { return r.rows(t)["title"].Kind == "title" }, wait, tick)
	require.Equal(t, "Hens", r.title(t))
}

func TestTitle_FirstLineStaysWhenTheModelGivesNone(t *testing.T) {
	r := newRig(t, &script{steps: []step{says("one"), says("two")}})
	names := &titles{may: make(chan struct{})}
	close(names.may)
	r.host(t, "o1", func(c *session.Config) { c.Titler = names.make })
	for _, id := range []string{"t1", "t2"} {
		r.command(t, "s1", protocol.VerbRun, prompt(id, "prompt "+id, allow))
		r.untilIdle(t, "s1")
	}
	require.Eventually(t, func() bool { return r.rows(t)["title"].Kind == "title" }, wait, tick)
	require.Equal(t, "prompt t1", r.title(t))
	require.EqualValues(t, 1, names.ask.Load())
}

func TestTitle_IsAskedForAgainWhenItsOwnerWasStopped(t *testing.T) {
	r := newRig(t, &script{steps: []step{says("one"), says("two")}})
	never := &titles{may: make(chan struct{})}
	stop := r.host(t, "o1", func(c *session.Config) { c.Titler = never.make })
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "first", allow))
	require.Eventually(t, func() bool { return never.ask.Load() == 1 }, wait, tick)
	stop()
	names := &titles{title: "Late", may: make(chan struct{})}
	close(names.may)
	r.host(t, "o2", func(c *session.Config) { c.Titler = names.make })
	r.command(t, "s1", protocol.VerbRun, prompt("t2", "second", allow))
	require.Eventually(t, func() bool { return r.title(t) == "Late" }, wait, tick)
	require.Equal(t, `text[user]"first"`, (*names.task.Load())[0].String())
	require.Len(t, *names.task.Load(), 2)
}
