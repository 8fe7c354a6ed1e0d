package session_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/session"
	"rookery/protocol"
)

// An owner that died between taking a new session and its first record leaves one
// that is as good as new.
func TestLoad_SessionThatWasOnlyTakenIsMadeAnew(t *testing.T) {
	r := newRig(t, &script{steps: []step{calls("A"), says("end")}})
	_, err := r.client.OpenLog(t.Context(), "s1", "ghost", "b0")
	require.NoError(t, err)
	require.NoError(t, r.client.PutSession(t.Context(), protocol.Entry{Session: "s1", Epoch: 1})) // it is nobody's
	r.host(t, "o1")
	reply := r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	require.Equal(t, protocol.ReplyAccepted, reply.Code, reply.Reason)
	r.until(t, "+task_end(completed)")
	r.verify(t)
	w, _, ok, err := r.client.Workspace(t.Context(), "s1")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, protocol.ID("w1"), w.Worker)
}

// One that lives is about to record something, and is not deposed for it.
func TestLoad_SessionThatWasJustTakenIsLeftToItsOwner(t *testing.T) {
	r := newRig(t, &script{})
	r.host(t, "o1")
	r.host(t, "o2", func(c *session.Config) { c.Boot = "b2" })
	_, err := r.client.OpenLog(t.Context(), "s1", "o2", "b2")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	reply, err := r.client.CommandAt(ctx, "o1", "s1", protocol.VerbRun, prompt("t1", "go", allow))
	require.NoError(t, err)
	require.Equal(t, protocol.ReplyUse, reply.Code, reply.Reason)
	require.Equal(t, protocol.ID("o2"), reply.Use)
}

// orphan stores a session of a process that is gone: its only call was denied, and its
// owner died before it said so.
func orphan(t *testing.T, r *rig) {
	t.Helper()
	log, err := r.client.OpenLog(t.Context(), "s1", "ghost", "b0")
	require.NoError(t, err)
	write := func(private bool, ps ...protocol.Payload) {
		var ms []protocol.Message
		for _, p := range ps {
			ms = append(ms, protocol.New(p))
		}
		_, err := log.Append(t.Context(), 1, private, ms)
		require.NoError(t, err)
	}
	write(true, protocol.SessionMeta{SessionID: "s1", AgentState: []byte(`{"model":"m","pool":"default"}`)})
	write(false, protocol.TaskBegin{TaskID: "t1", Of: "run", Options: allow}, protocol.UserText("go"),
		protocol.RequestBegin{}, protocol.ToolCall{Role: protocol.Assistant, Name: "t", Arguments: "{}", ToolCallID: "A", StopReason: protocol.Completed},
		protocol.ApprovalDecision{Decision: protocol.Deny, ToolCallID: "A"},
		protocol.TokenUsage{Session: protocol.Usage{Total: 7}, Request: protocol.Usage{Total: 7}}, protocol.RequestEnd{Status: protocol.Completed})
	require.NoError(t, r.client.PutSession(t.Context(), protocol.Entry{Session: "s1", Epoch: 1, State: protocol.StateRunning}))
	_, err = r.client.PutWorkspace(t.Context(), "s1", protocol.WorkspaceRef{Worker: "w1"}, 0)
	require.NoError(t, err)
}

// The row of a request whose owner died before it had written it is written by the
// next one, and requests are counted on.
func TestLoad_LedgerIsCompleted(t *testing.T) {
	r := newRig(t, &script{steps: []step{says("end")}})
	orphan(t, r)
	r.host(t, "o1")
	r.until(t, "+task_end(completed)")
	rows := map[string]int64{}
	require.Eventually(t, func() bool {
		for row, err := range r.client.Usage(t.Context()) {
			require.NoError(t, err)
			rows[row.Request] = row.Usage.Total
		}
		return len(rows) == 2
	}, wait, tick)
	require.Equal(t, map[string]int64{"1": 7, "2": 10}, rows)
	r.verify(t)
}
