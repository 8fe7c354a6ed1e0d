package worker_test

import (
	"context"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/worker"
	"rookery/protocol"
)

// lastBeat watches heartbeats and returns what tells the last one.
func (b *bench) lastBeat() func() protocol.Heartbeat {
	b.t.Helper()
	var mu sync.Mutex
	var last protocol.Heartbeat
	stop, err := b.owner.WatchHeartbeats(func(h protocol.Heartbeat) {
		mu.Lock()
		defer mu.Unlock()
		last = h
	})
	require.NoError(b.t, err)
	b.t.Cleanup(stop)
	return func() protocol.Heartbeat {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return last
	}
}

// A command in the background is told of at once, holds no slot and ends with its
// session, at the latest when that has been idle for long.
func TestWorker_BackgroundCommandsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		last := b.lastBeat()
		w := b.serve(worker.Config{Slots: 1, Idle: 5 * time.Minute, Backend: fakes(func(ctx context.Context, cmd string, _ io.Writer) int {
			if cmd == "serve" {
				<-ctx.Done()
			}
			return 0
		})})
		b.dispatch(bus.ToWorker(w.ID()), call("1-0-1", "exec_command", map[string]any{"cmd": "serve", "yield_time_ms": 1000}))
		began := time.Now()
		require.Equal(t, "[still running as command 1-0: input_command reads on, kill_command ends it]", b.result("1-0-1").Output)
		background := last().Background
		require.Len(t, background, 1)
		require.Equal(t, protocol.Background{Session: sid, ID: "1-0", Command: "serve", Since: background[0].Since}, background[0])
		require.WithinDuration(t, began, background[0].Since, time.Second)

		b.dispatch(bus.ToWorker(w.ID()), command("2-0-1", "other")) // on the only slot
		b.result("2-0-1")
		require.Len(t, last().Background, 1)
		time.Sleep(7 * time.Minute)
		require.Empty(t, last().Background)
		require.Zero(t, last().Sessions)
	})
}
