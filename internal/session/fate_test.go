package session_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/session"
	"rookery/protocol"
)

// quick makes fates be decided in moments.
func quick(c *session.Config) {
	c.Resync = 20 * time.Millisecond
	c.UnreachableGrace = 50 * time.Millisecond
}

// lostCall starts a task whose call is claimed and never ends.
func lostCall(t *testing.T, tool string) (*rig, *script) {
	t.Helper()
	m := &script{steps: []step{callsOf(tool, "A"), says("end")}}
	r := newRig(t, m)
	r.worker.tools["A"] = func(protocol.Call) string { <-r.worker.over; return "never" }
	r.host(t, "o1", quick)
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	require.Eventually(t, func() bool { return r.worker.ran("A") == 1 }, wait, tick)
	return r, m
}

func TestFate_CallOfAWorkerThatCameBackIsUnknown(t *testing.T) {
	r, m := lostCall(t, "t")
	r.worker.reboot()
	lines := r.until(t, "+task_end(completed)")
	require.Contains(t, lines, "+call_fate(A,unknown)")
	require.Equal(t, protocol.NoteUnknown, m.request(1).Input[0].Payload.(protocol.ToolCallOutput).Output)
	require.Equal(t, protocol.Failed, m.request(1).Input[0].Payload.(protocol.ToolCallOutput).StopReason)
	require.Equal(t, 1, r.worker.ran("A"))
	r.verify(t)
}

func TestFate_ReadOnlyCallIsMadeAgain(t *testing.T) {
	r, m := lostCall(t, "look")
	r.worker.mu.Lock()
	r.worker.tools["A"] = nil
	r.worker.mu.Unlock()
	r.worker.reboot()
	lines := r.until(t, "+task_end(completed)")
	require.Contains(t, lines, "+call_fate(A,retried)")
	require.Equal(t, "done A", m.request(1).Input[0].Payload.(protocol.ToolCallOutput).Output)
	require.Equal(t, 2, r.worker.ran("A"))
	r.verify(t)
}

func TestFate_UnreachableWorkerIsWaitedForAndThenGivenUp(t *testing.T) {
	r, m := lostCall(t, "t")
	r.worker.leave()
	r.until(t, "+call_fate(A,unreachable)")
	r.until(t, "+task_end(completed)")
	require.Equal(t, protocol.NoteUnknown, m.request(1).Input[0].Payload.(protocol.ToolCallOutput).Output)
	r.verify(t)
}

func TestFate_CallThatNobodyTakesIsLost(t *testing.T) {
	m := &script{steps: []step{calls("A"), says("end")}}
	r := newRig(t, m)
	r.host(t, "o1", quick, func(c *session.Config) { c.QueueTimeout, c.PinnedTimeout = 100*time.Millisecond, 100*time.Millisecond })
	r.worker.deaf()
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	lines := r.until(t, "+task_end(completed)")
	require.Contains(t, lines, "+call_fate(A,lost)")
	require.Equal(t, protocol.NoteLost(0), m.request(1).Input[0].Payload.(protocol.ToolCallOutput).Output)
	require.Zero(t, r.worker.ran("A"))
	r.verify(t)
}
