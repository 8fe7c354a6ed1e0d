package session_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus/bustest"
	"rookery/internal/engine"
	"rookery/internal/session"
	"rookery/protocol"
)

// saysOnce says a text when it may.
func saysOnce(may <-chan struct{}, text string) step {
	return func(ctx context.Context, emit func(protocol.Payload) error) engine.Outcome {
		select {
		case <-may:
			return says(text)(ctx, emit)
		case <-ctx.Done():
			return engine.Outcome{Status: protocol.Aborted}
		}
	}
}

func TestOutage_ShortOneIsAPause(t *testing.T) { // L059
	may := make(chan struct{})
	m := &script{steps: []step{saysOnce(may, "one"), says("two")}}
	r := newRig(t, m)
	r.host(t, "o1")
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	r.waitRequests(t, m, 1)
	r.server.Stop()
	close(may)
	<-time.After(time.Second) // its appends find nobody
	r.server.Restart(t)
	lines := r.until(t, "+task_end(completed)")
	require.Equal(t, []string{`text[assistant]"one"`, "token_usage(request 10, session 10)", "request_end(completed)", "+task_end(completed)"}, lines[len(lines)-4:])
	require.NotContains(t, lines, "+takeover")
	r.verify(t)
}

// heard closes c when a text is written.
type heard struct {
	text string
	c    chan struct{}
	once sync.Once
}

func (h *heard) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(h.text)) {
		h.once.Do(func() { close(h.c) })
	}
	return len(b), nil
}

func TestOutage_LongOneEndsTheTask(t *testing.T) { // L059
	may, lost := make(chan struct{}), make(chan struct{})
	m := &script{steps: []step{saysOnce(may, "one"), says("two")}}
	r := newRig(t, m)
	r.host(t, "o1", func(c *session.Config) {
		c.WriteTimeout = 2 * time.Second
		c.Logger = slog.New(slog.NewTextHandler(&heard{text: "session lost", c: lost}, nil))
	})
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	r.waitRequests(t, m, 1)
	r.server.Stop()
	close(may)
	<-lost
	r.server.Restart(t)
	lines := r.until(t, "+task_end(failed)")
	require.True(t, strings.HasPrefix(lines[len(lines)-2], `abort("trace write failed: append to trace of s1: `), lines[len(lines)-2])
	require.NotContains(t, lines, `text[assistant]"one"`, "what was not stored was not said")
	r.verify(t)

	r.command(t, "s1", protocol.VerbRun, prompt("t2", "again", allow))
	r.until(t, "+task_end(completed)")
	require.Equal(t, "[turn_aborted]\n  [user_input]go[/user_input]\n[/turn_aborted]", m.request(1).Input[0].Payload.(protocol.Text).Text)
	r.verify(t)
}

func TestOutage_FullStoreEndsTheTask(t *testing.T) { // L059
	m := &script{steps: []step{says("fits"), says(strings.Repeat("x", 11<<20)), says("end")}}
	r := newRigOn(t, bustest.NewSmall(t, 16<<20), m)
	r.host(t, "o1")
	r.command(t, "s0", protocol.VerbRun, prompt("t0", "go", allow))
	r.untilIdle(t, "s0")
	viewer, err := r.client.Subscribe(t.Context(), "s1")
	require.NoError(t, err)
	defer viewer.Close()
	r.command(t, "s1", protocol.VerbRun, prompt("t1", "go", allow))
	for told := false; !told; {
		e, err := viewer.Next(t.Context())
		require.NoError(t, err)
		if e.Live != nil && e.Live.Message != nil {
			w, ok := e.Live.Message.Payload.(protocol.Waiting)
			told = ok && strings.Contains(w.For, "trace write failed: ") && strings.Contains(w.For, "maximum bytes exceeded")
		}
	}
	lines := r.until(t, "+task_end(failed)") // what is left of the store is enough for that
	require.Contains(t, lines[len(lines)-2], "maximum bytes exceeded")
	require.Equal(t, protocol.StateIdle, r.command(t, "s1", protocol.VerbStatus, protocol.Command{ID: "q"}).Status.State)
	r.verify(t)
}
