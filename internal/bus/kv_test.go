package bus_test

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/bus/bustest"
	"rookery/protocol"
)

func TestLease_ExpiresWhenItIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := bustest.NewServer(t)
		b := s.Bus(t)
		ends := make(chan string, 16)
		go func() {
			_ = b.WatchLeases(t.Context(), func(l bus.Lease, alive bool) {
				if !alive {
					ends <- string(l.Kind) + "." + string(l.ID)
				}
			})
		}()
		dying := s.Bus(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- b.KeepLease(ctx, bus.Lease{Kind: bus.LeaseWorker, ID: "w1", Boot: "b1", Body: json.RawMessage(`{"a":1}`)}, nil)
		}()
		go func() {
			_ = dying.KeepLease(t.Context(), bus.Lease{Kind: bus.LeaseOrchestrator, ID: "o1", Boot: "b2"}, nil)
		}()
		time.Sleep(time.Minute)
		ls, err := b.Leases(t.Context())
		require.NoError(t, err)
		require.Len(t, ls, 2, "renewed")
		require.Empty(t, ends)

		start := time.Now()
		cancel() // gives it up
		require.NoError(t, <-done)
		require.Equal(t, "w.w1", <-ends)
		require.Less(t, time.Since(start), time.Second)

		old, stopOld := context.WithCancel(t.Context())
		go func() { done <- b.KeepLease(old, bus.Lease{Kind: bus.LeaseWorker, ID: "w2", Boot: "b1"}, nil) }()
		time.Sleep(time.Second)
		successor, stopNew := context.WithCancel(t.Context())
		go func() { done <- b.KeepLease(successor, bus.Lease{Kind: bus.LeaseWorker, ID: "w2", Boot: "b2"}, nil) }()
		time.Sleep(time.Second)
		stopOld() // restarted under the same id
		require.NoError(t, <-done)
		time.Sleep(time.Second)
		require.Empty(t, ends, "the lease is the successor's")
		stopNew()
		require.NoError(t, <-done)
		require.Equal(t, "w.w2", <-ends)

		start = time.Now()
		dying.Close() // as a kill does: no farewell
		require.Equal(t, "o.o1", <-ends)
		require.InDelta(t, 9, time.Since(start).Seconds(), 4)
		ls, err = b.Leases(t.Context())
		require.NoError(t, err)
		require.Empty(t, ls)
	})
}

func TestWorkspace_IsAssignedByCompareAndSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.Start(t)
		_, rev, ok, err := b.Workspace(t.Context(), sid)
		require.NoError(t, err)
		require.False(t, ok)
		w := protocol.WorkspaceRef{Host: "h", Path: "/p", Worker: "w1", Epoch: 1}
		_, err = b.PutWorkspace(t.Context(), sid, w, rev)
		require.NoError(t, err)
		_, err = b.PutWorkspace(t.Context(), sid, w, rev)
		require.ErrorIs(t, err, bus.ErrConflict)
		got, rev, ok, err := b.Workspace(t.Context(), sid)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, w, got)
		w.Epoch = 2
		_, err = b.PutWorkspace(t.Context(), sid, w, rev)
		require.NoError(t, err)
	})
}

func TestCatalogue_OfWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.Start(t)
		_, err := b.Worker(t.Context(), "w1")
		require.ErrorIs(t, err, bus.ErrGone)
		w := protocol.WorkerInfo{Worker: "w1", Boot: "b1", Pools: []protocol.ID{"default"}, Slots: 2, Tools: []protocol.Tool{}}
		require.NoError(t, b.PutWorker(t.Context(), w))
		got, err := b.Worker(t.Context(), "w1")
		require.NoError(t, err)
		require.Equal(t, w, got)
		all, err := b.Workers(t.Context())
		require.NoError(t, err)
		require.Equal(t, []protocol.WorkerInfo{w}, all)
		require.NoError(t, b.DeleteWorker(t.Context(), "w1"))
		all, err = b.Workers(t.Context())
		require.NoError(t, err)
		require.Empty(t, all)
	})
}

func TestLeases_AreThereWhenHeldAndAgainAfterARestart(t *testing.T) {
	s := bustest.NewServer(t)
	b := s.Bus(t)
	seen := make(chan bus.Lease, 64)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wg.Go(func() {
		_ = b.WatchLeases(ctx, func(l bus.Lease, alive bool) {
			if alive {
				seen <- l
			}
		})
	})
	hold := func(boot string) (stop func()) {
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { _ = b.KeepLease(ctx, bus.Lease{Kind: bus.LeaseWorker, ID: "w1", Boot: boot}, nil) })
		return func() { cancel(); wg.Wait() }
	}
	stop := hold("b1")
	require.Equal(t, "b1", (<-seen).Boot)
	stop()
	held, done := make(chan struct{}), make(chan struct{})
	other, leave := context.WithCancel(ctx)
	wg.Go(func() {
		defer close(done)
		_ = b.KeepLease(other, bus.Lease{Kind: bus.LeaseOrchestrator, ID: "o1", Boot: "o"}, func() { close(held) })
	})
	<-held
	all, err := b.Leases(t.Context())
	require.NoError(t, err)
	require.Equal(t, protocol.ID("o1"), all[len(all)-1].ID)
	s.Restart(t)
	require.Eventually(t, func() bool { // by whoever holds it still
		all, err := b.Leases(context.Background())
		return err == nil && len(all) == 1 && all[0].ID == "o1"
	}, time.Minute, time.Millisecond)
	leave()
	<-done
	defer hold("b2")()
	for l := range seen { // the watch goes on, over the restart
		if l.Boot == "b2" {
			break
		}
	}
}
