package session_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/session"
	"rookery/protocol"
)

func TestAppend_NothingPartsATokenUsageFromItsRequestEnd(t *testing.T) { // L043
	r := newRig(t, &script{})
	call := protocol.ToolCall{Role: protocol.Assistant, Name: "t", Arguments: "{}", ToolCallID: "A", StopReason: protocol.Completed}
	queued, unready, err := session.Queued(r.client, 1,
		protocol.SessionMeta{SessionID: "s1"}, protocol.TaskBegin{TaskID: "t1", Of: "run"}, protocol.UserText("go"),
		protocol.RequestBegin{}, call, protocol.ApprovalDecision{Decision: protocol.Allow, ToolCallID: "A"},
		protocol.TokenUsage{Request: protocol.Usage{Total: 7}, Session: protocol.Usage{Total: 7}},
		protocol.CallDispatched{ToolCallID: "A", Attempt: 1, Destination: "w.w1"}, protocol.CallFate{ToolCallID: "A", Fate: "lost"},
		protocol.RequestEnd{Status: protocol.Completed})
	require.NoError(t, err)
	require.Equal(t, []string{
		"approval_decision(allow,A)", "token_usage(request 7, session 7)", "request_end(completed)",
		"+call_dispatched(A)", "+call_fate(A,lost)",
	}, queued[5:])
	require.Zero(t, unready)
}

// A task whose owner dies is begun with its prompt, or not at all.
func TestAppend_TaskBeginLeavesWithAllOfItsPrompt(t *testing.T) {
	r := newRig(t, &script{})
	said := []protocol.Payload{
		protocol.SessionMeta{SessionID: "s1"},
		protocol.TaskBegin{TaskID: "t1", Of: "run"},
		protocol.UserText("look"),
		protocol.ImageURL{Role: protocol.User, ImageURL: "data:image/png;base64,AA=="},
		protocol.RequestBegin{},
	}
	for n, want := range []int{0, 0, 1, 2, 0, 0} {
		_, unready, err := session.Queued(r.client, 2, said[:n]...)
		require.NoError(t, err)
		require.Equal(t, want, unready, "%d records", n)
	}
	_, unready, err := session.Queued(r.client, 0, protocol.SessionMeta{SessionID: "s1"}, protocol.TaskBegin{TaskID: "t1", Of: "compact"})
	require.NoError(t, err)
	require.Zero(t, unready)
}
