package session_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/engine"
	"rookery/internal/session"
	"rookery/protocol"
)

func TestSession_TaskRunsOverTheBus(t *testing.T) { // L002 L005 L036 L046
	m := &script{steps: []step{calls("A", "B"), says("end"), says("again")}}
	r := newRig(t, m)
	r.host(t, "o1")
	reply := r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	require.Equal(t, protocol.ReplyAccepted, reply.Code, reply.Reason)
	lines := r.until(t, "+task_end(completed)")
	require.Equal(t, []string{"session_meta", "+task_begin(run)", `text[user]"go"`, "request_begin", "tool_call[A,completed]", "approval_decision(allow,A)"}, lines[:6])
	r.verify(t)
	in := m.request(1).Input
	require.Len(t, in, 2)
	require.Equal(t, `tool_call_output[A,completed]"done A"`, in[0].String())
	require.Equal(t, `tool_call_output[B,completed]"done B"`, in[1].String())

	reply = r.command(t, "s1", protocol.VerbRun, prompt("t2", "more", allow))
	require.Equal(t, protocol.ReplyAccepted, reply.Code)
	r.untilIdle(t, "s1")
	require.Len(t, m.request(2).History, 6)
	require.Equal(t, `text[user]"more"`, m.request(2).Input[0].String())
	r.verify(t)
}

func TestSession_RepeatedCommandGetsTheSameAnswer(t *testing.T) {
	m := &script{steps: []step{says("one"), says("two")}}
	r := newRig(t, m)
	r.host(t, "o1")
	for range 3 {
		require.Equal(t, protocol.ReplyAccepted, r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow)).Code)
		r.until(t, "+task_end(completed)")
	}
	n := 0
	for _, rec := range r.records(t) {
		if _, ok := rec.Message.Payload.(protocol.TaskBegin); ok {
			n++
		}
	}
	require.Equal(t, 1, n)
}

func TestSession_ApprovalIsAskedAfterTheRestIsStored(t *testing.T) { // L038 L136
	m := &script{steps: []step{calls("A", "B"), says("end")}}
	r := newRig(t, m)
	r.host(t, "o1")
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", protocol.TaskOptions{Approve: "ask"}))
	lines := r.until(t, "+approval_request(A)")
	require.Equal(t, []string{"tool_call[A,completed]", "+reply_received", "+approval_request(A)"}, lines[len(lines)-3:])
	st := r.command(t, "s1", protocol.VerbStatus, protocol.Command{ID: "q"}).Status
	require.Equal(t, "A", st.Pending[0].ToolCallID)

	yes := protocol.Command{ID: "c1", ToolCallID: "A", Decision: protocol.Allow}
	require.Equal(t, protocol.ReplyAccepted, r.command(t, "s1", protocol.VerbApprove, yes).Code)
	late := r.command(t, "s1", protocol.VerbApprove, protocol.Command{ID: "c2", ToolCallID: "A", Decision: protocol.Deny})
	require.Equal(t, protocol.ReplyDecided, late.Code)
	require.Contains(t, late.Reason, "allow by user at")
	unknown := r.command(t, "s1", protocol.VerbApprove, protocol.Command{ID: "c3", ToolCallID: "Z", Decision: protocol.Deny})
	require.Equal(t, protocol.ReplyUnknownCall, unknown.Code)

	r.until(t, "+approval_request(B)")
	require.Equal(t, protocol.ReplyAccepted, r.command(t, "s1", protocol.VerbApprove, protocol.Command{ID: "c4", ToolCallID: "B", Decision: protocol.Deny, Reason: "no"}).Code)
	r.until(t, "+task_end(completed)")
	require.Equal(t, `tool_call_output[B,aborted]"Tool call denied by user."`, m.request(1).Input[1].String())
	require.Equal(t, 1, r.worker.ran("A"))
	require.Zero(t, r.worker.ran("B"))
	r.verify(t)
}

