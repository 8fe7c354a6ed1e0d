package chaos_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/llm/llmtest"
)

// A power cut takes the last second of each stream, and not of all alike: the trace
// may forget a call whose claim and result are still there. What is asked next must
// not be answered by them.
func TestPower_TheTraceForgetsWhatTheResultsKnow(t *testing.T) {
	t.Parallel()
	r := bareRig(t)
	req := r.request(r.brain.teach(func(v view) []llmtest.Step {
		switch {
		case v.Asked == 0:
			return step(1, "")
		case v.Asked == 2:
			return step(2, "") // will be forgotten
		case v.Told[3]:
			return answer("after all")
		case v.Asked >= 4:
			return step(3, "")
		}
		return []llmtest.Step{llmtest.Hold("never")}
	}))
	machine := r.powerUp()
	r.connect()
	sid := r.run(req)
	r.asked(req, 2)
	machine.cut()
	trace := r.streamDir("TRACE")
	kept := filepath.Join(r.dir, "kept")
	require.NoError(t, exec.Command("cp", "-a", trace, kept).Run())

	machine = r.powerUp()
	r.asked(req, 4)
	machine.cut()
	require.NoError(t, os.RemoveAll(trace))
	require.NoError(t, os.Rename(kept, trace))

	r.powerUp()
	lines := r.verify(sid)
	require.Contains(t, lines, `tool_call_output[step-3,completed]"did-3\n"`)
	require.Contains(t, lines, `text[assistant]"after all"`)
	done := map[string]int{}
	for line, n := range r.ledger() {
		_, name, _ := strings.Cut(line, " ")
		done[name] += n
	}
	require.Equal(t, map[string]int{"step-1": 1, "step-2": 1, "step-3": 1}, done)
}

// A machine is a broker, an orchestrator and a worker that lose their power together.
type machine []*proc

func (r *rig) powerUp() machine {
	r.t.Helper()
	return machine{r.broker(), r.orchestrator("o1", ""), r.worker("")}
}

func (m machine) cut() {
	for _, p := range m {
		p.kill()
	}
}

// streamDir is where the broker keeps a stream.
func (r *rig) streamDir(name string) string {
	r.t.Helper()
	found, err := filepath.Glob(filepath.Join(r.dir, "jetstream", "jetstream", "*", "streams", "*"+name))
	require.NoError(r.t, err)
	require.Len(r.t, found, 1)
	return found[0]
}
