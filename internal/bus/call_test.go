package bus_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/bus/bustest"
	"rookery/protocol"
)

const cid = "1-0-1"

var pool = bus.ToPool("default")

func call(dispatch string) protocol.Call {
	return protocol.Call{Session: sid, Dispatch: dispatch, Key: "s1/1-0", ToolCallID: "t", Tool: "exec_command", Arguments: "{}", Epoch: 1}
}

func claim(wid protocol.ID, boot string) protocol.Claim {
	return protocol.Claim{Worker: wid, Boot: boot, At: time.Now().UTC()}
}

func dispatch(t *testing.T, b *bus.Bus, d bus.Destination, id string) {
	t.Helper()
	require.NoError(t, b.EnsureConsumer(t.Context(), d))
	require.NoError(t, b.Dispatch(t.Context(), d, call(id)))
}

func fetch(t *testing.T, b *bus.Bus, d bus.Destination) *bus.Delivery {
	t.Helper()
	dl, err := b.Fetch(soon(t), d)
	require.NoError(t, err)
	return dl
}

func TestCall_FromDispatchToResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := bustest.NewServer(t)
		owner, worker := s.Bus(t), s.Bus(t)
		news := make(chan bus.CallEvent, 8)
		stop, err := owner.WatchCalls(sid, func(e bus.CallEvent) { news <- e })
		require.NoError(t, err)
		defer stop()

		d := bus.ToWorker("w1")
		dispatch(t, owner, d, cid)
		require.NoError(t, owner.Dispatch(t.Context(), d, call(cid)), "a repetition is harmless")
		dl := fetch(t, worker, d)
		require.Equal(t, call(cid), dl.Call)
		c := claim("w1", "b1")
		won, err := dl.Claim(t.Context(), c)
		require.NoError(t, err)
		require.True(t, won)
		require.NoError(t, dl.Ack())
		e := <-news
		require.Equal(t, bus.CallEvent{Dispatch: cid, Dest: d, Worker: "w1", Claim: &c}, e)

		delta := protocol.ToolDelta{Boot: "b1", Text: "hel"}
		require.NoError(t, worker.PublishToolDelta("w1", sid, cid, delta))
		require.Equal(t, bus.CallEvent{Dispatch: cid, Worker: "w1", Delta: &delta}, <-news)
		res := protocol.Result{Worker: "w1", Boot: "b1", Output: "hello", StopReason: protocol.Completed}
		require.NoError(t, worker.PublishResult(t.Context(), sid, cid, res))
		require.Equal(t, bus.CallEvent{Dispatch: cid, Dest: d, Worker: "w1", Result: &res}, <-news)

		got, err := owner.Result(t.Context(), "w1", sid, cid)
		require.NoError(t, err)
		require.Equal(t, &res, got)
		have, err := owner.Claim(t.Context(), d, sid, cid)
		require.NoError(t, err)
		require.Equal(t, &c, have)
		none, err := owner.Claim(t.Context(), d, sid, "1-0-2")
		require.NoError(t, err)
		require.Nil(t, none)

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = worker.Fetch(ctx, d)
		require.ErrorIs(t, err, context.DeadlineExceeded, "nothing is handed out again")
	})
}

func TestCall_UnackedIsRedeliveredAndClaimedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := bustest.NewServer(t)
		one, two := s.Bus(t), s.Bus(t)
		dispatch(t, one, pool, cid)
		first := fetch(t, one, pool)
		start := time.Now()
		second := fetch(t, two, pool)
		require.InDelta(t, 10, time.Since(start).Seconds(), 1)

		won, err := second.Claim(t.Context(), claim("w2", "b2"))
		require.NoError(t, err)
		require.True(t, won)
		won, err = first.Claim(t.Context(), claim("w1", "b1"))
		require.NoError(t, err)
		require.False(t, won)
		again := fetch(t, two, pool) // its ack was lost
		won, err = again.Claim(t.Context(), claim("w2", "b2"))
		require.NoError(t, err)
		require.False(t, won, "a process does not run a call twice")
		require.NoError(t, again.Ack())
	})
}

