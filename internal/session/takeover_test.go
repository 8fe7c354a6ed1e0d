package session_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/engine"
	"rookery/internal/session"
	"rookery/protocol"
)

// hang emits ps and then waits for its end.
func hang(ps ...protocol.Payload) step {
	return func(ctx context.Context, emit func(protocol.Payload) error) engine.Outcome {
		for _, p := range ps {
			_ = emit(p)
		}
		<-ctx.Done()
		return engine.Outcome{Status: protocol.Aborted, Message: hung}
	}
}

const hung = "it hung until it was cancelled"

func afterTakeover(lines []string) []string {
	for i, l := range lines {
		if l == "+takeover" {
			return lines[i:]
		}
	}
	return nil
}

func TestTakeover_RunningCallIsAwaitedAndNotRepeated(t *testing.T) {
	m := &script{steps: []step{calls("A"), says("end")}}
	r := newRig(t, m)
	release := make(chan struct{})
	r.worker.tools["A"] = func(protocol.Call) string { r.worker.until(release); return "slow" }
	stop := r.host(t, "o1")
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	require.Eventually(t, func() bool { return r.worker.ran("A") == 1 }, wait, tick)
	r.until(t, "request_end(completed)")
	stop()
	r.host(t, "o2")
	require.Equal(t, protocol.ReplyTaskInProgress, r.command(t, "s1", protocol.VerbRun, prompt("t2", "no", allow)).Code)
	close(release)
	lines := r.until(t, "+task_end(completed)")
	require.Equal(t, []string{
		"+takeover", `tool_call_output[A,completed]"slow"`, "request_begin", `text[assistant]"end"`,
		"token_usage(request 10, session 20)", "request_end(completed)", "+task_end(completed)",
	}, afterTakeover(lines))
	require.Equal(t, 1, r.worker.ran("A"))
	r.verify(t)
}

func TestTakeover_ResultThatCameMeanwhileIsTaken(t *testing.T) {
	m := &script{steps: []step{calls("A"), says("end")}}
	r := newRig(t, m)
	release, done := make(chan struct{}), make(chan struct{})
	r.worker.tools["A"] = func(protocol.Call) string { r.worker.until(release); defer close(done); return "slow" }
	stop := r.host(t, "o1")
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	require.Eventually(t, func() bool { return r.worker.ran("A") == 1 }, wait, tick)
	stop()
	close(release)
	<-done
	r.host(t, "o2")
	r.until(t, "+task_end(completed)")
	require.Equal(t, 1, r.worker.ran("A"))
	r.verify(t)
}

func TestTakeover_OpenRequestIsMadeAnew(t *testing.T) { // L157
	m := &script{steps: []step{
		hang(protocol.Text{Role: protocol.Assistant, Text: "half", StopReason: protocol.Completed}), says("end"),
	}}
	r := newRig(t, m)
	stop := r.host(t, "o1")
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	r.until(t, `text[assistant]"half"`)
	stop()
	r.host(t, "o2")
	lines := r.until(t, "+task_end(completed)")
	require.Equal(t, []string{"+takeover", "request_end(timeout)", "request_begin"}, afterTakeover(lines)[:3])
	in := m.request(1).Input
	require.Len(t, in, 2)
	require.Equal(t, "[turn_retried]\n  [text]half[/text]\n[/turn_retried]", in[1].Payload.(protocol.Text).Text)
	r.verify(t)
}

func TestTakeover_PendingApprovalComesBackUnderTheSameID(t *testing.T) {
	m := &script{steps: []step{calls("A", "B"), says("end")}}
	r := newRig(t, m)
	stop := r.host(t, "o1")
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", protocol.TaskOptions{Approve: "ask"}))
	r.until(t, "+approval_request(A)")
	stop()
	r.host(t, "o2")
	require.Equal(t, protocol.ReplyTaskInProgress, r.command(t, "s1", protocol.VerbRun, prompt("t2", "no", allow)).Code)
	require.Eventually(t, func() bool {
		return strings.Count(strings.Join(r.until(t, "+takeover"), " "), "+approval_request(A)") == 2
	}, wait, tick)
	r.command(t, "s1", protocol.VerbApprove, protocol.Command{ID: "a1", ToolCallID: "A", Decision: protocol.Allow})
	r.until(t, "+approval_request(B)")
	r.command(t, "s1", protocol.VerbApprove, protocol.Command{ID: "a2", ToolCallID: "B", Decision: protocol.Allow})
	r.until(t, "+task_end(completed)")
	require.Len(t, m.requests, 2, "the reply was not asked for again")
	require.Equal(t, 1, r.worker.ran("A"))
	require.Equal(t, 1, r.worker.ran("B"))
	r.verify(t)
}

