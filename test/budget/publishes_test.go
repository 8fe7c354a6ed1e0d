package budget_test

import (
	"context"
	"maps"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// The document says what a turn costs; this holds it to that.
func TestTurn_OfOneCallCostsWhatTheDocumentSays(t *testing.T) {
	const turns = 20
	limit := promised(t)
	r := newRig(t, turns, time.Minute)
	seen := r.listen(t)
	r.task(t, "s1")

	counts := seen.until(t, turns)
	// The last request makes no call: it begins, answers and ends.
	stored := counts["trace"] + counts["call"] + counts["res"] + counts["usage"]
	require.LessOrEqual(t, stored, turns*limit+8, "%v", counts)
	require.Equal(t, turns, counts["call"], "a call is published once")
	require.Equal(t, 2*turns, counts["res"], "a claim and a result for each call")
	require.GreaterOrEqual(t, counts["trace"], turns, "nothing was counted")
}

// promised reads the figure.
func promised(t *testing.T) int {
	t.Helper()
	doc, err := os.ReadFile("../../docs/architecture.md")
	require.NoError(t, err)
	m := regexp.MustCompile(`at most (\d+) stored publishes`).FindSubmatch(doc)
	require.NotNil(t, m, "docs/architecture.md does not say what a turn costs")
	n, err := strconv.Atoi(string(m[1]))
	require.NoError(t, err)
	return n
}

// A listener counts what is published, by the second token of the subject.
type listener struct {
	mu     sync.Mutex // the library writes, the test reads
	counts map[string]int
}

func (r *rig) listen(t *testing.T) *listener {
	t.Helper()
	c, err := nats.Connect(r.server.URL())
	require.NoError(t, err)
	t.Cleanup(c.Close)
	l := &listener{counts: map[string]int{}}
	_, err = c.Subscribe("rk.>", func(m *nats.Msg) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.counts[strings.Split(m.Subject, ".")[1]]++
	})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, c.FlushWithContext(ctx))
	return l
}

// until waits for the last row of the ledger, which comes behind everything else.
func (l *listener) until(t *testing.T, turns int) map[string]int {
	t.Helper()
	var counts map[string]int
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		counts = maps.Clone(l.counts)
		return counts["usage"] >= turns+1
	}, patience, 5*time.Millisecond)
	return counts
}