func TestCall_OfManyClaimsAndARevocationExactlyOneWins(t *testing.T) {
	s := bustest.NewServer(t)
	owner := s.Bus(t)
	workers := []*bus.Bus{s.Bus(t), s.Bus(t)}
	require.NoError(t, owner.EnsureConsumer(t.Context(), pool))
	for round := range 20 {
		id := "1-" + string(rune('0'+round/10)) + string(rune('0'+round%10)) + "-1"
		require.NoError(t, owner.Dispatch(t.Context(), pool, call(id)))
		dl := fetch(t, workers[0], pool)
		other := *dl // the queue may hand a call to two
		var wins atomic.Int32
		var existing *protocol.Claim
		var wg sync.WaitGroup
		for i, d := range []*bus.Delivery{dl, &other} {
			wg.Go(func() {
				boot := []string{"b1", "b2"}[i]
				if won, err := d.Claim(t.Context(), claim(protocol.ID("w"+boot), boot)); err == nil && won {
					wins.Add(1)
				}
			})
		}
		wg.Go(func() {
			var err error
			existing, err = owner.Revoke(t.Context(), pool, sid, id, claim("", "owner"))
			if err == nil && existing == nil {
				wins.Add(1)
			}
		})
		wg.Wait()
		require.Equal(t, int32(1), wins.Load(), "round %d", round)
		have, err := owner.Claim(t.Context(), pool, sid, id)
		require.NoError(t, err)
		if existing == nil {
			require.True(t, have.Revoked)
		} else {
			require.Equal(t, existing, have)
		}
		require.NoError(t, dl.Ack())
	}
}

func TestRevoke_RepeatedByTheSameOwnerIsStillARevocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.Start(t)
		for range 2 {
			existing, err := b.Revoke(t.Context(), pool, sid, cid, claim("", "owner"))
			require.NoError(t, err)
			require.Nil(t, existing)
			time.Sleep(3 * time.Minute) // past the window in which the broker knows message ids
		}
		existing, err := b.Revoke(t.Context(), pool, sid, cid, claim("", "successor"))
		require.NoError(t, err)
		require.Equal(t, "owner", existing.Boot)
	})
}

func TestClaim_ThatLostItsAnswerIsStillWon(t *testing.T) {
	s := bustest.NewServer(t)
	owner, worker := s.Bus(t), s.Bus(t)
	news := make(chan bus.CallEvent, 8)
	stop, err := owner.WatchCalls(sid, func(e bus.CallEvent) { news <- e })
	require.NoError(t, err)
	defer stop()
	dispatch(t, owner, pool, cid)
	dl := fetch(t, worker, pool)
	s.DeafenBus(worker)
	type answer struct {
		won bool
		err error
	}
	done := make(chan answer, 1)
	go func() {
		won, err := dl.Claim(soon(t), claim("w1", "b1"))
		done <- answer{won, err}
	}()
	<-news // it is stored; the worker can't know
	s.CutBus(worker)
	require.Equal(t, answer{won: true}, <-done)
}

func TestResult_TheFirstStaysAndSurvivesALostAnswer(t *testing.T) {
	s := bustest.NewServer(t)
	owner, worker := s.Bus(t), s.Bus(t)
	news := make(chan bus.CallEvent, 8)
	stop, err := owner.WatchCalls(sid, func(e bus.CallEvent) { news <- e })
	require.NoError(t, err)
	defer stop()
	res := protocol.Result{Worker: "w1", Boot: "b1", Output: "one", StopReason: protocol.Completed}
	s.DeafenBus(worker)
	done := make(chan error, 1)
	go func() { done <- worker.PublishResult(soon(t), sid, cid, res) }()
	<-news
	s.CutBus(worker)
	require.NoError(t, <-done)

	require.NoError(t, worker.PublishResult(t.Context(), sid, cid, res), "from a journal, later")
	other := res
	other.Boot, other.Output = "b2", "two"
	require.ErrorIs(t, worker.PublishResult(t.Context(), sid, cid, other), bus.ErrSettled)
	got, err := owner.Result(t.Context(), "w1", sid, cid)
	require.NoError(t, err)
	require.Equal(t, &res, got)
	require.Empty(t, news)
}

func TestResult_IsDeliveredWhenTheBrokerComesBack(t *testing.T) {
	s := bustest.NewServer(t)
	b := s.Bus(t)
	s.Stop()
	done := make(chan error, 1)
	res := protocol.Result{Worker: "w1", Boot: "b1", Output: "one", StopReason: protocol.Completed}
	go func() { done <- b.PublishResult(soon(t), sid, cid, res) }()
	s.Restart(t)
	require.NoError(t, <-done)
}

