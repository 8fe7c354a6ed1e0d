package session_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/bus/bustest"
	"rookery/internal/engine"
	"rookery/internal/session"
	"rookery/internal/trace"
	"rookery/protocol"
)

// A rig is a broker with orchestrators, one worker that runs functions, and a
// client's bus.
type rig struct {
	server *bustest.Server
	client *bus.Bus
	worker *worker
	models map[string]engine.Model
}

func newRig(t *testing.T, model engine.Model) *rig {
	t.Helper()
	return newRigOn(t, bustest.NewServer(t), model)
}

func newRigOn(t *testing.T, server *bustest.Server, model engine.Model) *rig {
	t.Helper()
	r := &rig{server: server, models: map[string]engine.Model{"m": model}}
	r.client = r.server.Bus(t)
	r.worker = newWorker(t, r.server.Bus(t), "w1")
	return r
}

// host runs an orchestrator until the test ends or stop is called.
func (r *rig) host(t *testing.T, node protocol.ID, change ...func(*session.Config)) (stop func()) {
	t.Helper()
	cfg := session.Config{
		Bus: r.server.Bus(t), Node: node,
		Models: func(name string) (session.Model, error) {
			return session.Model{Model: r.models["m"], Name: "m", ID: "m-1", Provider: "test"}, nil
		},
		Policy: func(_, tool string) session.Policy {
			if tool == "look" {
				return session.Policy{Permission: protocol.ReadOnly, Idempotent: true}
			}
			return session.Policy{Permission: protocol.ReadWrite}
		},
		Settings: engine.Settings{NoCompaction: true},
	}
	for _, f := range change {
		f(&cfg)
	}
	h, err := session.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ready, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		_ = h.Run(ctx, func() { close(ready) })
	}()
	<-ready
	r.worker.register(t)
	stop = sync.OnceFunc(func() {
		cancel()
		<-gone
	})
	t.Cleanup(stop)
	return stop
}

func prompt(id, text string, o protocol.TaskOptions) protocol.Command {
	return protocol.Command{ID: id, Prompt: protocol.Payloads{protocol.UserText(text)}, Options: o, Session: protocol.SessionOptions{Model: "m"}}
}

var allow = protocol.TaskOptions{Approve: "allow-all"}

func (r *rig) command(t *testing.T, sid protocol.ID, verb protocol.Verb, cmd protocol.Command) protocol.Reply {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	reply, err := r.client.Command(ctx, sid, verb, cmd)
	require.NoError(t, err)
	return reply
}

// records reads the session's trace.
func (r *rig) records(t *testing.T) []trace.Record {
	t.Helper()
	return r.recordsOf(t, "s1")
}

func (r *rig) recordsOf(t *testing.T, sid protocol.ID) []trace.Record {
	t.Helper()
	var rs []trace.Record
	for f, err := range r.client.Trace(context.Background(), sid, 0) {
		require.NoError(t, err)
		for _, m := range f.Messages {
			rs = append(rs, trace.Record{Context: f.Context, Private: f.Private, Message: m})
		}
	}
	return rs
}

// until waits for a recorded message with that notation and returns the notation of
// all records.
func (r *rig) until(t *testing.T, last string) []string {
	t.Helper()
	var lines []string
	require.Eventually(t, func() bool {
		lines = nil
		found := false
		for _, rec := range r.records(t) {
			lines = append(lines, rec.Message.String())
			found = found || rec.Message.String() == last
		}
		return found
	}, wait, 10*time.Millisecond, "no %s", last)
	return lines
}

func (r *rig) untilIdle(t *testing.T, sid protocol.ID) {
	t.Helper()
	var reply protocol.Reply
	require.Eventually(t, func() bool {
		reply = r.command(t, sid, protocol.VerbStatus, protocol.Command{ID: "q"})
		return reply.Status == nil || reply.Status.State == protocol.StateIdle
	}, wait, tick)
	require.NotNil(t, reply.Status, reply)
}