func TestTakeover_SteeringThatWasAcceptedIsDelivered(t *testing.T) { // L092
	m := &script{steps: []step{hang(), says("end")}}
	r := newRig(t, m)
	stop := r.host(t, "o1")
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	r.until(t, "request_begin")
	require.Equal(t, protocol.ReplyAccepted, r.command(t, "s1", protocol.VerbSteer, protocol.Command{ID: "st", Text: "left"}).Code)
	stop()
	m.steps = append(m.steps, says("left it is"))
	r.host(t, "o2")
	require.Equal(t, protocol.ReplyAccepted, r.command(t, "s1", protocol.VerbSteer, protocol.Command{ID: "st", Text: "left"}).Code)
	r.until(t, "+task_end(completed)")
	require.Equal(t, protocol.Steering("left"), m.request(2).Input[0].Payload.(protocol.Text).Text)
	r.verify(t)
}

func TestTakeover_AbortThatWasAcceptedIsFinished(t *testing.T) {
	m := &script{steps: []step{calls("A")}}
	r := newRig(t, m)
	r.worker.tools["A"] = func(protocol.Call) string { <-r.worker.over; return "late" }
	stop := r.host(t, "o1")
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	require.Eventually(t, func() bool { return r.worker.ran("A") == 1 }, wait, tick)
	r.until(t, "request_end(completed)")
	require.Equal(t, protocol.ReplyAborting, r.command(t, "s1", protocol.VerbAbort, protocol.Command{ID: "ab"}).Code)
	stop()
	r.host(t, "o2")
	lines := r.until(t, "+task_end(aborted)")
	require.Equal(t, []string{
		"+takeover", `tool_call_output[A,aborted]"[interrupted: tool aborted by user]"`, `abort("aborted by user")`, "+task_end(aborted)",
	}, afterTakeover(lines)[:4])
}

func TestTakeover_ThreeLostOrchestratorsEndTheTurn(t *testing.T) {
	m := &script{steps: []step{hang(), hang(), hang(), hang()}}
	r := newRig(t, m)
	stop := r.host(t, "o1")
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	for n, node := range []protocol.ID{"o2", "o3"} {
		r.waitRequests(t, m, n+1)
		stop()
		stop = r.host(t, node)
	}
	r.waitRequests(t, m, 3)
	stop()
	r.host(t, "o4")
	lines := r.until(t, "+task_end(failed)")
	require.Equal(t, `abort("orchestrator lost 3 times in this turn")`, lines[len(lines)-2])
	require.Len(t, m.requests, 3)
	r.verify(t)
}

func TestTakeover_SurvivorTakesOverByItself(t *testing.T) {
	m := &script{steps: []step{hang(), says("end")}}
	r := newRig(t, m)
	stop := r.host(t, "o1")
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	r.until(t, "request_begin")
	r.host(t, "o2")
	stop()
	r.until(t, "+task_end(completed)")
	r.verify(t)
}

func TestTakeover_AbortNeedsNoWorker(t *testing.T) { // L135
	m := &script{steps: []step{hang()}}
	r := newRig(t, m)
	stop := r.host(t, "o1")
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	r.until(t, "request_begin")
	stop()
	r.worker.leave()
	r.host(t, "o2")
	require.Equal(t, protocol.ReplyAborting, r.command(t, "s1", protocol.VerbAbort, protocol.Command{ID: "ab"}).Code)
	lines := r.until(t, "+task_end(aborted)")
	require.Equal(t, []string{"+takeover", "+abort_requested", "request_end(aborted)", `abort("aborted by user")`, "+task_end(aborted)"}, afterTakeover(lines))
	r.verify(t)
}

func TestTakeover_WhoComesLaterFindsTheTask(t *testing.T) { // L092
	m := &script{steps: []step{hang(), says("end")}}
	r := newRig(t, m)
	stop := r.host(t, "o1")
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	r.until(t, "request_begin")
	stop()
	r.host(t, "o2") // it has never seen o1, and nobody asks it for anything
	r.until(t, "+task_end(completed)")
	r.verify(t)
}

func TestTakeover_OldOwnerLetsGoThoughItHasNothingToSay(t *testing.T) {
	m := &script{steps: []step{hang(), hang()}}
	r := newRig(t, m)
	r.host(t, "o1")
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	r.until(t, "request_begin")
	_, err := r.client.OpenLog(t.Context(), "s1", "o9", "b9")
	require.NoError(t, err)
	// Its model is cancelled, and the next one who asks it is sent elsewhere.
	require.Eventually(t, func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.cancelled == 1
	}, wait, tick)
}

func TestTakeover_RestartedUnderTheSameName(t *testing.T) {
	m := &script{steps: []step{hang(), says("end")}}
	r := newRig(t, m)
	var lost *bus.Bus
	stop := r.host(t, "o1", func(c *session.Config) { lost = c.Bus })
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	r.until(t, "request_begin")
	lost.Close() // as kill -9
	stop()
	r.host(t, "o1")
	r.until(t, "+task_end(completed)")
	r.verify(t)
}
