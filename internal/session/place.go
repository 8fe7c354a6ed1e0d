package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"rookery/internal/bus"
	"rookery/protocol"
)

// A holding says who holds a session's workspace.
type holding struct {
	ref    protocol.WorkspaceRef
	worker protocol.WorkerInfo
	others []protocol.WorkerInfo // who else lives
	// lost is the worker with which an earlier workspace went; this one is new
	// and empty.
	lost protocol.ID
}

var (
	// errGone is a worker's answer that a workspace it made is not there any more.
	errGone = errors.New("workspace is gone")
	// errAway reports that the worker which made a workspace is not there.
	errAway = errors.New("is not there")
)

// hold makes sure that a living worker holds the session's workspace: the one it is
// assigned to, or for a named directory another one of the same host. A workspace
// that a worker made is there or nowhere: when that worker stays away, or its
// directory is gone, another worker makes a new one.
func (f *fleet) hold(ctx context.Context, sid protocol.ID, st agentState, want protocol.WorkspaceRef) (holding, error) {
	h, err := f.offer(ctx, sid, st, want)
	if !want.Made {
		return h, err
	}
	for end := f.patience(want.Worker); away(err) && time.Now().Before(end); { // it may just be starting again
		if !sleep(ctx, min(500*time.Millisecond, time.Until(end))) {
			return h, context.Cause(ctx)
		}
		h, err = f.offer(ctx, sid, st, want)
	}
	if !away(err) && !errors.Is(err, errGone) {
		return h, err
	}
	h, err = f.offer(ctx, sid, st, protocol.WorkspaceRef{Epoch: want.Epoch})
	h.lost = want.Worker
	return h, err
}

func away(err error) bool { return errors.Is(err, errAway) || errors.Is(err, bus.ErrGone) }

// offer asks the candidates, best first, until one holds the workspace.
func (f *fleet) offer(ctx context.Context, sid protocol.ID, st agentState, want protocol.WorkspaceRef) (holding, error) {
	workers, err := f.living(ctx)
	if err != nil {
		return holding{}, err
	}
	candidates := f.candidates(sid, workers, st, want)
	if len(candidates) == 0 {
		return holding{}, noWorker(workers, st, want)
	}
	var refusals []error
	for _, w := range candidates {
		ask := want
		ask.Worker = w.Worker
		r, err := f.ask(ctx, w.Worker, "adopt", protocol.Control{Session: sid, Workspace: ask})
		switch {
		case err != nil:
			refusals = append(refusals, fmt.Errorf("worker %s: %w", w.Worker, err))
		case r.Gone:
			refusals = append(refusals, fmt.Errorf("worker %s: %w: %s", w.Worker, errGone, r.Error))
		case !r.OK:
			refusals = append(refusals, fmt.Errorf("worker %s: %s", w.Worker, r.Error))
		default:
			f.took(w.Worker, want)
			ref := r.Workspace
			ref.Worker, ref.Host, ref.Epoch = w.Worker, w.Host, want.Epoch
			return holding{ref: ref, worker: w, others: workers}, nil
		}
	}
	return holding{}, errors.Join(refusals...)
}

// patience is when a worker counts as gone: so long after it was last heard, or
// after this process began to listen.
func (f *fleet) patience(wid protocol.ID) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	heard, ok := f.at[wid]
	if !ok {
		heard = f.since
	}
	return heard.Add(f.replaceAfter)
}

// draining reports a worker that said so; the caller holds mu.
func (f *fleet) draining(w protocol.WorkerInfo) bool {
	h := f.beats[w.Worker]
	return h.Boot == w.Boot && h.Draining
}

// took counts a session that a worker got since its last heartbeat.
func (f *fleet) took(wid protocol.ID, want protocol.WorkspaceRef) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if want.Worker != wid {
		f.placed[wid]++
	}
}

