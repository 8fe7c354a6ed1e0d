package worker_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/worker"
	"rookery/protocol"
)

func TestJournal_TornEndIsDropped(t *testing.T) {
	line := func(dispatch, result string) string {
		return fmt.Sprintf(`{"session":"s1","dispatch":"%s"%s}`, dispatch, result)
	}
	const done = `,"result":{"worker":"w1","boot":"old","output":"kept","stop_reason":"completed"}`
	whole := line("1-0-1", done) + "\n" + line("2-0-1", done) + "\n" + line("1-0-1", "") + "\n"
	torn := line("3-0-1", done) + "\n"
	for _, n := range []int{0, 1, len(torn) / 2, len(torn) - 1} {
		b := setup(t)
		dir := mkdir(t, b.root, "journal")
		require.NoError(t, os.WriteFile(filepath.Join(dir, "results"), []byte(whole+torn[:n]), 0o600))
		w := b.serve(worker.Config{ID: "w1"})
		res := b.result("2-0-1")
		require.Equal(t, "kept", res.Output)
		require.Equal(t, "old", res.Boot)
		b.dispatch(bus.ToWorker("w1"), command("4-0-1", "echo new"))
		require.Equal(t, "new\n", b.result("4-0-1").Output)
		w.end()
		for _, d := range []string{"1-0-1", "3-0-1"} {
			r, err := b.owner.Result(t.Context(), "w1", sid, d)
			require.NoError(t, err)
			require.Nil(t, r, "%s was stored before, or never sent", d)
		}
		text, err := os.ReadFile(filepath.Join(dir, "results"))
		require.NoError(t, err)
		for l := range strings.Lines(string(text)) {
			var h map[string]any
			require.NoError(t, protocol.Unmarshal([]byte(l), &h), "every line is whole: %.80s", l)
		}
	}
}

func TestJournal_DoesNotGrow(t *testing.T) {
	b := setup(t)
	w := b.serve(worker.Config{})
	for i := range 12 {
		c := command(fmt.Sprintf("%d-0-1", i+1), "seq 100000")
		c.MaxOutput = -1
		b.dispatch(bus.ToWorker(w.ID()), c)
		require.Greater(t, len(b.result(c.Dispatch).Output), 120_000)
	}
	w.end()
	info, err := os.Stat(filepath.Join(b.root, "journal", "results"))
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(12*120_000))
}

func TestJournal_ParallelResultsAreAllStored(t *testing.T) {
	b := setup(t)
	w := b.serve(worker.Config{Slots: 16})
	for i := range 60 {
		b.dispatch(bus.ToWorker(w.ID()), call(fmt.Sprintf("%d-0-1", i+1), "remote", map[string]any{}))
	}
	seen := map[string]bool{}
	for len(seen) < 60 {
		seen[b.next(func(e bus.CallEvent) bool { return e.Result != nil }).Dispatch] = true
	}
	w.end()
	again, err := worker.New(b.config(worker.Config{}))
	require.NoError(t, err)
	require.NoError(t, again.Close())
}
