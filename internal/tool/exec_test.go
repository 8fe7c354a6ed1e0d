package tool_test

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/sandbox"
	"rookery/internal/tool"
	"rookery/protocol"
)

func TestExec_OutputAsPrinted(t *testing.T) {
	b := setup(t)
	require.Equal(t, "one\ntwo\nthree\n", b.ok("exec_command", object{"cmd": "echo one; echo two >&2; echo three"}))
	require.Equal(t, "[no output]", b.ok("exec_command", object{"cmd": "true"}))
	require.Equal(t, "x\n[exit code: 3]", b.ok("exec_command", object{"cmd": "echo x; exit 3"}))
	require.Equal(t, "x\n[killed by signal: SIGSEGV]", b.ok("exec_command", object{"cmd": "printf x; kill -SEGV $$"}))
}

func TestExec_KnowsItsCall(t *testing.T) {
	b := setup(t)
	require.NoError(t, os.Mkdir(filepath.Join(b.dir, "sub"), 0o755))
	out := b.ok("exec_command", object{"cmd": "echo $ROOKERY_CALL_ID; pwd", "cwd": "sub"})
	require.Equal(t, "s/1-0\n"+b.dir+"/sub\n", out)
	require.Contains(t, b.fails("exec_command", object{"cmd": "pwd", "cwd": "/"}), "outside the workspace")
	require.Contains(t, b.fails("exec_command", object{"cmd": "pwd", "cwd": "nosuch"}), "nosuch")
}

func TestExec_BadBytes(t *testing.T) {
	b := setup(t)
	require.Equal(t, "a\ufffdb\ufffd\u20ac\ufffd", b.ok("exec_command", object{"cmd": `printf 'a\377b\000\342\202'; sleep 0.05; printf '\254\342\202'`}))
	require.Contains(t, b.fails("exec_command", object{"cmd": "echo \x00"}), "NUL byte")
	for _, n := range []int{128 << 10, 1 << 20} {
		require.Contains(t, b.fails("exec_command", object{"cmd": strings.Repeat("#", n)}), "at most 131071 are possible: write it to a file first")
	}
	require.Equal(t, "[no output]", b.ok("exec_command", object{"cmd": strings.Repeat("#", 128<<10-1)}))
}

func TestExec_TimeoutKillsAndKeepsOutput(t *testing.T) { // L053
	b := setup(t)
	res := b.run(b.call("exec_command", object{"cmd": "echo so far; sleep 1000", "timeout_ms": 300}))
	require.Equal(t, "so far\n[tool timeout: exceeded 300ms]", res.Output)
	require.Equal(t, protocol.Failed, res.StopReason)
	require.Equal(t, "timeout", res.Reason)

	call := b.call("exec_command", object{"cmd": "sleep 1000", "timeout_ms": 900_000})
	call.TimeoutMS = 50
	require.Equal(t, "[tool timeout: exceeded 50ms]", b.run(call).Output)
}