// candidates lists who may hold the workspace: the holder first, then by most free
// slots, then by fewest sessions.
func (f *fleet) candidates(sid protocol.ID, workers []protocol.WorkerInfo, st agentState, want protocol.WorkspaceRef) []protocol.WorkerInfo {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []protocol.WorkerInfo
	for _, w := range workers {
		if !f.draining(w) && eligible(w, st, want) {
			out = append(out, w)
		}
	}
	out = allowing(out, want)
	slices.SortStableFunc(out, func(a, b protocol.WorkerInfo) int {
		if (a.Worker == want.Worker) != (b.Worker == want.Worker) {
			if a.Worker == want.Worker {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(f.free(b), f.free(a)), cmp.Compare(f.busy(a), f.busy(b)), cmp.Compare(weight(sid, a), weight(sid, b)))
	})
	return out
}

// eligible reports whether a worker may hold a session's workspace at all.
func eligible(w protocol.WorkerInfo, st agentState, want protocol.WorkspaceRef) bool {
	holder := w.Worker == want.Worker
	switch {
	case st.Worker != "" && w.Worker != st.Worker && (w.Private || want.Path == "" || want.Made || w.Host != want.Host):
		return false
	case want.Worker != "" && (want.Path == "" || want.Made) && !holder:
		return false
	case want.Host != "" && w.Host != want.Host:
		return false
	case st.Worker == "" && w.Private && !holder:
		return false
	case !w.Private && !slices.Contains(w.Pools, protocol.ID(st.Pool)):
		return false
	case !slices.ContainsFunc(w.Tools, func(t protocol.Tool) bool { return t.Workspace }):
		return false // it has no workspaces
	}
	return labelled(w, st.Labels)
}

func labelled(w protocol.WorkerInfo, labels map[string]string) bool {
	for k, v := range labels {
		if have, ok := w.Labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// allowing prefers the workers that say they allow a named directory. When none
// does, a link may still lead there.
func allowing(workers []protocol.WorkerInfo, want protocol.WorkspaceRef) []protocol.WorkerInfo {
	if want.Path == "" || want.Made {
		return workers
	}
	some := slices.DeleteFunc(slices.Clone(workers), func(w protocol.WorkerInfo) bool {
		return !slices.ContainsFunc(w.Allow, func(a string) bool {
			rel, err := filepath.Rel(a, want.Path)
			return err == nil && filepath.IsLocal(rel)
		})
	})
	if len(some) == 0 {
		return workers
	}
	return some
}

// free is how many more calls a worker can run; the caller holds mu.
func (f *fleet) free(w protocol.WorkerInfo) int {
	if h, ok := f.beats[w.Worker]; ok && h.Boot == w.Boot {
		return h.Free
	}
	return w.Slots
}

// busy is how many sessions a worker has; the caller holds mu.
func (f *fleet) busy(w protocol.WorkerInfo) int {
	n := f.placed[w.Worker]
	if h := f.beats[w.Worker]; h.Boot == w.Boot {
		n += h.Sessions
	}
	return n
}

// weight spreads sessions over workers that are equal otherwise, also when several
// orchestrators place at once.
func weight(sid protocol.ID, w protocol.WorkerInfo) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(string(sid) + "/" + string(w.Worker)))
	return h.Sum64()
}

func noWorker(workers []protocol.WorkerInfo, st agentState, want protocol.WorkspaceRef) error {
	switch {
	case want.Made:
		return fmt.Errorf("worker %s, which made the workspace %s, %w", want.Worker, want.Path, errAway)
	case st.Worker != "":
		return fmt.Errorf("worker %s is not there", st.Worker)
	case want.Worker != "" && want.Path != "":
		return fmt.Errorf("no living worker on host %s can hold %s (it was with %s): start one there that allows it", want.Host, want.Path, want.Worker)
	}
	what := "worker of pool " + st.Pool
	if len(st.Labels) > 0 {
		what += " with " + labelText(st.Labels)
	}
	var known []string
	for _, w := range workers {
		if !w.Private {
			known = append(known, string(w.Worker))
		}
	}
	if len(known) == 0 {
		return fmt.Errorf("no %s is there: start one with toolworker", what)
	}
	return fmt.Errorf("no %s is there (others: %s)", what, strings.Join(known, ", "))
}

func labelText(labels map[string]string) string {
	var all []string
	for k, v := range labels {
		all = append(all, k+"="+v)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
