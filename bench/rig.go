package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/nats-io/nats.go"

	"rookery/internal/bus"
	"rookery/internal/bus/natsd"
	"rookery/internal/engine"
	"rookery/internal/llm"
	"rookery/internal/sandbox/backend"
	"rookery/internal/session"
	"rookery/internal/tool"
	"rookery/internal/worker"
	"rookery/protocol"
)

// A rig is a broker, and what was started on it, in this process.
type rig struct {
	bench *bench
	srv   *natsd.Server
	piped bool   // connections of rookery and floor are pipes instead of sockets
	box   string // sandbox of the workers

	mu    sync.Mutex // closers may be added from several goroutines
	stops []func()
}

// rigOptions say how the broker serves.
type rigOptions struct{ sync, piped bool }

func (b *bench) newRig(ctx context.Context, o rigOptions) (*rig, error) {
	srv, err := natsd.Start(natsd.Options{StoreDir: b.place(), Port: -1, SyncAlways: o.sync})
	if err != nil {
		return nil, err
	}
	r := &rig{bench: b, srv: srv, piped: o.piped, box: b.box}
	r.later(srv.Shutdown)
	c, err := r.bus(ctx)
	if err == nil {
		err = c.Setup(ctx, bus.StoreOptions{MaxStore: 4 << 30})
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *rig) later(stop func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stops = append(r.stops, stop)
}

// close stops everything, the last thing that was started first.
func (r *rig) close() {
	for _, stop := range slices.Backward(r.stops) {
		stop()
	}
}

// bus connects rookery's way.
func (r *rig) bus(ctx context.Context) (*bus.Bus, error) {
	o := bus.Options{Servers: []string{r.srv.ClientURL()}}
	if r.piped {
		o.InProcess = r.srv
	}
	b, err := bus.Connect(ctx, o)
	if err == nil {
		r.later(b.Close)
	}
	return b, err
}

// at connects to a broker in another process.
func (r *rig) at(ctx context.Context, url string) (*bus.Bus, error) {
	b, err := bus.Connect(ctx, bus.Options{Servers: []string{url}})
	if err == nil {
		r.later(b.Close)
	}
	return b, err
}

// raw connects by hand.
func (r *rig) raw() (*nats.Conn, error) {
	var o []nats.Option
	if r.piped {
		o = append(o, nats.InProcessServer(r.srv))
	}
	c, err := nats.Connect(r.srv.ClientURL(), o...)
	if err == nil {
		r.later(c.Close)
	}
	return c, err
}

// host runs an orchestrator whose sessions use model. stop may be called early.
func (r *rig) host(ctx context.Context, model engine.Model, change ...func(*session.Config)) (stop func(), err error) {
	b, err := r.bus(ctx)
	if err != nil {
		return nil, err
	}
	return r.hostOn(ctx, b, model, change...)
}

func (r *rig) hostOn(ctx context.Context, b *bus.Bus, model engine.Model, change ...func(*session.Config)) (stop func(), err error) {
	cfg := session.Config{
		Bus: b,
		Models: func(string) (session.Model, error) {
			return session.Model{Model: model, Name: "m", ID: "m", Provider: "bench"}, nil
		},
		Settings: engine.Settings{NoCompaction: true},
	}
	for _, f := range change {
		f(&cfg)
	}
	h, err := session.New(cfg)
	if err != nil {
		return nil, err
	}
	return r.start(ctx, func(ctx context.Context, ready func()) error { return h.Run(ctx, ready) })
}

// start runs something until stop, or the end of the rig; it returns once it is ready.
func (r *rig) start(ctx context.Context, run func(ctx context.Context, ready func()) error) (stop func(), err error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	ready, gone, ended := make(chan struct{}), make(chan error, 1), make(chan struct{})
	go func() { // stop waits for it
		defer close(ended)
		gone <- run(life, func() { close(ready) })
	}()
	stop = sync.OnceFunc(func() { end(); <-ended })
	select {
	case <-ready:
		r.later(stop)
		return stop, nil
	case err := <-gone:
		stop()
		return nil, errors.Join(err, errors.New("ended before it was ready"))
	case <-ctx.Done():
		stop()
		return nil, ctx.Err()
	}
}

// worker runs a worker with the built-in tools and the one that does nothing, and
// returns once somebody would give it a session.
func (r *rig) worker(ctx context.Context, slots int) error {
	b, err := r.bus(ctx)
	if err != nil {
		return err
	}
	w, err := newWorker(b, r.bench.place(), slots, r.box)
	if err != nil {
		return err
	}
	_, err = r.start(ctx, func(ctx context.Context, ready func()) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { whenReady(ctx, w, ready) })
		return w.Run(ctx)
	})
	return err
}

func newWorker(b *bus.Bus, root string, slots int, box string) (*worker.Worker, error) {
	tools, err := tool.NewRegistry(append(tool.Builtin(), nothing{})...)
	if err != nil {
		return nil, err
	}
	s, err := backend.New(box, tool.Ops(), backend.Options{SoftLimits: true})
	if err != nil {
		return nil, err
	}
	return worker.New(worker.Config{Bus: b, Backend: s, Tools: tools, Root: root, Slots: slots, Grace: -1})
}

// whenReady calls ready once the worker has its queues and its lease.
func whenReady(ctx context.Context, w *worker.Worker, ready func()) {
	select {
	case <-w.SignedOn():
		ready()
	case <-ctx.Done():
	}
}

// nothing is the tool that does nothing.
type nothing struct{}

func (nothing) Spec() protocol.Tool {
	return protocol.Tool{ToolSpec: protocol.ToolSpec{
		Name: "nothing", Description: "Do nothing.", Parameters: json.RawMessage(`{"type":"object"}`),
	}}
}

func (nothing) Run(_ context.Context, _ *tool.Call, w io.Writer) (tool.Report, error) {
	_, err := io.WriteString(w, "done")
	return tool.Report{}, err
}

var _ engine.Model = caller{}

// caller is a model that makes one call of nothing in each of its turns.
type caller struct{ turns int }

// Stream implements engine.Model.
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
			Role: protocol.Assistant, Name: nothing{}.Spec().Name, Arguments: "{}",
			ToolCallID: fmt.Sprintf("c%d", made), StopReason: protocol.Completed,
		}
	}
	if err := emit(p); err != nil {
		return engine.Outcome{Status: protocol.Aborted, Message: err.Error()}
	}
	return engine.Outcome{Status: protocol.Completed, Usage: &protocol.Usage{CacheWrite: 8, Output: 2, Total: 10}}
}

// endpointModel asks the scripted endpoint.
func endpointModel(url string) (*llm.Client, error) {
	return llm.New(llm.Config{BaseURL: url, Model: "scripted", APIKey: "k"})
}
