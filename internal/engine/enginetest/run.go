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
	var result *Result
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, s)
		defer r.stop()
		for _, st := range s.Script {
			r.step(st)
			synctest.Wait()
		}
		r.idle(patience)
		r.stop()
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
		r.resume()
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
	r.dropped, r.open, r.next = true, true, nil
	cancel, done := r.cancel, r.done
	r.mu.Unlock()
	cancel(engine.ErrAbandoned)
	<-done
}

// resume drops all state and rebuilds it.
func (r *runner) resume() {
	r.stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refold()
}

// refold builds the state from the lines of the records, as another process would;
// mu is held and no run is under way.
func (r *runner) refold() {
	fold := trace.NewFold()
	for _, rec := range r.records {
		m, err := protocol.Decode(slices.Clone(rec.Message.Encode()))
		if err != nil {
			r.t.Errorf("%s: decode a record: %v", r.s.File, err)
			continue
		}
		fold.Add(rec.Context, m)
	}
	r.fold, r.placer, r.engine = fold, trace.Placer{Context: fold.State().Context}, nil
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

// verify holds the records against the rules, unless a run was cut off in the
// middle: what nobody took over has no end.
func (r *runner) verify() []string {
	if r.open {
		return nil
	}
	var faults []string
	for _, f := range trace.Verify(r.records, nil) {
		faults = append(faults, f.String())
	}
	return faults
}

// resumeOf is what the engine starts from. The slices are copies: the fold goes on
// while the engine runs.
func resumeOf(s trace.State) engine.Resume {
	return engine.Resume{
		Context:       s.Context,
		Rotate:        s.Rotate,
		Summary:       s.Summary,
		History:       slices.Clone(s.History),
		Pending:       slices.Clone(s.Pending),
		IDs:           s.IDs.Clone(),
		Usage:         s.Usage,
		ContextTokens: s.ContextTokens,
		Turns:         s.Turns,
		Requests:      s.Requests,
	}
}

func (r *runner) fault(line int, format string, args ...any) {
	r.t.Errorf("%s:%d: %s", r.s.File, line, fmt.Sprintf(format, args...))
}