const (
	wait = 90 * time.Second
	tick = 10 * time.Millisecond
)

func (r *rig) waitRequests(t *testing.T, m *script, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.requests) >= n
	}, wait, tick)
}

func (r *rig) verify(t *testing.T) {
	t.Helper()
	r.verifyOf(t, "s1")
}

func (r *rig) verifyOf(t *testing.T, sid protocol.ID) {
	t.Helper()
	require.Empty(t, trace.Verify(r.recordsOf(t, sid), nil))
}

// A worker claims calls and runs functions.
type worker struct {
	bus     *bus.Bus
	info    protocol.WorkerInfo
	mu      sync.Mutex
	tools   map[string]func(protocol.Call) string
	runs    map[string]int
	running map[string]bool
	over    chan struct{} // closed when the test ends; stuck tools wait for it
	leave   func()        // ends control and lease, as a process that is gone
	quiet   func()        // ends fetching
	serving sync.WaitGroup
	left    bool
	asked   []string // control verbs, in order
	gone    bool     // the workspaces it made were removed
}

func newWorker(t *testing.T, b *bus.Bus, id protocol.ID, change ...func(*protocol.WorkerInfo)) *worker {
	t.Helper()
	w := &worker{
		bus: b, tools: map[string]func(protocol.Call) string{}, runs: map[string]int{}, running: map[string]bool{}, over: make(chan struct{}),
		info: protocol.WorkerInfo{Worker: id, Boot: protocol.Token(4), Host: "h", Pools: []protocol.ID{"default"}, Slots: 4, Sandbox: "none", Tools: []protocol.Tool{
			{ToolSpec: protocol.ToolSpec{Name: "t", Description: "works"}, Workspace: true, TimeoutMS: 100},
			{ToolSpec: protocol.ToolSpec{Name: "look", Description: "looks"}, Workspace: true},
		}},
	}
	for _, f := range change {
		f(&w.info)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	held := make(chan struct{})
	wg.Go(func() {
		_ = b.KeepLease(ctx, bus.Lease{Kind: bus.LeaseWorker, ID: id, Boot: w.info.Boot}, func() { close(held) })
	})
	<-held
	stop, err := b.ServeControl(id, w.control)
	require.NoError(t, err)
	w.leave = sync.OnceFunc(func() {
		w.left = true
		stop()
		cancel()
	})
	fctx, quiet := context.WithCancel(ctx)
	w.quiet = quiet
	for range w.info.Slots {
		w.serving.Go(func() { w.serve(fctx, bus.ToWorker(id)) })
		if len(w.info.Pools) == 1 && w.info.Pools[0] != "default" {
			w.serving.Go(func() { w.serve(fctx, bus.ToPool(w.info.Pools[0])) })
		}
	}
	t.Cleanup(func() {
		w.leave()
		close(w.over)
		w.serving.Wait()
		wg.Wait()
	})
	return w
}

func (w *worker) register(t *testing.T) {
	t.Helper()
	if w.left {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	w.mu.Lock()
	info := w.info
	w.mu.Unlock()
	reply, err := w.bus.Register(ctx, info, "")
	require.NoError(t, err)
	require.Equal(t, protocol.ReplyAccepted, reply.Code, reply.Reason)
}

func (w *worker) control(verb string, c protocol.Control, respond func(protocol.ControlReply)) {
	w.mu.Lock()
	r := protocol.ControlReply{OK: true, Boot: w.info.Boot, Workspace: protocol.WorkspaceRef{Path: "/ws/" + string(c.Session), Made: c.Workspace.Path == "" || c.Workspace.Made}}
	w.asked = append(w.asked, verb)
	if verb == "adopt" && w.gone && c.Workspace.Made {
		r.OK, r.Gone = false, true
	}
	if verb == "status" {
		r.Calls = map[string]string{}
		for _, d := range c.Dispatch {
			r.Calls[d] = "unknown"
			if w.running[d] {
				r.Calls[d] = "running"
			}
		}
	}
	w.mu.Unlock()
	respond(r)
}

func (w *worker) serve(ctx context.Context, q bus.Destination) {
	for ctx.Err() == nil {
		d, err := w.bus.Fetch(ctx, q)
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
			continue
		}
		w.mu.Lock()
		boot := w.info.Boot
		w.mu.Unlock()
		won, err := d.Claim(ctx, protocol.Claim{Worker: w.info.Worker, Boot: boot, At: time.Now()})
		_ = d.Ack()
		if err != nil || !won {
			continue
		}
		w.mu.Lock()
		f := w.tools[d.Call.ToolCallID]
		w.runs[d.Call.ToolCallID]++
		w.running[d.Call.Dispatch] = true
		w.mu.Unlock()
		out := "done " + d.Call.ToolCallID
		if f != nil {
			out = f(d.Call)
		}
		_ = w.bus.PublishResult(ctx, d.Call.Session, d.Call.Dispatch, protocol.Result{
			Worker: w.info.Worker, Boot: boot, Output: out, StopReason: protocol.Completed,
		})
	}
}

// reboot makes the worker another process that knows nothing of its calls.
func (w *worker) reboot() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.info.Boot = protocol.Token(4)
	w.running = map[string]bool{}
}

