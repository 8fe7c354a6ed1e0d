package worker_test

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/worker"
	"rookery/protocol"
)

func TestWorker_RunsACall(t *testing.T) {
	b := setup(t)
	w := b.serve(worker.Config{})
	q := bus.ToWorker(w.ID())
	b.dispatch(q, command("1-0-1", "echo $ROOKERY_CALL_ID; pwd; exit 3"))
	claim := b.next(func(e bus.CallEvent) bool { return e.Claim != nil }).Claim
	require.Equal(t, w.ID(), claim.Worker)
	require.Equal(t, w.Boot(), claim.Boot)
	res := b.result("1-0-1")
	require.Equal(t, "s1/1-0\n"+filepath.Join(b.root, "ws", "s1")+"\n[exit code: 3]", res.Output)
	require.Equal(t, protocol.Completed, res.StopReason)
	require.Equal(t, w.ID(), res.Worker)
	require.Equal(t, w.Boot(), res.Boot)
	require.Equal(t, "none", res.Sandbox)
	require.Positive(t, res.Resources.Wall)

	b.dispatch(q, call("2-0-1", "nosuch", map[string]any{}))
	require.Equal(t, "Unknown tool: nosuch", b.result("2-0-1").Output)
	b.dispatch(q, command("3-0-1", "echo 1 > f"))
	b.result("3-0-1")
	b.dispatch(q, call("4-0-1", "read_file", map[string]any{"path": "f"}))
	require.Equal(t, "     1\t1\n", b.result("4-0-1").Output)
}

func TestWorker_DeltasAreTheOutput(t *testing.T) {
	b := setup(t)
	w := b.serve(worker.Config{})
	b.dispatch(bus.ToWorker(w.ID()), command("1-0-1", "for i in $(seq 200); do echo line $i; done; exit 1"))
	var text strings.Builder
	deltas := 0
	for {
		e := b.next(func(e bus.CallEvent) bool { return e.Delta != nil || e.Result != nil })
		if e.Result != nil { // it may overtake the last deltas
			require.True(t, strings.HasPrefix(e.Result.Output, text.String()))
			break
		}
		require.Equal(t, w.Boot(), e.Delta.Boot)
		require.Equal(t, text.Len(), e.Delta.Offset)
		text.WriteString(e.Delta.Text)
		deltas++
	}
	require.Positive(t, deltas)
}

func TestWorker_DeltasArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		w := b.serve(worker.Config{Backend: fakes(func(_ context.Context, _ string, w io.Writer) int {
			for range 1000 {
				_, _ = io.WriteString(w, "x")
				time.Sleep(time.Millisecond)
			}
			return 0
		})})
		b.dispatch(bus.ToWorker(w.ID()), command("1-0-1", "x"))
		b.result("1-0-1")
		synctest.Wait()
		n, size := 0, 0
		stop, err := b.owner.WatchCalls("s2", func(e bus.CallEvent) {
			if e.Delta != nil {
				n, size = n+1, size+len(e.Delta.Text)
			}
		})
		require.NoError(t, err)
		defer stop()
		c := command("1-0-1", "x")
		c.Session = "s2"
		b.dispatch(bus.ToWorker(w.ID()), c)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, 1000, size)
		require.GreaterOrEqual(t, n, 28)
		require.LessOrEqual(t, n, 32)
		w.end()
	})
}

func TestWorker_CancelInterrupts(t *testing.T) { // L056
	b := setup(t)
	w := b.serve(worker.Config{})
	b.dispatch(bus.ToWorker(w.ID()), command("1-0-1", "echo ready; sleep 1000"))
	b.says("ready\n")
	require.Equal(t, map[string]string{"1-0-1": "running", "9-0-1": "unknown"},
		b.control(w.ID(), worker.VerbStatus, protocol.Control{Session: sid, Dispatch: []string{"1-0-1", "9-0-1"}}).Calls)
	r := b.control(w.ID(), worker.VerbCancel, protocol.Control{Session: sid, Dispatch: []string{"1-0-1"}})
	require.True(t, r.OK)
	require.Equal(t, w.Boot(), r.Boot)
	res := b.result("1-0-1")
	require.Equal(t, "ready\n"+protocol.NoteInterrupted, res.Output)
	require.Equal(t, protocol.Aborted, res.StopReason)
}

func TestWorker_TimeoutIsTheCalls(t *testing.T) { // L053
	b := setup(t)
	w := b.serve(worker.Config{})
	c := command("1-0-1", "echo so far; sleep 1000")
	c.TimeoutMS = 100
	b.dispatch(bus.ToWorker(w.ID()), c)
	res := b.result("1-0-1")
	require.Equal(t, "so far\n[tool timeout: exceeded 100ms]", res.Output)
	require.Equal(t, "timeout", res.Reason)
}