func TestSession_AbortStopsAPendingApprovalAndIsAcknowledgedWhenStored(t *testing.T) { // L068 L135
	m := &script{steps: []step{calls("A")}}
	r := newRig(t, m)
	r.host(t, "o1")
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", protocol.TaskOptions{Approve: "ask"}))
	r.until(t, "+approval_request(A)")
	require.Equal(t, protocol.ReplyAborting, r.command(t, "s1", protocol.VerbAbort, protocol.Command{ID: "a"}).Code)
	lines := r.until(t, "+task_end(aborted)")
	require.Equal(t, []string{
		"+abort_requested", "+approval_closed(A)", "token_usage(request 10, session 10)", "request_end(completed)",
		`abort("aborted by user")`, "+task_end(aborted)",
	}, lines[len(lines)-6:])
	require.Equal(t, protocol.ReplyIdle, r.command(t, "s1", protocol.VerbAbort, protocol.Command{ID: "a2"}).Code)
	require.Equal(t, protocol.ReplyNotRunning, r.command(t, "s1", protocol.VerbSteer, protocol.Command{ID: "x", Text: "hi"}).Code)
	r.verify(t)
}

func TestSession_SteeringIsDelivered(t *testing.T) { // L084 L085 L133
	hold := make(chan struct{})
	m := &script{steps: []step{func(ctx context.Context, emit func(protocol.Payload) error) engine.Outcome {
		<-hold
		return says("one")(ctx, emit)
	}, says("two")}}
	r := newRig(t, m)
	r.host(t, "o1")
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	require.Equal(t, protocol.ReplyTaskInProgress, r.command(t, "s1", protocol.VerbRun, prompt("t2", "no", allow)).Code)
	require.Equal(t, protocol.ReplyBadRequest, r.command(t, "s1", protocol.VerbSteer, protocol.Command{ID: "s0", Text: "  "}).Code)
	require.Equal(t, protocol.ReplyAccepted, r.command(t, "s1", protocol.VerbSteer, protocol.Command{ID: "st1", Text: " left "}).Code)
	close(hold)
	r.until(t, "+task_end(completed)")
	require.Equal(t, protocol.Steering("left"), m.request(1).Input[0].Payload.(protocol.Text).Text)
	r.verify(t)
}

func TestSession_OpensAnywhereWhenIdle(t *testing.T) { // L153
	m := &script{steps: []step{says("one"), says("two")}}
	r := newRig(t, m)
	stop := r.host(t, "o1")
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	r.until(t, "+task_end(completed)")
	stop()
	r.host(t, "o2")
	require.Equal(t, protocol.ReplyAccepted, r.command(t, "s1", protocol.VerbRun, prompt("t2", "more", allow)).Code)
	r.untilIdle(t, "s1")
	require.Len(t, m.request(1).History, 2)
	require.Equal(t, uint64(2), r.command(t, "s1", protocol.VerbStatus, protocol.Command{ID: "q"}).Status.Epoch)
	r.verify(t)
}

func TestSession_IdleSessionIsClosed(t *testing.T) {
	m := &script{steps: []step{says("one"), says("two")}}
	r := newRig(t, m)
	r.host(t, "o1", func(c *session.Config) { c.IdleAfter = 50 * time.Millisecond })
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	r.until(t, "+task_end(completed)")
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		reply, err := r.client.Command(ctx, "s1", protocol.VerbStatus, protocol.Command{ID: "q"})
		return err == nil && reply.Status.Epoch == 1 && reply.Status.State == protocol.StateIdle
	}, 10*time.Second, 20*time.Millisecond)
	require.Equal(t, protocol.ReplyAccepted, r.command(t, "s1", protocol.VerbRun, prompt("t2", "more", allow)).Code)
}

func TestSession_NothingIsMadeWithoutAWorker(t *testing.T) {
	m := &script{}
	r := newRig(t, m)
	r.host(t, "o1")
	cmd := prompt("t1", "go", allow)
	cmd.Session.Pool = "gpu"
	reply := r.command(t, "s9", protocol.VerbRun, cmd)
	require.Equal(t, protocol.ReplyWorkspace, reply.Code)
	require.Contains(t, reply.Reason, "no worker of pool gpu is there")
	exists, err := r.client.Exists(context.Background(), "s9")
	require.NoError(t, err)
	require.False(t, exists)
	require.Equal(t, protocol.ReplyNotFound, r.command(t, "s9", protocol.VerbAbort, protocol.Command{ID: "a"}).Code)
}

