package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"rookery/internal/bus"
	"rookery/protocol"
)

// A fleet knows which workers there are and how busy they are. It is safe for
// concurrent use.
type fleet struct {
	bus          *bus.Bus
	builtin      []protocol.Tool
	replaceAfter time.Duration

	mu     sync.Mutex
	since  time.Time // when it began to listen
	beats  map[protocol.ID]protocol.Heartbeat
	at     map[protocol.ID]time.Time    // of the last heartbeat
	placed map[protocol.ID]int          // sessions given to a worker since then
	texts  map[string]protocol.ToolSpec // of tools, to be shared; see shared
}

func newFleet(cfg Config) *fleet {
	return &fleet{
		bus: cfg.Bus, builtin: cfg.Builtin, replaceAfter: cfg.ReplaceAfter,
		beats: map[protocol.ID]protocol.Heartbeat{}, at: map[protocol.ID]time.Time{}, placed: map[protocol.ID]int{},
		texts: map[string]protocol.ToolSpec{},
	}
}

func (f *fleet) watch(context.Context) (stop func(), err error) {
	f.mu.Lock()
	f.since = time.Now()
	f.mu.Unlock()
	return f.bus.WatchHeartbeats(func(h protocol.Heartbeat) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.beats[h.Worker], f.at[h.Worker] = h, time.Now()
		delete(f.placed, h.Worker)
	})
}

// beating reports a worker whose process said moments ago that it runs a call.
func (f *fleet) beating(wid protocol.ID, boot, call string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.beats[wid]
	return h.Boot == boot && time.Since(f.at[wid]) < 5*time.Second && slices.Contains(h.Running, call)
}

// background lists what runs on in a session without a call.
func (f *fleet) background(sid, wid protocol.ID) []protocol.Background {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.at[wid]) > bus.LeaseTTL {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(f.beats[wid].Background), func(b protocol.Background) bool { return b.Session != sid })
}

// living returns the workers whose lease lives and that were not refused.
func (f *fleet) living(ctx context.Context) ([]protocol.WorkerInfo, error) {
	leases, err := f.bus.Leases(ctx)
	if err != nil {
		return nil, fmt.Errorf("read who lives: %w", err)
	}
	boots := map[protocol.ID]string{}
	for _, l := range leases {
		if l.Kind == bus.LeaseWorker {
			boots[l.ID] = l.Boot
		}
	}
	all, err := f.bus.Workers(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the workers: %w", err)
	}
	return slices.DeleteFunc(all, func(w protocol.WorkerInfo) bool { return boots[w.Worker] != w.Boot || w.Refused != "" }), nil
}

// ask bounds what a worker may take to answer: a session waits for it.
func (f *fleet) ask(ctx context.Context, wid protocol.ID, verb string, c protocol.Control) (protocol.ControlReply, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return f.bus.Control(ctx, wid, verb, c)
}

// tools returns what the session may call: the tools of the worker that holds its
// workspace, and those of its pool that need none and that the holder does not have
// (pooled); or the subset of both that it was started with.
func (f *fleet) tools(st agentState, h holding) (all []protocol.Tool, pooled map[string]bool) {
	pooled = map[string]bool{}
	add := func(t protocol.Tool) bool {
		have := slices.ContainsFunc(all, func(o protocol.Tool) bool { return o.Name == t.Name })
		if have || len(st.Tools) > 0 && !slices.Contains(st.Tools, t.Name) {
			return false
		}
		all = append(all, f.shared(t))
		return true
	}
	for _, t := range h.worker.Tools {
		add(t)
	}
	for _, w := range h.others {
		if w.Private || !slices.Contains(w.Pools, protocol.ID(st.Pool)) {
			continue
		}
		for _, t := range w.Tools {
			if !t.Workspace && !offers(h.worker, t.Name) && add(t) {
				pooled[t.Name] = true
			}
		}
	}
	return all, pooled
}

