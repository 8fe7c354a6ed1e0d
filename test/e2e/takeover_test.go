package e2e_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/client"
	"rookery/internal/llm/llmtest"
	"rookery/protocol"
)

func TestFleet_ASuccessorFinishesTheTaskOfAKilledOrchestrator(t *testing.T) {
	f := newFleet(t)
	s := f.endpoint()
	f.orchestrator()
	f.worker(0)
	f.ready(1)
	s.Reply(calls("echo counted >> once.txt; cat once.txt")...)
	s.Reply(llmtest.Text("half"), llmtest.Hold("killed"))
	c := f.dial()
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	task, err := c.Run(ctx, client.RunRequest{
		Prompt: "survive", Options: protocol.TaskOptions{Approve: "allow-all"}, New: protocol.SessionOptions{Workspace: f.workspace},
	})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(s.Requests()) == 2 }, patience, pollEvery)

	second := f.orchestrator()
	f.orchestrators[0].kill()
	s.Reply(says("a whole sentence")...)
	require.Equal(t, protocol.TaskCompleted, f.follow(ctx, c, task).Status)
	var outputs int
	for _, r := range f.verify(task.Session) {
		if _, ok := r.Message.Payload.(protocol.ToolCallOutput); ok {
			outputs++
		}
	}
	require.Equal(t, 1, outputs)
	require.FileExists(t, filepath.Join(f.workspace, "once.txt"))
	require.Len(t, s.Requests(), 3)
	f.stop(second, f.workers[0])
}

func TestRun_AfterTheFirstWasKilled(t *testing.T) {
	w := newWorld(t)
	s := w.endpoint()
	s.Reply(llmtest.Text("half a"), llmtest.Hold("never"))
	first := w.start("rookery", "run", "--json", "the one that is killed")
	first.says("half a")
	first.kill()

	s.Reply(says("the second answers")...)
	require.Contains(t, w.ok("run", "the one that comes after"), "the second answers")
	w.verify(w.session("the one that comes after"))

	// The task of the first is not lost: who comes back to it ends it.
	sid := w.session("the one that is killed")
	s.Choose(func(llmtest.Request) []llmtest.Step { return says("a whole sentence") })
	w.ok("abort", string(sid))
	w.verify(sid)
}