func TestWorker_TwoWorkersOnePoolRunEachCallOnce(t *testing.T) {
	b := setup(t)
	b.serve(worker.Config{Root: t.TempDir(), Slots: 2})
	b.serve(worker.Config{Root: t.TempDir(), Slots: 2})
	const n = 40
	for i := range n {
		b.dispatch(bus.ToPool("default"), call(fmt.Sprintf("%d-0-1", i+1), "remote", map[string]any{}))
	}
	claims, results := map[string]protocol.ID{}, map[string]protocol.ID{}
	for len(results) < n {
		e := b.next(func(e bus.CallEvent) bool { return e.Claim != nil || e.Result != nil })
		if e.Claim != nil {
			require.NotContains(t, claims, e.Dispatch)
			claims[e.Dispatch] = e.Claim.Worker
		} else {
			require.NotContains(t, results, e.Dispatch)
			results[e.Dispatch] = e.Result.Worker
		}
	}
	for d, wid := range results {
		require.Equal(t, claims[d], wid)
	}
}

func TestWorker_RevokedCallIsNotRun(t *testing.T) {
	b := setup(t)
	w := b.serve(worker.Config{})
	q := bus.ToWorker(w.ID())
	have, err := b.owner.Revoke(t.Context(), q, sid, "1-0-1", protocol.Claim{Boot: "owner", At: time.Now()})
	require.NoError(t, err)
	require.Nil(t, have)
	b.dispatch(q, command("1-0-1", "touch ran"))
	b.dispatch(q, command("2-0-1", "ls"))
	require.Equal(t, "[no output]", b.result("2-0-1").Output)
}

func TestWorker_RedeliveryRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		var runs atomic.Int32
		w := b.serve(worker.Config{Backend: fakes(func(context.Context, string, io.Writer) int {
			runs.Add(1)
			time.Sleep(20 * time.Minute)
			return 0
		})})
		q := bus.ToWorker(w.ID())
		c := command("1-0-1", "x")
		c.TimeoutMS = -1
		for range 3 { // the third comes when the call has ended
			b.dispatch(q, c)
			time.Sleep(11 * time.Minute) // the queue has forgotten that it had it
		}
		b.result("1-0-1")
		require.EqualValues(t, 1, runs.Load())
		w.end()
	})
}

func TestWorker_SlotsBoundCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		var now, most atomic.Int32
		w := b.serve(worker.Config{Slots: 3, Backend: fakes(func(context.Context, string, io.Writer) int {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(time.Second)
			now.Add(-1)
			return 0
		})})
		for i := range 9 {
			b.dispatch(bus.ToWorker(w.ID()), command(fmt.Sprintf("%d-0-1", i+1), "x"))
		}
		began := time.Now()
		for range 9 {
			b.next(func(e bus.CallEvent) bool { return e.Result != nil })
		}
		require.EqualValues(t, 3, most.Load())
		require.GreaterOrEqual(t, time.Since(began), 2*time.Second)
		w.end()
	})
}

func TestWorker_DrainLetsCallsFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		w := b.serve(worker.Config{Grace: time.Second, Backend: fakes(func(ctx context.Context, _ string, w io.Writer) int {
			_, _ = io.WriteString(w, "begun ")
			select {
			case <-time.After(100 * time.Second):
				_, _ = io.WriteString(w, "done")
			case <-ctx.Done():
			}
			return 0
		})})
		b.dispatch(bus.ToWorker(w.ID()), command("1-0-1", "x"))
		b.says("begun ")
		require.True(t, b.control(w.ID(), worker.VerbDrain, protocol.Control{}).OK)
		require.True(t, b.control(w.ID(), worker.VerbStatus, protocol.Control{}).Info.Draining)
		b.dispatch(bus.ToWorker(w.ID()), command("2-0-1", "x"))
		require.Equal(t, "begun done", b.result("1-0-1").Output)
		require.NoError(t, <-w.done)
		close(w.done)
		claim, err := b.owner.Claim(t.Context(), bus.ToWorker(w.ID()), sid, "2-0-1")
		require.NoError(t, err)
		require.Nil(t, claim, "no new call after the drain")
	})
}

