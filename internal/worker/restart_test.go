package worker_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/worker"
	"rookery/protocol"
)

// journal reads the results that wait.
func (b *bench) journal() string {
	text, err := os.ReadFile(filepath.Join(b.root, "journal", "results"))
	require.NoError(b.t, err)
	return string(text)
}

// restart brings the broker back, with its leases' bucket, which is in memory.
func (b *bench) restart() {
	b.server.Restart(b.t)
	require.NoError(b.t, b.server.Bus(b.t).Setup(b.t.Context(), bus.StoreOptions{MaxStore: 1 << 30}))
}

// stored waits until a result is stored.
func (b *bench) stored(id protocol.ID, dispatch string) *protocol.Result {
	for {
		r, err := b.owner.Result(b.t.Context(), id, sid, dispatch)
		require.NoError(b.t, err)
		if r != nil {
			return r
		}
	}
}

func TestWorker_ResultSurvivesBrokerAndWorker(t *testing.T) {
	b := setup(t)
	release := make(chan struct{})
	backend := fakes(func(_ context.Context, _ string, w io.Writer) int {
		_, _ = io.WriteString(w, "ready ")
		<-release
		_, _ = io.WriteString(w, "done")
		return 0
	})
	w := b.serve(worker.Config{Grace: -1, Backend: backend})
	b.dispatch(bus.ToWorker(w.ID()), command("1-0-1", "x"))
	b.says("ready ")
	b.server.Stop()
	close(release)
	for !strings.Contains(b.journal(), "ready done") {
		require.NoError(t, t.Context().Err())
	}
	id, boot := w.ID(), w.Boot()
	w.end() // without the broker; the result waits
	b.restart()

	again := b.serve(worker.Config{Backend: backend})
	require.Equal(t, id, again.ID())
	require.NotEqual(t, boot, again.Boot())
	res := b.stored(id, "1-0-1")
	require.Equal(t, "ready done", res.Output)
	require.Equal(t, boot, res.Boot, "exactly as it was")
	again.end()
	require.Contains(t, b.journal(), `{"session":"s1","dispatch":"1-0-1"}`, "it leaves the journal once it is stored")
}

func TestWorker_ResultIsSentAfterReconnect(t *testing.T) {
	b := setup(t)
	release := make(chan struct{})
	w := b.serve(worker.Config{Backend: fakes(func(_ context.Context, _ string, w io.Writer) int {
		_, _ = io.WriteString(w, "ready")
		<-release
		return 0
	})})
	b.dispatch(bus.ToWorker(w.ID()), command("1-0-1", "x"))
	b.says("ready")
	b.server.Stop()
	close(release)
	for b.journal() == "" {
		require.NoError(t, t.Context().Err())
	}
	b.restart()
	require.Equal(t, w.Boot(), b.stored(w.ID(), "1-0-1").Boot)
}

func TestWorker_SignsOnAgainAfterReconnect(t *testing.T) {
	b := setup(t)
	w := b.serve(worker.Config{Backend: fakes(func(context.Context, string, io.Writer) int { return 0 })})
	require.Equal(t, w.Boot(), (<-b.signed).Boot)
	b.server.Cut()
	require.Equal(t, w.Boot(), (<-b.signed).Boot)
	b.dispatch(bus.ToWorker(w.ID()), command("1-0-1", "x"))
	b.stored(w.ID(), "1-0-1")
}