func TestFetch_WaitsThroughARestartAndHoldsNothingItsCallerLeft(t *testing.T) {
	s := bustest.NewServer(t)
	owner, worker := s.Bus(t), s.Bus(t)
	require.NoError(t, owner.EnsureConsumer(t.Context(), pool))
	ctx, cancel := withTimeout(t, 20)
	defer cancel()
	_, err := worker.Fetch(ctx, pool)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	got := make(chan *bus.Delivery, 2)
	var wg sync.WaitGroup
	for range 2 { // two free slots
		wg.Go(func() {
			if dl, err := worker.Fetch(soon(t), pool); err == nil {
				got <- dl
			}
		})
	}
	s.Restart(t)
	for _, id := range []string{"1-0-1", "1-1-1"} {
		require.NoError(t, owner.Dispatch(soon(t), pool, call(id)))
	}
	wg.Wait()
	require.Len(t, got, 2)
	one, two := <-got, <-got
	require.NotEqual(t, one.Call.Dispatch, two.Call.Dispatch)
}

func TestFetch_WithoutAQueueSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.Start(t)
		_, err := b.Fetch(t.Context(), bus.ToWorker("nobody"))
		require.ErrorIs(t, err, bus.ErrNoQueue)
	})
}

func TestQueue_OfAWorkerThatIsAwayGoesAndItsCallsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.Start(t)
		d := bus.ToWorker("w1")
		dispatch(t, b, d, cid)
		time.Sleep(11 * time.Minute)
		_, err := b.Fetch(t.Context(), d)
		require.ErrorIs(t, err, bus.ErrNoQueue)
		require.NoError(t, b.EnsureConsumer(t.Context(), d))
		require.NoError(t, b.EnsureConsumer(t.Context(), d))
		require.Equal(t, cid, fetch(t, b, d).Call.Dispatch)
	})
}

func TestWorker_ControlHeartbeatAndSigningOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := bustest.NewServer(t)
		orch, worker := s.Bus(t), s.Bus(t)
		_, err := orch.Control(t.Context(), "w1", "status", protocol.Control{Session: sid})
		require.ErrorIs(t, err, bus.ErrGone)
		stop, err := worker.ServeControl("w1", func(verb string, c protocol.Control, respond func(protocol.ControlReply)) {
			respond(protocol.ControlReply{OK: true, Boot: verb, Calls: map[string]string{c.Dispatch[0]: "running"}})
		})
		require.NoError(t, err)
		defer stop()
		r, err := orch.Control(t.Context(), "w1", "status", protocol.Control{Session: sid, Dispatch: []string{cid}})
		require.NoError(t, err)
		require.Equal(t, protocol.ControlReply{OK: true, Boot: "status", Calls: map[string]string{cid: "running"}}, r)

		beats := make(chan protocol.Heartbeat, 1)
		stop, err = orch.WatchHeartbeats(func(h protocol.Heartbeat) { beats <- h })
		require.NoError(t, err)
		defer stop()
		beat := protocol.Heartbeat{Worker: "w1", Boot: "b1", Slots: 4, Free: 3}
		require.NoError(t, worker.Heartbeat(beat))
		require.Equal(t, beat, <-beats)

		_, err = worker.Register(t.Context(), protocol.WorkerInfo{Worker: "w1"}, "")
		require.ErrorIs(t, err, bus.ErrNoOrchestrator)
		_, err = worker.Register(t.Context(), protocol.WorkerInfo{Worker: "w1"}, node)
		require.ErrorIs(t, err, bus.ErrNoOrchestrator)
		var seen []protocol.WorkerInfo
		h := orchestrator(nil)
		h.Register = func(w protocol.WorkerInfo, respond func(protocol.Reply)) {
			seen = append(seen, w)
			respond(accepted())
		}
		stop, err = orch.ServeOrch(node, h, true)
		require.NoError(t, err)
		defer stop()
		for _, at := range []protocol.ID{"", node} {
			r, err := worker.Register(t.Context(), protocol.WorkerInfo{Worker: "w1", Boot: "b1"}, at)
			require.NoError(t, err)
			require.Equal(t, protocol.ReplyAccepted, r.Code)
		}
		require.Len(t, seen, 2)
	})
}