func TestWorker_StopGivesGraceThenSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		w := b.serve(worker.Config{Grace: 10 * time.Second, Backend: fakes(func(ctx context.Context, cmd string, w io.Writer) int {
			_, _ = io.WriteString(w, "begun")
			d, _ := time.ParseDuration(cmd)
			select {
			case <-time.After(d):
			case <-ctx.Done():
			}
			return 0
		})})
		b.dispatch(bus.ToWorker(w.ID()), command("1-0-1", "9s"))
		b.dispatch(bus.ToWorker(w.ID()), command("2-0-1", "1h"))
		b.says("begun")
		synctest.Wait()
		began := time.Now()
		w.stop()
		require.Equal(t, "begun", b.result("1-0-1").Output)
		res := b.result("2-0-1")
		require.Equal(t, "begun\n[tool error] the worker was stopped before the tool finished", res.Output)
		require.Equal(t, protocol.Failed, res.StopReason)
		require.Equal(t, "worker_stopped", res.Reason)
		w.end()
		require.Equal(t, 10*time.Second, time.Since(began).Round(time.Second))
		_, err := b.owner.Control(t.Context(), w.ID(), worker.VerbStatus, protocol.Control{})
		require.ErrorIs(t, err, bus.ErrGone)
	})
}

func TestWorker_BeatsAndHoldsItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		var mu sync.Mutex
		var beats []protocol.Heartbeat
		stop, err := b.owner.WatchHeartbeats(func(h protocol.Heartbeat) {
			mu.Lock()
			defer mu.Unlock()
			beats = append(beats, h)
		})
		require.NoError(t, err)
		defer stop()
		w := b.serve(worker.Config{Slots: 2, Backend: fakes(func(ctx context.Context, _ string, _ io.Writer) int { <-ctx.Done(); return 0 })})
		b.dispatch(bus.ToWorker(w.ID()), command("1-0-1", "x"))
		time.Sleep(19 * time.Second)
		synctest.Wait()
		leases, err := b.owner.Leases(t.Context())
		require.NoError(t, err)
		require.Len(t, leases, 1)
		require.Equal(t, w.Boot(), leases[0].Boot)
		mu.Lock()
		last := beats[len(beats)-1]
		n := len(beats)
		mu.Unlock()
		require.Equal(t, 10, n)
		require.Equal(t, protocol.Heartbeat{Worker: w.ID(), Boot: w.Boot(), Slots: 2, Free: 1, Running: []string{"s1/1-0-1"}, Sessions: 1}, last)
		w.end()
		leases, err = b.owner.Leases(t.Context())
		require.NoError(t, err)
		require.Empty(t, leases)
	})
}

func TestWorker_IdleSessionsAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		backend := fakes(func(_ context.Context, cmd string, _ io.Writer) int {
			d, _ := time.ParseDuration(cmd)
			time.Sleep(d)
			return 0
		})
		w := b.serve(worker.Config{Backend: backend, Idle: 5 * time.Minute})
		c := command("1-0-1", "10m")
		c.TimeoutMS = -1
		b.dispatch(bus.ToWorker(w.ID()), c)
		b.result("1-0-1")
		require.Empty(t, backend.Closed(), "not while a call runs")
		time.Sleep(4 * time.Minute)
		require.Empty(t, backend.Closed())
		time.Sleep(2 * time.Minute)
		require.Equal(t, []string{"s1"}, backend.Closed())
		b.dispatch(bus.ToWorker(w.ID()), command("2-0-1", "1s"))
		b.result("2-0-1")
		require.Equal(t, []string{"s1", "s1"}, backend.Opened())
		w.end()
		require.Equal(t, []string{"s1", "s1"}, backend.Closed())
	})
}

func TestWorker_BrokenSandboxIsAnError(t *testing.T) {
	b := setup(t)
	backend := fakes(nil)
	backend.CheckErr = io.ErrUnexpectedEOF
	w, err := worker.New(b.config(worker.Config{Backend: backend}))
	require.NoError(t, err)
	require.ErrorIs(t, w.Run(t.Context()), io.ErrUnexpectedEOF)
}

func TestNew_JoinsAllFaults(t *testing.T) {
	_, err := worker.New(worker.Config{ID: "a b", Pools: []protocol.ID{"x."}, Slots: -1})
	for _, want := range []string{"no Bus", "no Backend", "no Tools", "no Root", `"a b" is not an id`, `"x." is not an id`, "negative Slots"} {
		require.ErrorContains(t, err, want)
	}
}

func TestNew_RootIsOnesOwn(t *testing.T) {
	b := setup(t)
	cfg := b.config(worker.Config{ID: "w1"})
	w, err := worker.New(cfg)
	require.NoError(t, err)
	_, err = worker.New(cfg)
	require.ErrorIs(t, err, worker.ErrInUse)
	require.NoError(t, w.Close())
	cfg.ID = ""
	w, err = worker.New(cfg)
	require.NoError(t, err)
	require.Equal(t, protocol.ID("w1"), w.ID())
	require.NoError(t, w.Close())
	cfg.ID = "w2"
	_, err = worker.New(cfg)
	require.ErrorContains(t, err, "belongs to worker w1, not w2")
}
