package chaos_test

import (
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/protocol"
)

// A worker that is asleep hears of an abort too late. What it stores then changes
// nothing, and it works on.
func TestWorker_ThatSleepsOverAnAbort(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.orchestrator("o1", "")
	w := r.worker("")
	sid := r.run(r.request(r.brain.teach(awaiting)))
	r.began(1)
	w.signal(syscall.SIGSTOP)
	running, err := r.client.Abort(t.Context(), sid, "user")
	require.NoError(t, err)
	require.True(t, running)
	lines := r.verify(sid)
	require.Contains(t, lines, "+task_end(aborted)")
	require.Equal(t, fmt.Sprintf("tool_call_output[step-1,aborted]%q", protocol.NoteInterrupted), outputOf(t, lines))

	results := r.overhear("rk.done.*.*." + string(sid) + ".*.d")
	r.let()
	w.signal(syscall.SIGCONT)
	<-results
	second := r.request(r.brain.teach(steps(1)))
	second.Session = sid
	r.run(second)
	r.wait(func() bool { return count(r.lines(sid), "+task_end(completed)") == 1 }, because("the next task does not end"))
	require.Equal(t, lines, r.lines(sid)[:len(lines)])
}

// A worker that stays away for longer than its call could take is given up; when it
// comes back, its result is not heard any more.
func TestWorker_ThatStaysAwayForTooLong(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.env["ROOKERY_TOOLS_TIMEOUT"] = "1s"
	wire := r.wire()
	r.orchestrator("o1", "")
	w := r.start("toolworker", r.with("NATS_URL", wire.url()), r.workerArgs("w1")...)
	w.says("signed on")
	sid := r.run(r.request(r.brain.teach(awaiting)))
	r.began(1)
	wire.sever()
	w.says("call finished") // its time was over
	lines := r.verify(sid)
	require.Contains(t, lines, "+call_fate(step-1,unreachable)")
	require.Contains(t, lines, "+call_fate(step-1,unknown)")
	require.Contains(t, lines, `text[assistant]"done but for 1"`)

	results := r.overhear("rk.done.*.*." + string(sid) + ".*.d")
	wire.mend()
	<-results
	require.Equal(t, lines, r.lines(sid))
	require.Len(t, r.ledger(), 1)
}

// Many would take over at once; one does.
func TestTakeover_OfManySurvivorsOneTakesOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	owner := r.orchestrator("victim", "")
	r.worker("")
	survivors := []protocol.ID{"o1", "o2", "o3"}
	for _, node := range survivors {
		r.orchestrator(string(node), "")
	}
	req := r.request(r.brain.teach(awaiting))
	_, err := r.client.At("victim").Run(t.Context(), req)
	require.NoError(t, err)
	r.began(1)
	owner.kill()
	var wg sync.WaitGroup
	errs := make([]error, 30)
	for k := range errs {
		wg.Go(func() { _, errs[k] = r.client.At(survivors[k%len(survivors)]).Run(t.Context(), req) })
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err, "the task is known: asking for it again is no mistake")
	}
	r.let()
	lines := r.verify(req.Session)
	require.Equal(t, 1, count(lines, "+takeover"))
	require.Equal(t, 1, count(lines, "+task_begin"))
	require.Contains(t, lines, `text[assistant]"all 1 done"`)
	require.Equal(t, map[string]int{string(req.Session) + "/1-0 step-1": 1}, r.ledger())
}
