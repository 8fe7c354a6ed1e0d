package e2e_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/bus/bustest"
	"rookery/internal/engine/enginetest"
	"rookery/internal/llm"
	"rookery/internal/llm/llmtest"
	"rookery/internal/sandbox/sandboxtest"
	"rookery/internal/session"
	"rookery/internal/tool"
	"rookery/internal/worker"
	"rookery/protocol"
)

// stackSession is the session of every scenario.
const stackSession protocol.ID = "scenario"

// A stage is what a session needs at full stack, in one bubble of fake time: a
// broker, an endpoint that speaks HTTP, orchestrators and a worker.
type stage struct {
	t        *testing.T
	s        *enginetest.Scenario
	gates    *enginetest.Gates
	broker   *bustest.Server
	endpoint *llmtest.Server
	model    *recorder
	tools    *scripted
	root     string         // of the worker
	over     sync.WaitGroup // what has been killed

	mu     sync.Mutex
	cfg    enginetest.Config
	hosts  map[protocol.ID]*process
	worker *process
	nodes  int
}

// A process is a role that runs on a bus of its own.
type process struct {
	bus  *bus.Bus
	stop context.CancelFunc
	done chan struct{}
}

// newStage makes what is there before the first statement. Without pick replies come
// in order.
func newStage(t *testing.T, s *enginetest.Scenario, pick func(llmtest.Request) int) *stage {
	t.Helper()
	f := &stage{t: t, s: s, gates: &enginetest.Gates{}, root: t.TempDir(), hosts: map[protocol.ID]*process{}}
	f.endpoint = llmtest.StartPipe(t)
	var replies [][]llmtest.Step
	for _, r := range s.Replies() {
		reply, err := steps(r, f.gates)
		require.NoError(t, err, s.File)
		replies = append(replies, reply)
		if pick == nil {
			f.endpoint.Reply(reply...)
		}
	}
	if pick != nil {
		f.endpoint.Choose(func(r llmtest.Request) []llmtest.Step { return replies[pick(r)] })
	}
	client, err := llm.New(llm.Config{BaseURL: f.endpoint.URL, Model: "scripted", Transport: f.endpoint.Transport})
	require.NoError(t, err)
	f.model = &recorder{Model: client, replies: s.Replies(), calls: map[string]string{}}
	f.tools = &scripted{gates: f.gates, id: f.model.call, die: f.workerDies, tools: map[string]enginetest.Tool{}, runs: map[string]int{}}
	f.broker = bustest.NewServer(t)
	return f
}

// start runs what the script needs: one orchestrator, two where one will go.
func (f *stage) start() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.startHost()
	if standby(f.s.Script) {
		f.startHost()
	}
	f.startWorker()
}

// standby reports that the owner of the session will go.
func standby(script []enginetest.Statement) bool {
	for _, st := range script {
		if st.At != nil {
			st = st.At.Do
		}
		if st.Verb == enginetest.VerbKill || st.Verb == enginetest.VerbResume {
			return true
		}
	}
	return false
}

func run(b *bus.Bus, f func(ctx context.Context)) *process {
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{bus: b, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		f(ctx)
	}()
	return p
}

// end stops the process in good order.
func (p *process) end() {
	p.stop()
	<-p.done
	p.bus.Close()
}

// startHost starts an orchestrator; mu is held.
func (f *stage) startHost() {
	f.nodes++
	settings := f.cfg.Settings
	settings.CompactionPrompt = cmp.Or(settings.CompactionPrompt, "Summarize the conversation.")
	b := f.broker.Connect(f.t, bus.Options{})
	node := protocol.ID(fmt.Sprintf("o%d", f.nodes))
	h, err := session.New(session.Config{
		Bus: b, Node: node, Settings: settings,
		Models: func(string) (session.Model, error) {
			return session.Model{Model: f.model, Name: "scripted", ID: "scripted", Provider: "script"}, nil
		},
		System: func(string) string { return "You are a script." },
		Policy: func(_, name string) session.Policy {
			switch name {
			case "read_file", "list_files", "search_files", "read_image":
				return session.Policy{Permission: protocol.ReadOnly, Idempotent: true}
			}
			return session.Policy{Permission: protocol.ReadWrite}
		},
	})
	require.NoError(f.t, err)
	ready := make(chan struct{})
	f.hosts[node] = run(b, func(ctx context.Context) {
		if err := h.Run(ctx, func() { close(ready) }); err != nil {
			f.t.Errorf("orchestrator %s: %v", node, err)
		}
	})
	<-ready
}

