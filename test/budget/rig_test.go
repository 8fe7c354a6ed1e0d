package budget_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/bus/bustest"
	"rookery/internal/engine"
	"rookery/internal/sandbox"
	"rookery/internal/session"
	"rookery/internal/tool"
	"rookery/internal/worker"
	"rookery/protocol"
)

const patience = 60 * time.Second // for what hangs

// A rig is a broker, an orchestrator, a worker, and who asks.
type rig struct {
	server *bustest.Server
	asker  *bus.Bus
	worker protocol.ID
}

func newRig(t *testing.T, turns int, idle time.Duration) *rig {
	t.Helper()
	r := &rig{server: bustest.NewTCP(t)}
	r.asker = r.server.Bus(t)
	h, err := session.New(session.Config{
		Bus: r.server.Bus(t), IdleAfter: idle, Settings: engine.Settings{NoCompaction: true},
		Models: func(string) (session.Model, error) {
			return session.Model{Model: caller{turns}, Name: "m", ID: "m", Provider: "test"}, nil
		},
	})
	require.NoError(t, err)
	ready := make(chan struct{})
	run(t, func(ctx context.Context) error { return h.Run(ctx, func() { close(ready) }) })
	<-ready
	r.startWorker(t)
	return r
}

func (r *rig) startWorker(t *testing.T) {
	t.Helper()
	tools, err := tool.NewRegistry(append(tool.Builtin(), nothing{})...)
	require.NoError(t, err)
	b := r.server.Bus(t)
	w, err := worker.New(worker.Config{Bus: b, Backend: sandbox.NewNone(tool.Ops()), Tools: tools, Root: t.TempDir(), Slots: 2, Grace: -1})
	require.NoError(t, err)
	run(t, w.Run)
	r.worker = w.ID()
	<-w.SignedOn()
	require.Eventually(t, func() bool {
		leases, err := b.Leases(t.Context())
		if err != nil {
			return false
		}
		for _, l := range leases {
			if l.ID == w.ID() {
				return true
			}
		}
		return false
	}, patience, 5*time.Millisecond)
}

// run runs f until the test ends.
func run(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
}

// task works one task to its end.
func (r *rig) task(t *testing.T, sid protocol.ID) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := r.asker.Subscribe(ctx, sid)
	require.NoError(t, err)
	defer out.Close()
	reply, err := r.asker.Command(ctx, sid, protocol.VerbRun, protocol.Command{
		ID: protocol.Token(8), Prompt: protocol.Payloads{protocol.UserText("go")},
		Options: protocol.TaskOptions{Approve: "allow-all", MaxTurns: -1},
	})
	require.NoError(t, err)
	require.True(t, reply.Code.Accepted(), "%s %s", reply.Code, reply.Reason)
	for {
		e, err := out.Next(ctx)
		require.NoError(t, err)
		if e.Frame == nil {
			continue
		}
		for _, m := range e.Frame.Messages {
			if end, ok := m.Payload.(protocol.TaskEnd); ok {
				require.Equal(t, protocol.TaskCompleted, end.Status)
				return
			}
		}
	}
}

// caller is a model that makes one call in each of its turns, then says something.
type caller struct{ turns int }

func (m caller) Stream(_ context.Context, req engine.Request, emit func(protocol.Payload) error) engine.Outcome {
	made := 0
	for _, h := range req.History {
		if _, ok := h.Payload.(protocol.ToolCall); ok {
			made++
		}
	}
	var p protocol.Payload = protocol.Text{Role: protocol.Assistant, Text: "done", StopReason: protocol.Completed}
	if made < m.turns {
		p = protocol.ToolCall{
			Role: protocol.Assistant, Name: "nothing", Arguments: "{}", ToolCallID: fmt.Sprintf("c%d", made), StopReason: protocol.Completed,
		}
	}
	if err := emit(p); err != nil {
		return engine.Outcome{Status: protocol.Aborted}
	}
	return engine.Outcome{Status: protocol.Completed, Usage: &protocol.Usage{CacheWrite: 8, Output: 2, Total: 10}}
}

type nothing struct{}

func (nothing) Spec() protocol.Tool {
	return protocol.Tool{ToolSpec: protocol.ToolSpec{Name: "nothing", Description: "Does nothing.", Parameters: json.RawMessage(`{"type":"object"}`)}}
}

func (nothing) Run(_ context.Context, _ *tool.Call, w io.Writer) (tool.Report, error) {
	_, err := io.WriteString(w, "done")
	return tool.Report{}, err
}
