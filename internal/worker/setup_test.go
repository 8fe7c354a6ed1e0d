package worker_test

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/bus/bustest"
	"rookery/internal/sandbox"
	"rookery/internal/sandbox/sandboxtest"
	"rookery/internal/tool"
	"rookery/internal/worker"
	"rookery/protocol"
)

const sid protocol.ID = "s1"

// A bench is a broker with an orchestrator that makes queues, and an owner's view
// of the calls of session sid.
type bench struct {
	t      *testing.T
	server *bustest.Server
	owner  *bus.Bus
	root   string

	events chan bus.CallEvent       // the bus writes, the test reads; room for all of a test
	signed chan protocol.WorkerInfo // the same of signing on
}

func setup(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, server: bustest.NewServer(t), root: t.TempDir(), events: make(chan bus.CallEvent, 1<<16), signed: make(chan protocol.WorkerInfo, 1<<10)}
	b.owner = b.server.Bus(t)
	b.orchestrate(b.owner)
	stop, err := b.owner.WatchCalls(sid, func(e bus.CallEvent) { b.events <- e })
	require.NoError(t, err)
	t.Cleanup(stop)
	return b
}

// orchestrate lets workers sign on at o.
func (b *bench) orchestrate(o *bus.Bus) {
	b.t.Helper()
	var wg sync.WaitGroup
	stop, err := o.ServeOrch("o1", bus.Orchestrator{
		Command: func(_ protocol.ID, _ protocol.Verb, _ protocol.Command, respond func(protocol.Reply)) {
			respond(protocol.Reply{})
		},
		Remove: func(_ protocol.ID, respond func(protocol.Reply)) { respond(protocol.Reply{}) },
		Import: func(_ protocol.ID, _ bus.Import, respond func(protocol.Reply)) { respond(protocol.Reply{}) },
		Register: func(w protocol.WorkerInfo, respond func(protocol.Reply)) {
			wg.Go(func() {
				queues := []bus.Destination{bus.ToWorker(w.Worker)}
				for _, p := range w.Pools {
					queues = append(queues, bus.ToPool(p))
				}
				for _, q := range queues {
					if err := o.EnsureConsumer(context.Background(), q); err != nil {
						respond(protocol.Reply{Code: protocol.ReplyFailed, Reason: err.Error()})
						return
					}
				}
				respond(protocol.Reply{Code: protocol.ReplyAccepted})
				b.signed <- w
			})
		},
	}, true)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { stop(); wg.Wait() })
}

// A served is a worker that runs.
type served struct {
	*worker.Worker
	t    *testing.T
	stop context.CancelFunc
	done chan error
}

// serve starts a worker and waits until it has signed on.
func (b *bench) serve(cfg worker.Config) *served {
	b.t.Helper()
	s := b.start(cfg)
	<-s.SignedOn()
	return s
}

func (b *bench) start(cfg worker.Config) *served {
	b.t.Helper()
	w, err := worker.New(b.config(cfg))
	require.NoError(b.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	s := &served{Worker: w, t: b.t, stop: cancel, done: make(chan error, 1)}
	go func() { s.done <- w.Run(ctx) }()
	b.t.Cleanup(s.end)
	return s
}

// end stops the worker as SIGTERM does and waits for it.
func (s *served) end() {
	s.stop()
	if err, ok := <-s.done; ok {
		require.NoError(s.t, err)
		close(s.done)
	}
}

// config fills in what the test does not care about.
func (b *bench) config(cfg worker.Config) worker.Config {
	b.t.Helper()
	if cfg.Bus == nil {
		cfg.Bus = b.server.Bus(b.t)
	}
	if cfg.Root == "" {
		cfg.Root = b.root
	}
	if cfg.Backend == nil {
		cfg.Backend = sandbox.NewNone(tool.Ops())
	}
	if cfg.Tools == nil {
		r, err := tool.NewRegistry(append(tool.Builtin(), remote{})...)
		require.NoError(b.t, err)
		cfg.Tools = r
	}
	return cfg
}

// remote is a tool without workspace, for pools: it tells its call's key.
type remote struct{}

func (remote) Spec() protocol.Tool {
	return protocol.Tool{ToolSpec: protocol.ToolSpec{Name: "remote", Description: "for tests"}}
}

func (remote) Run(_ context.Context, c *tool.Call, w io.Writer) (tool.Report, error) {
	_, err := io.WriteString(w, "ran "+c.Key)
	return tool.Report{}, err
}

// fakes is a backend whose commands are one function of the command line.
func fakes(run func(ctx context.Context, cmd string, w io.Writer) int) *sandboxtest.Fake {
	return &sandboxtest.Fake{Ops: tool.Ops(), Command: func(ctx context.Context, spec sandbox.CallSpec, w io.Writer) int {
		return run(ctx, spec.Argv[2], w)
	}}
}

func call(dispatch, name string, args any) protocol.Call {
	raw, err := json.Marshal(args)
	if err != nil {
		panic(err)
	}
	return protocol.Call{Session: sid, Dispatch: dispatch, Key: string(sid) + "/" + dispatch[:len(dispatch)-2], Tool: name, Arguments: string(raw)}
}

func command(dispatch, cmd string) protocol.Call {
	return call(dispatch, "exec_command", map[string]any{"cmd": cmd})
}

func (b *bench) dispatch(q bus.Destination, c protocol.Call) {
	b.t.Helper()
	require.NoError(b.t, b.owner.Dispatch(b.t.Context(), q, c))
}

// next returns the next event that want accepts.
func (b *bench) next(want func(bus.CallEvent) bool) bus.CallEvent {
	b.t.Helper()
	for {
		select {
		case e := <-b.events:
			if want(e) {
				return e
			}
		case <-b.t.Context().Done():
			b.t.Fatal("no such event")
		}
	}
}

// result waits for a dispatch's result.
func (b *bench) result(dispatch string) protocol.Result {
	b.t.Helper()
	return *b.next(func(e bus.CallEvent) bool { return e.Dispatch == dispatch && e.Result != nil }).Result
}

// says waits until the call 1-0-1 has streamed text.
func (b *bench) says(text string) {
	b.t.Helper()
	b.next(func(e bus.CallEvent) bool { return e.Dispatch == "1-0-1" && e.Delta != nil && e.Delta.Text == text })
}

func (b *bench) control(id protocol.ID, verb string, c protocol.Control) protocol.ControlReply {
	b.t.Helper()
	r, err := b.owner.Control(b.t.Context(), id, verb, c)
	require.NoError(b.t, err)
	return r
}

func mkdir(t *testing.T, names ...string) string {
	t.Helper()
	dir := filepath.Join(names...)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	return dir
}