func TestExec_InterruptedKeepsOutput(t *testing.T) { // L056
	b := setup(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	res := b.runIn(ctx, b.call("exec_command", object{"cmd": "trap 'echo bye; exit' TERM; echo ready; while :; do :; done"}), func(all string) {
		if all == "ready\n" {
			cancel(tool.ErrInterrupted)
		}
	})
	require.Equal(t, "ready\nbye\n"+protocol.NoteInterrupted, res.Output)
	require.Equal(t, protocol.Aborted, res.StopReason)
}

func TestExec_GrandchildDoesNotHoldTheCall(t *testing.T) {
	b := setup(t)
	require.Equal(t, "done\n", b.ok("exec_command", object{"cmd": "sleep 1000 & (setsid sleep 1000 &); echo done"}))
}

func TestExec_FullOutputIsInAFile(t *testing.T) { // L054
	b := setup(t)
	call := b.call("exec_command", object{"cmd": "seq 100000; exit 2"})
	call.MaxOutput = 50
	res := b.run(call)
	path := filepath.Join(b.scratch, "output", "1-0-1.txt")
	require.True(t, strings.HasPrefix(res.Output, "1\n2\n3\n"))
	require.True(t, strings.HasSuffix(res.Output, "\n[output truncated: exceeded 50 chars]\n[full output: "+path+"]\n[exit code: 2]"), res.Output)
	full, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Len(t, strings.Fields(string(full)), 100_000)
	require.Contains(t, b.ok("read_file", object{"path": path, "offset": 99_999}), "100000")
}

// A walled session sees its directories elsewhere than the host does.
type walled struct {
	sandbox.Session
	view *sandbox.View
}

func (w walled) Do(ctx context.Context, op string, args json.RawMessage) (json.RawMessage, error) {
	return tool.Ops().Run(ctx, w.view, op, args)
}

func (w walled) Paths() sandbox.Paths {
	return sandbox.Paths{Workspace: w.view.Workspace.Path, Scratch: w.view.Scratch.Path}
}

func TestExec_FullOutputIsNamedAsTheSessionSeesIt(t *testing.T) {
	b := setup(t)
	work, err := os.OpenRoot(b.dir)
	require.NoError(t, err)
	scratch, err := os.OpenRoot(b.scratch)
	require.NoError(t, err)
	view := &sandbox.View{Workspace: sandbox.Tree{Path: "/workspace", Root: work}, Scratch: sandbox.Tree{Path: "/tmp/session", Root: scratch}}
	t.Cleanup(func() { require.NoError(t, view.Close()) })
	b.session = tool.NewSession(walled{b.session.Session, view}, sandbox.Limits{})
	call := b.call("exec_command", object{"cmd": "seq 9999"})
	call.MaxOutput = 50
	require.Contains(t, b.run(call).Output, "[full output: /tmp/session/output/1-0-1.txt]")
	require.Contains(t, b.ok("read_file", object{"path": "/tmp/session/output/1-0-1.txt", "offset": 9999}), "9999\n")
}

func TestExec_BytesThatAreNoTextLeaveNoFile(t *testing.T) {
	b := setup(t)
	res := b.run(b.call("exec_command", object{"cmd": `head -c 3000000 /dev/zero | tr '\0' '\377'`}))
	require.NotContains(t, res.Output, "truncated", "a run of bad bytes is one character")
	files, err := os.ReadDir(filepath.Join(b.scratch, "output"))
	require.NoError(t, err)
	require.Empty(t, files)
}

func TestExec_EndlessOutputIsStopped(t *testing.T) {
	b := setup(t)
	res := b.run(b.call("exec_command", object{"cmd": "yes"}))
	require.Contains(t, res.Output, "[output limit: killed after 4194304 bytes]")
	require.Equal(t, protocol.Failed, res.StopReason)
	require.Equal(t, "output_limit", res.Reason)
	require.Less(t, len(res.Output), 17_000)
	info, err := os.Stat(filepath.Join(b.scratch, "output", "1-0-1.txt"))
	require.NoError(t, err)
	require.EqualValues(t, printed, info.Size())
}

func TestExec_MemoryIsFlat(t *testing.T) {
	s, err := sandbox.NewNone(tool.Ops()).Open(t.Context(), sandbox.SessionSpec{Workspace: t.TempDir(), Scratch: t.TempDir()})
	require.NoError(t, err)
	session := tool.NewSession(s, sandbox.Limits{Output: -1})
	defer func() { require.NoError(t, session.Close()) }()
	b := setup(t)
	peak := peakHeap(t)
	res := b.tools.Execute(t.Context(), session, b.call("exec_command", object{"cmd": "head -c 1000000000 /dev/zero"}), func(string) {})
	require.Less(t, peak(), uint64(32<<20))
	require.Contains(t, res.Output, ".txt, its first 64 MiB]")
}

// peakHeap watches the heap; the function it returns ends that and tells how much
// it grew at most.
func peakHeap(t *testing.T) func() uint64 {
	t.Helper()
	look := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	runtime.GC()
	before, peak := look(), uint64(0)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			peak = max(peak, look())
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	}()
	return func() uint64 {
		close(stop)
		<-done
		return max(peak, before) - before
	}
}

func TestExec_ParallelCallsDoNotMix(t *testing.T) {
	b := setup(t)
	var wg sync.WaitGroup
	for _, s := range []string{"a", "b", "c", "d"} {
		wg.Go(func() {
			call := b.call("exec_command", object{"cmd": "for i in 1 2 3 4 5; do echo " + s + "; done"})
			res := b.tools.Execute(t.Context(), b.session, call, func(string) {})
			if res.Output != strings.Repeat(s+"\n", 5) {
				t.Error(res.Output)
			}
		})
	}
	wg.Wait()
}

func TestExec_SessionCloseEndsCalls(t *testing.T) {
	b := setup(t)
	ready := make(chan struct{})
	done := make(chan protocol.Result)
	go func() {
		done <- b.tools.Execute(t.Context(), b.session, b.call("exec_command", object{"cmd": "echo ready; sleep 1000"}), func(s string) {
			if strings.HasPrefix(s, "ready") {
				close(ready)
			}
		})
	}()
	<-ready
	require.NoError(t, b.session.Close())
	res := <-done
	require.Equal(t, protocol.Failed, res.StopReason)
	require.Equal(t, "ready\n[killed: worker_stopped]", res.Output)
	require.Contains(t, b.fails("exec_command", object{"cmd": "true"}), "closed")
}

func TestExec_OldFullOutputsMakeRoom(t *testing.T) {
	b := setup(t, named("big", func(_ context.Context, c *tool.Call, w io.Writer) (tool.Report, error) {
		_, _ = io.WriteString(w, strings.Repeat("x", 3<<20))
		return tool.Report{}, nil
	}))
	for _, d := range []string{"1-0-1", "2-0-1", "3-0-1"} {
		call := b.call("big", object{})
		call.Dispatch = d
		require.Contains(t, b.run(call).Output, d+".txt]")
	}
	files, err := os.ReadDir(filepath.Join(b.scratch, "output"))
	require.NoError(t, err)
	require.Len(t, files, 2)
	require.Equal(t, "2-0-1.txt", files[0].Name())
}