// startWorker starts the worker on its root; mu is held.
func (f *stage) startWorker() {
	registry, err := f.tools.registry(f.s, f.cfg)
	require.NoError(f.t, err)
	b := f.broker.Connect(f.t, bus.Options{})
	w, err := worker.New(worker.Config{
		Bus: b, Backend: &sandboxtest.Fake{Ops: tool.Ops()}, Tools: registry, Root: f.root,
		ID: "w1", Host: "h", User: "u", Home: "/nowhere", Slots: 16, Grace: -1,
	})
	require.NoError(f.t, err)
	f.worker = run(b, func(ctx context.Context) {
		if err := w.Run(ctx); err != nil {
			f.t.Errorf("worker: %v", err)
		}
	})
	<-w.SignedOn()
	for !f.leased(b, w.ID(), w.Boot()) {
		time.Sleep(latency)
	}
}

// leased reports that a worker can be given a workspace.
func (f *stage) leased(b *bus.Bus, id protocol.ID, boot string) bool {
	leases, err := b.Leases(f.t.Context())
	require.NoError(f.t, err)
	return slices.ContainsFunc(leases, func(l bus.Lease) bool { return l.Kind == bus.LeaseWorker && l.ID == id && l.Boot == boot })
}

// kill ends a process as kill -9 does: the broker sees its connections close, and
// it says nothing more.
func (f *stage) kill(p *process) {
	p.bus.Close()
	p.stop()
	f.over.Go(func() { <-p.done })
}

// workerDies kills the worker and starts it again. What it wrote down after its
// death it had no time for.
func (f *stage) workerDies() {
	f.over.Go(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		p := f.worker
		f.kill(p)
		<-p.done
		if err := os.RemoveAll(filepath.Join(f.root, "journal")); err != nil {
			f.t.Errorf("remove the journal: %v", err)
		}
		f.startWorker()
	})
}

// owner is the orchestrator that owns the session, and its node; mu is held.
func (f *stage) owner(ctx context.Context, b *bus.Bus) (*process, protocol.ID) {
	own, _, err := b.LastOwn(ctx, stackSession)
	if err != nil || own == nil {
		return nil, ""
	}
	return f.hosts[own.Node], own.Node
}

// replace takes the owner away, killed or stopped, and brings another standby.
func (f *stage) replace(ctx context.Context, b *bus.Bus, killed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, node := f.owner(ctx, b)
	if p == nil {
		return
	}
	delete(f.hosts, node)
	if killed {
		f.kill(p)
	} else {
		p.end()
	}
	f.startHost()
}

// configure applies a config statement: orchestrators that run have to start anew.
func (f *stage) configure(st enginetest.Statement) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range st.Config {
		if err := f.cfg.Set(s); err != nil {
			f.t.Errorf("%s:%d: %v", f.s.File, st.Line, err)
		}
	}
	n := len(f.hosts)
	for node, p := range f.hosts {
		p.end()
		delete(f.hosts, node)
	}
	for range n {
		f.startHost()
	}
}

// close ends everything and waits for it.
func (f *stage) close() {
	f.mu.Lock()
	for _, p := range f.hosts {
		p.end()
	}
	if f.worker != nil {
		f.worker.end()
	}
	f.mu.Unlock()
	f.over.Wait()
}
