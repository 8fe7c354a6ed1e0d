package enginetest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"rookery/internal/engine"
	"rookery/internal/trace"
	"rookery/protocol"
)

// DirVariable names the environment variable that puts another folder in the
// place of a runner's own scenarios.
const DirVariable = "ROOKERY_SCENARIOS"

// Files returns the scenario files below dir, sorted, or those of DirVariable's
// folder; a relative one is taken from root. It fails the test when there are none.
func Files(t *testing.T, root, dir string) []string {
	t.Helper()
	if other := os.Getenv(DirVariable); other != "" {
		dir = other
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(root, dir)
		}
	}
	var files []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) == ".txtar" {
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenario files in %s: %v", dir, err)
	}
	return files
}

// Run plays a scenario against an engine in a bubble of fake time, fails t for what
// goes wrong on the way, and returns what came out; Scenario.Check compares it. The
// records also have to pass trace.Verify, the output CheckFragments.
func Run(t *testing.T, s *Scenario) *Result {
	t.Helper()
	return RunWith(t, s, nil)
}

// RunWith is Run with a model that picks its replies (Model.Pick), for scripts in
// which it is not known how many requests there will be.
func RunWith(t *testing.T, s *Scenario, pick func(engine.Request) int) *Result {
	t.Helper()
	var result *Result
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, s)
		if pick != nil {
			r.model.Pick = pick
		}
		defer r.tools.Close()
		defer r.stop()
		for _, st := range s.Script {
			r.step(st)
			synctest.Wait()
		}
		r.idle(patience)
		r.stop()
		r.tools.Close()
		result = r.result()
		for _, err := range CheckFragments(result.Output) {
			t.Errorf("%s: %v", s.File, err)
		}
		for _, f := range r.verify() {
			t.Errorf("%s: trace: %s", s.File, f)
		}
	})
	return result
}

// patience is how long, in fake time, a script waits for what does not come.
const patience = 24 * time.Hour

// step does one statement of the script.
func (r *runner) step(st Statement) {
	switch st.Verb {
	case VerbModel:
	case VerbTool:
		r.tools.Set(*st.Tool)
	case VerbConfig:
		r.configure(st)
	case VerbAt:
		r.hook(st)
	case VerbWait:
		time.Sleep(st.For)
	case VerbWaitIdle:
		if !r.idle(patience) {
			r.fault(st.Line, "the session does not become idle")
		}
	case VerbExpect:
		if got := r.compactability(); got != st.Text {
			r.fault(st.Line, "compactability is %s, not %s", got, st.Text)
		}
	case VerbResume:
		r.resume(st.Bare)
	case VerbRun, VerbStart, VerbCompact, VerbSteer, VerbAbort, VerbApprove, VerbRelease, VerbKill:
		accepted := r.act(st)
		synctest.Wait()
		if accepted && (st.Verb == VerbRun || st.Verb == VerbCompact) && !r.idle(patience) {
			r.fault(st.Line, "%s does not end", st.Verb)
		}
	}
}

func (r *runner) configure(st Statement) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range st.Config {
		if err := r.cfg.Set(s); err != nil {
			r.t.Errorf("%s:%d: %v", r.s.File, st.Line, err)
		}
	}
	r.engine = nil
	r.tools.Limit(r.cfg)
}

func (r *runner) hook(st Statement) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hooks = append(r.hooks, &hook{At: st.At, line: st.Line, left: st.At.Nth})
}

// idle waits until no run is left, or for d.
func (r *runner) idle(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		r.mu.Lock()
		busy, done := r.busy != "", r.done
		r.mu.Unlock()
		if !busy {
			return true
		}
		select {
		case <-done:
		case <-timer.C:
			return false
		}
	}
}

// stop abandons the run under way, if there is one, and waits for it.
func (r *runner) stop() {
	r.mu.Lock()
	if r.busy == "" {
		r.mu.Unlock()
		return
	}
	r.dropped, r.next = true, nil
	cancel, done := r.cancel, r.done
	r.mu.Unlock()
	cancel(engine.ErrAbandoned)
	<-done
}

// resume drops all state and rebuilds it; a task that ran is gone on with.
func (r *runner) resume(bare bool) {
	r.stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refold(bare)
	r.goOn()
}

// refold builds the state from the lines of the records, as another process would;
// mu is held and no run is under way.
func (r *runner) refold(bare bool) {
	r.bare = r.bare || bare
	r.tear()
	fold := trace.NewFold()
	for _, rec := range r.records {
		m, err := protocol.Decode(slices.Clone(rec.Message.Encode()))
		if err != nil {
			r.t.Errorf("%s: decode a record: %v", r.s.File, err)
			continue
		}
		if !bare || !isOwnLine(m.String()) {
			fold.Add(rec.Context, m)
		}
	}
	st := fold.State()
	r.fold, r.engine = fold, nil
	r.placer = trace.Placer{Context: st.Context, Compacting: st.Task != nil && st.Task.Compaction != nil}
}

// tear drops a last token_usage that waits for its request_end: the two are stored
// as one, except those of a compaction, of which viewers get one only.
func (r *runner) tear() {
	n := len(r.records) - 1
	if n < 0 || r.records[n].Message.Kind() != (protocol.TokenUsage{}).Kind() {
		return
	}
	for _, rec := range slices.Backward(r.records) {
		switch rec.Message.Payload.(type) {
		case protocol.CompactionBegin:
			return
		case protocol.CompactionEnd, protocol.TaskBegin:
			r.records = r.records[:n]
			return
		default:
		}
	}
}

func (r *runner) compactability() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.compactable()
}

func (r *runner) compactable() string {
	if r.cfg.Settings.NoCompaction {
		return "unsupported"
	}
	return r.fold.Compactability()
}

func (r *runner) result() *Result {
	res := &Result{Output: r.output, Traces: map[int][]protocol.Message{}, Runs: r.tools.Runs(), Compactability: r.compactability()}
	for _, rec := range r.records {
		res.Traces[rec.Context] = append(res.Traces[rec.Context], rec.Message)
	}
	for _, req := range r.model.Requests() {
		res.Inputs = append(res.Inputs, req.Input)
		res.Histories = append(res.Histories, req.History)
	}
	return res
}

// verify holds the records against the rules, unless a task has no end: nobody went
// on with it.
func (r *runner) verify() []string {
	if r.bare || r.fold.State().Task != nil {
		return nil
	}
	var faults []string
	for _, f := range trace.Verify(r.records, nil) {
		faults = append(faults, f.String())
	}
	return faults
}

func (r *runner) fault(line int, format string, args ...any) {
	r.t.Errorf("%s:%d: %s", r.s.File, line, fmt.Sprintf(format, args...))
}
