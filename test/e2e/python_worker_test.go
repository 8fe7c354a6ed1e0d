package e2e_test

import (
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/llm/llmtest"
	"rookery/protocol"
)

// A worker that knows nothing but the contract of the bus serves calls of a pool
// beside workers that have other tools.
func TestPythonWorker_ServesAPool(t *testing.T) {
	f := newFleet(t)
	s := f.endpoint()
	f.orchestrator()
	f.worker(0)
	script, err := filepath.Abs("../../examples/worker-python/worker.py")
	require.NoError(t, err)
	python := f.spawn(exec.Command("python3", script, f.env["NATS_URL"], "py-1"), nil)
	python.says("signed on as py-1")
	f.ready(2)

	words := string(arguments(map[string]string{"text": "one two\nthree\n\n"}))
	s.Reply(llmtest.Call("a", "count_words", words), llmtest.Call("b", "exec_command", `{"cmd":"echo here"}`), llmtest.Usage(10, 5))
	s.Reply(llmtest.Call("c", "count_words", `{"text":""}`), llmtest.Usage(10, 5))
	s.Reply(says("done")...)
	sid, end := f.task("count")
	require.Equal(t, protocol.TaskCompleted, end.Status)
	outputs := map[string]protocol.ToolCallOutput{}
	for _, r := range f.verify(sid) {
		if o, ok := r.Message.Payload.(protocol.ToolCallOutput); ok {
			outputs[o.ToolCallID] = o
		}
	}
	require.Equal(t, "line 1: 2 words\nline 2: 1 words\nline 3: 0 words\n", outputs["a"].Output)
	require.Equal(t, "here\n", outputs["b"].Output)
	require.Equal(t, "[no output]", outputs["c"].Output)
	for _, o := range outputs {
		require.Equal(t, protocol.Completed, o.StopReason)
	}
	require.Contains(t, f.ok("status"), "py-1")

	python.signal(syscall.SIGTERM)
	require.Zero(t, python.wait(), python.stderr)
	require.Empty(t, python.stderr.String())
}
