package e2e_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/llm/llmtest"
	"rookery/protocol"
)

// user writes the user's configuration file.
func (w *world) user(yaml string) {
	w.t.Helper()
	dir := filepath.Join(w.env["HOME"], ".config", "rookery")
	require.NoError(w.t, os.MkdirAll(dir, 0o700))
	require.NoError(w.t, os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(yaml), 0o600))
}

// gone waits until a process has ended.
func (w *world) gone(pid string) {
	w.t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(pid))
	require.NoError(w.t, err)
	require.Eventually(w.t, func() bool { return syscall.Kill(n, 0) != nil }, patience, pollEvery, "process %d runs on", n)
}

func (w *world) read(name string) string {
	w.t.Helper()
	b, err := os.ReadFile(filepath.Join(w.workspace, name))
	require.NoError(w.t, err)
	return string(b)
}

// Whoever waits for a run learns that its task left something running, and that it
// ends.
func TestRun_TellsWhatRunsInTheBackground(t *testing.T) {
	w := newWorld(t)
	s := w.endpoint()
	s.Reply(llmtest.Call("a", "exec_command", `{"cmd":"echo $$ > pid; echo up; sleep 1000","yield_time_ms":2000}`), llmtest.Usage(10, 5))
	s.Reply(llmtest.Call("b", "input_command", `{"id":"1-0","wait_ms":0}`), llmtest.Usage(10, 5))
	s.Reply(says("started")...)
	p := w.run("run", "--approve", "allow-all", "start a server")
	require.Zero(t, p.code, p.stderr)
	require.Contains(t, p.stderr.String(), "still running in the background, it ends with this run: command 1-0, for ")
	w.gone(w.read("pid"))
	w.verify(w.session("start a server"))
}

func TestRun_ToolsOfTheUsersFile(t *testing.T) {
	w := newWorld(t)
	s := w.endpoint()
	file := filepath.Join(w.dir, "tools.yaml")
	require.NoError(t, os.WriteFile(file, []byte("tools:\n  - {name: shout, description: Shouts., argv: [tr, a-z, A-Z], parameters: {type: object, properties: {text: {type: string}}}}\n"), 0o600))
	w.user("worker:\n  tools_file: " + file + "\n")
	s.Reply(llmtest.Call("a", "shout", `{"text":"hello"}`), llmtest.Usage(10, 5))
	s.Reply(says("done")...)
	out := w.ok("run", "--json", "--approve", "allow-all", "shout")
	require.Contains(t, out, `{\"TEXT\":\"HELLO\"}`)
	w.verify(w.session("shout"))

	require.NoError(t, os.WriteFile(file, []byte("tools:\n  - {name: exec_command, description: x, argv: [x]}\n"), 0o600))
	p := w.run("run", "hi")
	require.NotZero(t, p.code)
	require.Contains(t, p.stderr.String(), file+":2:12: tool name exec_command is that of a built-in tool")

	require.NoError(t, os.Mkdir(filepath.Join(w.workspace, ".rookery"), 0o700))
	w.file(".rookery/config.yaml", "worker:\n  tools_file: evil.yaml\n")
	p = w.run("run", "hi")
	require.Equal(t, protocol.ExitUsage, p.code)
	require.Contains(t, p.stderr.String(), "can't be set by a project file")
}

// Labels choose the worker; status tells what each one does; a drained worker
// finishes what runs and ends, and what it left in the background ends with it.
func TestFleet_LabelsStatusAndDrain(t *testing.T) {
	f := newFleet(t)
	s := f.endpoint()
	f.orchestrator()
	f.worker(0)
	gpu := f.start("toolworker", "--root", filepath.Join(f.dir, "gpu"), "--allow", f.workspace, "--slots", "3", "--label", "gpu=1")
	f.ready(2)
	s.Reply(llmtest.Call("a", "exec_command", `{"cmd":"echo $$ > pid; sleep 1000","yield_time_ms":2000}`), llmtest.Usage(10, 5))
	s.Reply(llmtest.Call("b", "exec_command", `{"cmd":"echo > begun; until [ -e go ]; do sleep 0.02; done; echo went"}`), llmtest.Usage(10, 5))
	s.Reply(says("done")...)
	p := f.run("run", "--label", "gpu=2", "nowhere")
	require.Equal(t, protocol.ExitUsage, p.code, p.stderr)
	require.Contains(t, p.stderr.String(), "no worker of pool default with gpu=2 is there")

	run := f.start("rookery", "run", "--label", "gpu=1", "-C", f.workspace, "--approve", "allow-all", "work")
	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(f.workspace, "begun")); return err == nil }, patience, pollEvery)
	sid := f.session("work")
	require.Regexp(t, `background +command 1-0, for \d+s: echo \$\$ > pid`, f.ok("show", string(sid)))
	status := f.ok("status")
	require.Regexp(t, `2 of 3 slots free +sandbox none +pool default gpu=1 +1 background commands`, status)
	require.Contains(t, status, "calls: 1 open")
	require.Regexp(t, `pool default +0 waiting +\d given +\d+ free slots`, status)
	require.Regexp(t, `o1 +1 sessions running`, status)

	_, rest, _ := strings.Cut(gpu.stderr.String(), "worker=")
	wid, _, _ := strings.Cut(rest, " ")
	require.Contains(t, f.drained(wid), "takes no more calls and ends after 1 that run; 1 background commands end with it")
	require.Eventually(t, func() bool { return strings.Contains(f.ok("status"), "draining") }, patience, pollEvery)
	f.file("go", "")
	require.Zero(t, run.wait(), run.stderr)
	require.Contains(t, run.stdout.String(), "done")
	require.Zero(t, gpu.wait(), gpu.stderr)
	f.gone(f.read("pid"))
	p = f.start("toolworker", "drain", wid)
	require.Equal(t, protocol.ExitFailed, p.wait())
	require.Contains(t, p.stderr.String(), "is not there")
	f.verify(sid)
}

func (f *fleet) drained(wid string) string {
	f.t.Helper()
	p := f.start("toolworker", "drain", wid)
	require.Zero(f.t, p.wait(), p.stderr)
	return p.stdout.String()
}

// A workspace that a dead worker had made is replaced, and the model is told.
func TestFleet_SessionOutlivesTheMachineOfItsWorkspace(t *testing.T) {
	f := newFleet(t)
	s := f.endpoint()
	f.orchestrator()
	f.worker(0)
	f.ready(1)
	s.Reply(calls("echo kept > file")...)
	s.Reply(says("written")...)
	require.Zero(t, f.run("run", "--approve", "allow-all", "write").code)
	sid := f.session("write")
	f.workers[0].kill()
	f.worker(1)
	f.ready(1)
	s.Reply(calls("ls -A | wc -l")...)
	s.Reply(says("empty")...)
	began := time.Now()
	p := f.run("run", "-s", string(sid), "--approve", "allow-all", "look")
	require.Zero(t, p.code, p.stderr)
	require.Less(t, time.Since(began), patience)
	requests := s.Requests()
	require.Contains(t, string(requests[len(requests)-2].Body), "[workspace replaced: worker ")
	f.verify(sid)
}
