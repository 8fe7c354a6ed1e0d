package chaos_test

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/llm/llmtest"
)

// The disk under the broker fills up in the middle of a task: the task ends as
// failed and says why, nothing that was not stored is shown as if it were, and when
// there is room again the session goes on.
func TestDisk_FullUnderTheBroker(t *testing.T) {
	t.Parallel()
	r := bareRig(t)
	r.env["ROOKERY_SESSION_TRACE_TIMEOUT"] = "3s"
	d := r.smallDisk()
	broker := d.broker()
	r.connect()
	o := r.orchestrator("o1", "")
	r.worker("")
	gate, large := "the disk is full", strings.Repeat("no room ", 20_000)
	req := r.request(r.brain.teach(func(v view) []llmtest.Step {
		if !v.Told[1] {
			return step(1, "")
		}
		return []llmtest.Step{llmtest.Hold(gate), llmtest.Text(large), llmtest.Usage(10, 5)}
	}))
	sid := r.run(req)
	r.asked(req, 2)
	d.do("head -c 4G /dev/zero > jetstream/ballast || true")
	r.endpoint.Release(gate)
	o.says("trace write failed")
	doctor := r.doctor()
	require.Contains(t, doctor, "FAIL writes to the trace, ")
	require.Contains(t, doctor, "is its disk full")
	d.do("rm jetstream/ballast")
	broker.kill()
	d.broker()
	require.Contains(t, r.doctor(), "ok   writes to the trace, ")
	lines := r.verify(sid)
	require.Contains(t, lines, "+task_end(failed)")
	require.Contains(t, strings.Join(lines, "\n"), `abort("trace write failed: append to trace of `+string(sid)+`: the broker does not answer`)
	require.NotContains(t, strings.Join(lines, "\n"), "no room no room")

	req.ID, req.Prompt = "again", r.brain.teach(func(view) []llmtest.Step { return answer("there is room") })
	r.run(req)
	r.wait(func() bool { return count(r.lines(sid), "+task_end(completed)") == 1 }, because("the next task does not end"))
}

func (r *rig) doctor() string {
	r.t.Helper()
	p := r.start("rookery", r.env, "doctor")
	<-p.done
	return p.stderr.String()
}

// A disk of its own that a broker's store is on.
type disk struct {
	r      *rig
	holder *proc // its mount namespace is the only one that has it
}

func (r *rig) smallDisk() disk {
	r.t.Helper()
	h := r.start("unshare", r.env, "-Urm", "sh", "-c", "mkdir jetstream && mount -t tmpfs -o size=2g tmpfs jetstream && echo mounted && exec sleep 1000")
	h.says("mounted")
	return disk{r, h}
}

// inside are the arguments that have nsenter run a command where the disk is.
func (d disk) inside(command ...string) []string {
	return append([]string{"-t", strconv.Itoa(d.holder.cmd.Process.Pid), "-U", "-m", "--preserve-credentials"}, command...)
}

func (d disk) broker() *proc {
	d.r.t.Helper()
	p := d.r.start("nsenter", d.r.env, d.inside(binary(d.r.t, "nats-server"),
		"-a", d.r.host, "-p", "4222", "-js", "-sd", filepath.Join(d.r.dir, "jetstream"))...)
	p.says("Server is ready")
	return p
}

func (d disk) do(script string) {
	d.r.t.Helper()
	p := d.r.start("nsenter", d.r.env, d.inside("sh", "-c", "cd \"$0\" && "+script, d.r.dir)...)
	<-p.done
	require.Zero(d.r.t, p.code, p.stderr)
}
