package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"rookery/internal/bus"
	"rookery/protocol"
)

// A fleet knows which workers there are and how busy they are. It is safe for
// concurrent use.
type fleet struct {
	bus *bus.Bus

	mu    sync.Mutex
	beats map[protocol.ID]protocol.Heartbeat
	at    map[protocol.ID]time.Time // of the last heartbeat
}

func newFleet(b *bus.Bus) *fleet {
	return &fleet{bus: b, beats: map[protocol.ID]protocol.Heartbeat{}, at: map[protocol.ID]time.Time{}}
}

func (f *fleet) watch(context.Context) (stop func(), err error) {
	return f.bus.WatchHeartbeats(func(h protocol.Heartbeat) {
		f.mu.Lock()
		f.beats[h.Worker], f.at[h.Worker] = h, time.Now()
		f.mu.Unlock()
	})
}

// beating reports a worker whose process said moments ago that it runs a call.
func (f *fleet) beating(wid protocol.ID, boot, call string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.beats[wid]
	return h.Boot == boot && time.Since(f.at[wid]) < 5*time.Second && slices.Contains(h.Running, call)
}

// living returns the workers whose lease lives.
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
	return slices.DeleteFunc(all, func(w protocol.WorkerInfo) bool { return boots[w.Worker] != w.Boot }), nil
}

// place finds a worker for a new session and has it make or adopt the workspace.
func (f *fleet) place(ctx context.Context, sid protocol.ID, st agentState, want protocol.WorkspaceRef) (protocol.WorkspaceRef, error) {
	ref, _, err := f.hold(ctx, sid, st, want)
	return ref, err
}

// hold makes sure that a living worker holds the session's workspace: the one it is
// assigned to, or for a named directory another one of the same host.
func (f *fleet) hold(ctx context.Context, sid protocol.ID, st agentState, want protocol.WorkspaceRef) (protocol.WorkspaceRef, protocol.WorkerInfo, error) {
	workers, err := f.living(ctx)
	if err != nil {
		return want, protocol.WorkerInfo{}, err
	}
	candidates := f.candidates(workers, st, want)
	if len(candidates) == 0 {
		return want, protocol.WorkerInfo{}, noWorker(workers, st, want)
	}
	var refusals []error
	for _, w := range candidates {
		ask := want
		ask.Worker = w.Worker
		r, err := f.ask(ctx, w.Worker, "adopt", protocol.Control{Session: sid, Workspace: ask})
		switch {
		case err != nil:
			refusals = append(refusals, fmt.Errorf("worker %s: %w", w.Worker, err))
		case !r.OK:
			refusals = append(refusals, fmt.Errorf("worker %s: %s", w.Worker, r.Error))
		default:
			ref := r.Workspace
			ref.Worker, ref.Host, ref.Epoch = w.Worker, w.Host, want.Epoch
			return ref, w, nil
		}
	}
	return want, protocol.WorkerInfo{}, errors.Join(refusals...)
}

// ask bounds what a worker may take to answer: a session waits for it.
func (f *fleet) ask(ctx context.Context, wid protocol.ID, verb string, c protocol.Control) (protocol.ControlReply, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return f.bus.Control(ctx, wid, verb, c)
}

// candidates lists who may hold the workspace, best first.
func (f *fleet) candidates(workers []protocol.WorkerInfo, st agentState, want protocol.WorkspaceRef) []protocol.WorkerInfo {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []protocol.WorkerInfo
	for _, w := range workers {
		switch {
		case st.Worker != "" && w.Worker != st.Worker && (w.Private || want.Path == "" || w.Host != want.Host):
		case want.Worker != "" && want.Path == "" && w.Worker != want.Worker:
		case want.Host != "" && w.Host != want.Host:
		case st.Worker == "" && w.Private && w.Worker != want.Worker:
		case !w.Private && !slices.Contains(w.Pools, protocol.ID(st.Pool)):
		case f.beats[w.Worker].Draining:
		default:
			out = append(out, w)
		}
	}
	slices.SortStableFunc(out, func(a, b protocol.WorkerInfo) int {
		if (a.Worker == want.Worker) != (b.Worker == want.Worker) {
			if a.Worker == want.Worker {
				return -1
			}
			return 1
		}
		return cmp.Compare(f.free(b), f.free(a))
	})
	return out
}

func (f *fleet) free(w protocol.WorkerInfo) int {
	if h, ok := f.beats[w.Worker]; ok && h.Boot == w.Boot {
		return h.Free
	}
	return w.Slots
}

func noWorker(workers []protocol.WorkerInfo, st agentState, want protocol.WorkspaceRef) error {
	switch {
	case st.Worker != "":
		return fmt.Errorf("worker %s is not there", st.Worker)
	case want.Worker != "" && want.Path != "":
		return fmt.Errorf("no living worker on host %s can hold %s (it was with %s)", want.Host, want.Path, want.Worker)
	}
	var known []string
	for _, w := range workers {
		if !w.Private {
			known = append(known, string(w.Worker))
		}
	}
	if len(known) == 0 {
		return fmt.Errorf("no worker of pool %s is there: start one with toolworker", st.Pool)
	}
	return fmt.Errorf("no worker of pool %s is there (others: %s)", st.Pool, strings.Join(known, ", "))
}

// tools returns what the session may call: the tools of the worker that holds its
// workspace, or the subset that it was started with.
func (f *fleet) tools(st agentState, w protocol.WorkerInfo) []protocol.Tool {
	if len(st.Tools) == 0 {
		return w.Tools
	}
	var out []protocol.Tool
	for _, t := range w.Tools {
		if slices.Contains(st.Tools, t.Name) {
			out = append(out, t)
		}
	}
	return out
}

// instructions reads the workspace's AGENTS.md through its worker; none is "".
func (f *fleet) instructions(ctx context.Context, sid protocol.ID, ref protocol.WorkspaceRef) string {
	r, err := f.ask(ctx, ref.Worker, "read", protocol.Control{Session: sid, Workspace: ref, Path: "AGENTS.md"})
	if err != nil || !r.OK {
		return ""
	}
	return protocol.Clean(r.Content)
}

// register takes a worker that signs on: its queues exist before it is accepted.
func (f *fleet) register(ctx context.Context, w protocol.WorkerInfo) error {
	if _, err := protocol.ParseID(string(w.Worker)); err != nil {
		return fmt.Errorf("worker id: %w", err)
	}
	if err := f.conflict(ctx, w); err != nil {
		return err
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