// shared returns t with the texts of an equal tool that was seen before: each
// session reads its tools anew and keeps them, and there are many sessions.
func (f *fleet) shared(t protocol.Tool) protocol.Tool {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen, ok := f.texts[t.Name]
	if ok && seen.Description == t.Description && bytes.Equal(seen.Parameters, t.Parameters) {
		t.ToolSpec = seen
		return t
	}
	f.texts[t.Name] = t.ToolSpec
	return t
}

func offers(w protocol.WorkerInfo, name string) bool {
	return slices.ContainsFunc(w.Tools, func(t protocol.Tool) bool { return t.Name == name })
}

// instructions reads the workspace's AGENTS.md through its worker; none is "".
func (f *fleet) instructions(ctx context.Context, sid protocol.ID, ref protocol.WorkspaceRef) string {
	r, err := f.ask(ctx, ref.Worker, "read", protocol.Control{Session: sid, Workspace: ref, Path: "AGENTS.md"})
	if err != nil || !r.OK {
		return ""
	}
	return protocol.Clean(r.Content)
}

// register takes a worker that signs on: its queues exist before it is accepted. One
// that is refused is in the catalogue as well, with the reason, for people to see.
func (f *fleet) register(ctx context.Context, w protocol.WorkerInfo) error {
	if _, err := protocol.ParseID(string(w.Worker)); err != nil {
		return fmt.Errorf("worker id: %w", err)
	}
	w.Refused = ""
	if err := f.acceptable(ctx, w); err != nil {
		w.Refused = err.Error()
		return errors.Join(err, f.bus.PutWorker(ctx, w))
	}
	if err := f.bus.EnsureConsumer(ctx, bus.ToWorker(w.Worker)); err != nil {
		return err
	}
	for _, p := range w.Pools {
		if err := f.bus.EnsureConsumer(ctx, bus.ToPool(p)); err != nil {
			return err
		}
	}
	return f.bus.PutWorker(ctx, w)
}

func (f *fleet) acceptable(ctx context.Context, w protocol.WorkerInfo) error {
	if err := f.reserved(w); err != nil {
		return err
	}
	return f.conflict(ctx, w)
}

// reserved refuses a tool that has the name of a built-in one and is called in another
// way: what a built-in tool may do without being asked goes by its name. Optional
// arguments may differ, so that versions can be mixed.
func (f *fleet) reserved(w protocol.WorkerInfo) error {
	for _, t := range w.Tools {
		i := slices.IndexFunc(f.builtin, func(b protocol.Tool) bool { return b.Name == t.Name })
		if i < 0 {
			continue
		}
		if b := f.builtin[i]; t.Workspace != b.Workspace || !slices.Equal(required(t), required(b)) {
			return fmt.Errorf("tool %s has the name of a built-in one, which requires %v in a workspace: give it another name", t.Name, required(b))
		}
	}
	return nil
}

func required(t protocol.Tool) []string {
	var schema struct {
		Required []string `json:"required"`
	}
	_ = json.Unmarshal(t.Parameters, &schema) // what is no schema requires nothing
	slices.Sort(schema.Required)
	return schema.Required
}

// conflict refuses a tool whose schema differs from that of a living worker of the
// same pool: a model sees one tool of a name.
func (f *fleet) conflict(ctx context.Context, w protocol.WorkerInfo) error {
	others, err := f.living(ctx)
	if err != nil {
		return err
	}
	for _, o := range others {
		if o.Worker == w.Worker || o.Private || w.Private || !slices.ContainsFunc(o.Pools, func(p protocol.ID) bool { return slices.Contains(w.Pools, p) }) {
			continue
		}
		for _, t := range w.Tools {
			i := slices.IndexFunc(o.Tools, func(u protocol.Tool) bool { return u.Name == t.Name })
			if i >= 0 && string(o.Tools[i].Parameters) != string(t.Parameters) {
				return fmt.Errorf("tool %s has another schema on worker %s of the same pool: give both workers the same version", t.Name, o.Worker)
			}
		}
	}
	return nil
}