// deaf makes the worker fetch no more calls.
func (w *worker) deaf() {
	w.quiet()
	w.serving.Wait()
}

// until waits for c, or the end of the test.
func (w *worker) until(c <-chan struct{}) {
	select {
	case <-c:
	case <-w.over:
	}
}

func (w *worker) ran(id string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runs[id]
}

// script answers its n-th request by the n-th function.
type script struct {
	mu       sync.Mutex
	steps    []step
	requests []engine.Request

	cancelled int // steps that hung and were cancelled
}

type step func(ctx context.Context, emit func(protocol.Payload) error) engine.Outcome

func (m *script) Stream(ctx context.Context, req engine.Request, emit func(protocol.Payload) error) engine.Outcome {
	m.mu.Lock()
	n := len(m.requests)
	m.requests = append(m.requests, req)
	m.mu.Unlock()
	if n >= len(m.steps) {
		return engine.Outcome{Status: protocol.Failed, Message: "script is over"}
	}
	o := m.steps[n](ctx, emit)
	if o.Message == hung {
		m.mu.Lock()
		m.cancelled++
		m.mu.Unlock()
	}
	return o
}

func (m *script) request(n int) engine.Request {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.requests[n]
}

func completed() engine.Outcome {
	return engine.Outcome{Status: protocol.Completed, Usage: &protocol.Usage{CacheWrite: 8, Output: 2, Total: 10}}
}

func says(text string) step {
	return func(_ context.Context, emit func(protocol.Payload) error) engine.Outcome {
		_ = emit(protocol.PartialText{Role: protocol.Assistant, EventType: protocol.Start, StopReason: protocol.Completed})
		_ = emit(protocol.PartialText{Role: protocol.Assistant, EventType: protocol.Delta, Text: text, StopReason: protocol.Completed})
		_ = emit(protocol.PartialText{Role: protocol.Assistant, EventType: protocol.Stop, StopReason: protocol.Completed})
		_ = emit(protocol.Text{Role: protocol.Assistant, Text: text, StopReason: protocol.Completed})
		return completed()
	}
}

func calls(ids ...string) step { return callsOf("t", ids...) }

func callsOf(tool string, ids ...string) step {
	return func(_ context.Context, emit func(protocol.Payload) error) engine.Outcome {
		for _, id := range ids {
			_ = emit(protocol.ToolCall{Role: protocol.Assistant, Name: tool, Arguments: "{}", ToolCallID: id, StopReason: protocol.Completed})
		}
		return completed()
	}
}
