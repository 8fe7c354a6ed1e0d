package budget_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"rookery/protocol"
)

// Many short sessions, LEAK_SESSIONS of them, leave nothing behind in orchestrator and
// worker but what is stored.
func TestSessions_LeaveNothingBehind(t *testing.T) {
	sessions := 60
	if text := os.Getenv("LEAK_SESSIONS"); text != "" {
		var err error
		sessions, err = strconv.Atoi(text)
		require.NoError(t, err, "LEAK_SESSIONS")
	}
	r := newRig(t, 2, 50*time.Millisecond)
	r.shortSessions(t, "warm", 10)
	base := r.settled(t, func(footprint) bool { return true })

	r.shortSessions(t, "s", sessions)
	now := r.settled(t, func(f footprint) bool {
		return f.goroutines <= base.goroutines && f.files <= base.files && f.subscriptions <= base.subscriptions
	})
	t.Logf("before %+v, after %+v", base, now)
	require.Equal(t, base.consumers, now.consumers, "consumers")
	require.LessOrEqual(t, now.goroutines, base.goroutines, "goroutines")
	require.LessOrEqual(t, now.files, base.files, "open files")
	require.LessOrEqual(t, now.subscriptions, base.subscriptions, "subscriptions")
	// The broker in this process keeps an index of what is stored: it goes with the sessions.
	require.Less(t, now.heap-base.heap, int64(4<<20+sessions*indexed), "heap")
	for i := range sessions {
		require.NoError(t, r.asker.Purge(t.Context(), protocol.ID(fmt.Sprintf("s%d", i))))
	}
	now = r.settled(t, func(footprint) bool { return true })
	t.Logf("removed %+v", now)
	require.Less(t, now.heap-base.heap, int64(4<<20+sessions*removed), "heap")
}

// What the broker may hold of a session's dozen subjects, and of one that was removed a
// moment ago: its row in the ledger, marks of deletion, and message ids for two minutes.
const (
	indexed = 12 << 10
	removed = 4 << 10
)

// shortSessions works one task in each, and has the worker let go of it.
func (r *rig) shortSessions(t *testing.T, name string, n int) {
	t.Helper()
	for i := range n {
		sid := protocol.ID(fmt.Sprintf("%s%d", name, i))
		r.task(t, sid)
		reply, err := r.asker.Control(t.Context(), r.worker, "release", protocol.Control{Session: sid})
		require.NoError(t, err)
		require.True(t, reply.OK, reply.Error)
	}
}

// A footprint is what a process and its broker hold.
type footprint struct {
	goroutines, files, consumers int
	subscriptions                uint32
	heap                         int64
}

// settled waits until enough holds, or what is there is all that will go.
func (r *rig) settled(t *testing.T, enough func(footprint) bool) footprint {
	t.Helper()
	var last footprint
	same := 0
	for range 200 {
		f := r.footprint(t)
		if f.goroutines == last.goroutines && f.files == last.files && f.subscriptions == last.subscriptions {
			same++
		} else {
			same = 0
		}
		if last = f; same >= 20 && enough(f) {
			break
		}
		<-time.After(25 * time.Millisecond)
	}
	return last
}

func (r *rig) footprint(t *testing.T) footprint {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return footprint{
		goroutines: runtime.NumGoroutine(), files: len(files), consumers: r.consumers(t),
		subscriptions: r.server.Subscriptions(), heap: int64(m.HeapAlloc),
	}
}

// consumers counts the queues of calls.
func (r *rig) consumers(t *testing.T) int {
	t.Helper()
	c, err := nats.Connect(r.server.URL())
	require.NoError(t, err)
	defer c.Close()
	js, err := jetstream.New(c)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	n := 0
	for _, name := range []string{"TRACE", "CALL", "RES", "USAGE"} {
		s, err := js.Stream(ctx, name)
		require.NoError(t, err)
		n += s.CachedInfo().State.Consumers
	}
	return n
}
