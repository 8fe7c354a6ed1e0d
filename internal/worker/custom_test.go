package worker_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/tool"
	"rookery/internal/worker"
	"rookery/protocol"
)

// toolsFile makes a registry with tools of a file.
func toolsFile(t *testing.T, text string) *tool.Registry {
	t.Helper()
	name := filepath.Join(t.TempDir(), "tools.yaml")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	r, err := tool.Standard(name)
	require.NoError(t, err)
	return r
}

func TestCustom_InTheWorkspaceAndWithout(t *testing.T) {
	b := setup(t)
	w := b.serve(worker.Config{Tools: toolsFile(t, `
tools:
  - {name: here, description: x, argv: [sh, -c, 'pwd; cat; touch made']}
  - {name: apart, description: x, workspace: false, max_output_length: 40, argv: [sh, -c, 'pwd; cat; touch made; ls -A; seq 9999']}
`)})
	b.dispatch(bus.ToWorker(w.ID()), call("1-0-1", "here", map[string]any{"a": 1}))
	ws := filepath.Join(b.root, "ws", "s1")
	require.Equal(t, ws+"\n"+`{"a":1}`, b.result("1-0-1").Output)
	require.FileExists(t, filepath.Join(ws, "made"))

	for _, dispatch := range []string{"2-0-1", "3-0-1"} {
		b.dispatch(bus.ToPool("default"), call(dispatch, "apart", map[string]any{}))
		res := b.result(dispatch)
		require.Equal(t, protocol.Completed, res.StopReason, res.Output)
		dir, _, _ := strings.Cut(res.Output, "\n")
		require.NotEqual(t, ws, dir)
		require.Contains(t, res.Output, "[output truncated: exceeded 40 chars]")
		require.NotContains(t, res.Output, "full output", "it went with the call")
	}
	for _, dir := range []string{"ws", "scratch"} {
		left, err := os.ReadDir(filepath.Join(b.root, dir))
		require.NoError(t, err)
		require.Len(t, left, 1, "only the session's is left in %s", dir)
	}
}

func TestCustom_WhatACallLeftIsRemovedAtTheStart(t *testing.T) {
	b := setup(t)
	mkdir(t, b.root, "ws", "call.0123", "sub")
	mkdir(t, b.root, "scratch", "call.0123")
	mkdir(t, b.root, "ws", "s1")
	b.serve(worker.Config{})
	require.NoDirExists(t, filepath.Join(b.root, "ws", "call.0123"))
	require.NoDirExists(t, filepath.Join(b.root, "scratch", "call.0123"))
	require.DirExists(t, filepath.Join(b.root, "ws", "s1"))
}

// A pool's workers need not have the same tools: a call finds the one that has its.
func TestWorker_PassesCallsOfOtherToolsOn(t *testing.T) {
	b := setup(t)
	b.serve(worker.Config{Root: t.TempDir(), Slots: 4})
	b.serve(worker.Config{Root: t.TempDir(), Slots: 4})
	has := b.serve(worker.Config{Root: t.TempDir(), Slots: 1, Tools: toolsFile(t, `
tools:
  - {name: rare, description: x, workspace: false, argv: [echo, rare]}
`)})
	for n := range 50 { // two slots of one worker may have a call at once, one about to pass it on
		dispatch := fmt.Sprintf("%d-0-1", n+1)
		b.dispatch(bus.ToPool("default"), call(dispatch, "rare", map[string]any{}))
		res := b.result(dispatch)
		require.Equal(t, "rare\n", res.Output)
		require.Equal(t, has.ID(), res.Worker)
	}
}
