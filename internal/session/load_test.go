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
