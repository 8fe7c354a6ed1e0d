package session_test

import (
	"context"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/protocol"
)

func each(ms []protocol.Message) iter.Seq2[protocol.Message, error] {
	return func(yield func(protocol.Message, error) bool) {
		for _, m := range ms {
			if !yield(m, nil) {
				return
			}
		}
	}
}

// A trace that was cut anywhere becomes an idle session: nothing of it is gone on
// with, and no call of it is run.
func TestImport_AnOpenTaskIsClosed(t *testing.T) { // L159 L164
	m := &script{steps: []step{calls("A", "B"), says("end"), says("more")}}
	r := newRig(t, m)
	r.host(t, "o1")
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	r.untilIdle(t, "s1")
	var whole []protocol.Message
	for _, rec := range r.records(t) {
		whole = append(whole, rec.Message)
	}
	for n := 1; n <= len(whole); n++ {
		if n < len(whole) && whole[n-1].Kind() == (protocol.TokenUsage{}).Kind() {
			continue // stored with the next one or not at all
		}
		sid := protocol.ID("copy-" + protocol.Token(4))
		reply, err := r.client.Import(context.Background(), sid, each(whole[:n]))
		require.NoError(t, err)
		require.Equal(t, protocol.ReplyAccepted, reply.Code, reply.Reason)
		st := r.command(t, sid, protocol.VerbStatus, protocol.Command{ID: "q"}).Status
		require.Equal(t, protocol.StateIdle, st.State, "%d messages, to %s", n, whole[n-1])
		r.verifyOf(t, sid)
		for _, rec := range r.recordsOf(t, sid) {
			if meta, ok := rec.Message.Payload.(protocol.SessionMeta); ok {
				require.Equal(t, string(sid), meta.SessionID)
			}
		}
	}
	require.Equal(t, 1, r.worker.ran("A"))
	require.Len(t, m.requests, 2)
}