func TestSession_BeatFollowsTheEndOfATask(t *testing.T) {
	r := newRig(t, &script{steps: []step{says("one")}})
	r.host(t, "o1")
	out, err := r.client.Subscribe(t.Context(), "s1")
	require.NoError(t, err)
	defer out.Close()
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	var seq uint64
	for {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		ev, err := out.Next(ctx)
		cancel()
		require.NoError(t, err)
		if ev.Frame != nil && ev.Frame.Own == nil {
			seq = ev.Frame.Seq
		}
		if ev.Live != nil && ev.Live.Beat != nil && ev.Live.Beat.State == protocol.StateIdle {
			require.Equal(t, seq, ev.Live.Beat.Seq)
			return
		}
	}
}

func TestSession_ConfigurationBoundsTools(t *testing.T) {
	m := &script{steps: []step{calls("A"), says("end")}}
	r := newRig(t, m)
	asked := make(chan protocol.Call, 1)
	r.worker.tools["A"] = func(c protocol.Call) string { asked <- c; return "x" }
	r.host(t, "o1", func(c *session.Config) {
		c.Enabled, c.MaxOutput = []string{"t"}, 77
		c.Policy = func(string, string) session.Policy { return session.Policy{Timeout: 3 * time.Second} }
	})
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	r.until(t, "+task_end(completed)")
	require.Len(t, m.request(0).Tools, 1)
	got := <-asked
	require.Equal(t, int64(3000), got.TimeoutMS)
	require.Equal(t, 77, got.MaxOutput)
}

func TestSession_CommandRepeatedAtOnceIsTheSameTask(t *testing.T) {
	r := newRig(t, &script{steps: []step{says("one")}})
	r.host(t, "o1")
	codes := make([]protocol.ReplyCode, 20)
	var senders sync.WaitGroup
	for i := range codes {
		senders.Go(func() { codes[i] = r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow)).Code })
	}
	senders.Wait()
	for _, code := range codes {
		require.Equal(t, protocol.ReplyAccepted, code)
	}
	r.untilIdle(t, "s1")
	r.verify(t)
}

func TestSession_ImagesOfAnInterruptedPromptComeAgain(t *testing.T) { // L083
	m := &script{steps: []step{hang(), says("a cat")}}
	r := newRig(t, m)
	r.host(t, "o1")
	cmd := prompt("t1", "what is this", allow)
	cmd.Prompt = append(cmd.Prompt, protocol.ImageURL{Role: protocol.User, ImageURL: "data:image/png;base64,AA=="})
	r.command(t, "s1", protocol.VerbRun, cmd)
	r.waitRequests(t, m, 1)
	require.Equal(t, protocol.ReplyAborting, r.command(t, "s1", protocol.VerbAbort, protocol.Command{ID: "a"}).Code)
	r.untilIdle(t, "s1")
	r.command(t, "s1", protocol.VerbRun, prompt("t2", "well", allow))
	r.untilIdle(t, "s1")
	in := m.request(1).Input
	require.Len(t, in, 3)
	require.Equal(t, "[turn_aborted]\n  [user_input]what is this[/user_input]\n[/turn_aborted]", in[0].Payload.(protocol.Text).Text)
	require.Equal(t, "data:image/png;base64,AA==", in[1].Payload.(protocol.ImageURL).ImageURL)
	require.Equal(t, `text[user]"well"`, in[2].String())
	r.verify(t)
}

func TestSession_CompactsBeforeTheModelsWindowIsFull(t *testing.T) {
	m := &script{steps: []step{says("one"), says("[summary]S[/summary]")}}
	r := newRig(t, m)
	r.host(t, "o1", func(c *session.Config) {
		c.Settings = engine.Settings{MaxContext: 128000, CompactionPrompt: "sum up"}
		find := c.Models
		c.Models = func(name string) (session.Model, error) {
			m, err := find(name)
			m.ContextWindow = 12 // four fifths are less than the ten that a turn takes
			return m, err
		}
	})
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	lines := r.until(t, "+task_end(completed)")
	require.Contains(t, lines, "compaction_begin(context,summarize,context 10,turns 1)")
	r.verify(t)
}

func TestSession_RemovedSessionIsReleasedOnItsWorker(t *testing.T) {
	r := newRig(t, &script{steps: []step{says("one")}})
	r.host(t, "o1")
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	r.untilIdle(t, "s1")
	reply, err := r.client.Remove(t.Context(), "s1")
	require.NoError(t, err)
	require.Equal(t, protocol.ReplyAccepted, reply.Code, reply.Reason)
	r.worker.mu.Lock()
	defer r.worker.mu.Unlock()
	require.Equal(t, "release", r.worker.asked[len(r.worker.asked)-1])
}
