package tool_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/tool"
	"rookery/protocol"
)

// long is longer than any test; a wait for it ends with what is awaited.
const long = 60_000

// background starts a command that goes to the background at once and returns its
// id and what it had printed by then.
func (b *bench) background(args object) (id, printed string) {
	b.t.Helper()
	args["yield_time_ms"] = 1
	out := b.ok("exec_command", args)
	printed, note, ok := strings.Cut(out, "[still running as command ")
	require.True(b.t, ok, out)
	id, _, _ = strings.Cut(note, ":")
	return id, printed
}

// until reads a background command until it has printed text, and returns all.
func (b *bench) until(id, printed, text string) string {
	b.t.Helper()
	for !strings.Contains(printed, text) {
		out := b.ok("input_command", object{"id": id, "wait_ms": 10})
		require.Contains(b.t, out, "is still running]")
		printed += strings.TrimSuffix(out, "[command "+id+" is still running]")
	}
	return printed
}

func TestBackground_CommandOutlivesItsCall(t *testing.T) {
	b := setup(t)
	id, first := b.background(object{"cmd": "echo one; read x; echo got $x; exit 4", "stdin": true})
	require.Equal(t, "1-0", id)
	running := b.session.Background()
	require.Len(t, running, 1)
	require.Equal(t, "1-0", running[0].ID)
	require.Equal(t, "echo one; read x; echo got $x; exit 4", running[0].Command)

	rest := b.ok("input_command", object{"id": id, "input": "hi\n", "wait_ms": long})
	require.Equal(t, "one\ngot hi\n[command 1-0 has ended]\n[exit code: 4]", first+rest)
	require.Empty(t, b.session.Background())
	require.Equal(t, "there is no command 1-0: none runs in the background", b.fails("input_command", object{"id": id}))
}

func TestBackground_CommandThatEndsInTimeNeverGoesThere(t *testing.T) {
	b := setup(t)
	require.Equal(t, "x\n[exit code: 3]", b.ok("exec_command", object{"cmd": "echo x; exit 3", "yield_time_ms": long}))
	require.Equal(t, "[no output]", b.ok("exec_command", object{"cmd": "true", "tty": true}))
	require.Empty(t, b.session.Background())
}

func TestBackground_InputEnds(t *testing.T) {
	b := setup(t)
	id, _ := b.background(object{"cmd": "cat; echo over", "stdin": true})
	require.Equal(t, "abcover\n[command 1-0 has ended]", b.ok("input_command", object{"id": id, "input": "abc", "eof": true, "wait_ms": long}))

	id, _ = b.background(object{"cmd": "sleep 1000"})
	require.Contains(t, b.fails("input_command", object{"id": id, "input": "x"}), "has no input: start it with stdin or tty")
	require.Contains(t, b.fails("input_command", object{"id": id, "rows": 9}), "no terminal")
}

func TestBackground_CommandThatDoesNotReadHoldsNobody(t *testing.T) {
	b := setup(t)
	id, _ := b.background(object{"cmd": "sleep 1000", "stdin": true})
	much := object{"id": id, "input": strings.Repeat("x", 300_000), "wait_ms": 1}
	require.Contains(t, b.ok("input_command", much), "still running")
	require.Contains(t, b.fails("input_command", much), "has not read its earlier input yet")
	require.Contains(t, b.ok("kill_command", object{"id": id}), "was killed")
}

func TestBackground_Terminal(t *testing.T) {
	b := setup(t)
	id, first := b.background(object{"cmd": "stty size; tty; read x; stty size", "tty": true, "rows": 30, "cols": 100})
	first = b.until(id, first, "/dev/pts/")
	require.Contains(t, first, "30 100\r\n")
	rest := b.ok("input_command", object{"id": id, "input": "\n", "rows": 40, "cols": 120, "wait_ms": long})
	require.Contains(t, rest, "40 120\r\n")
	require.Contains(t, rest, "[command 1-0 has ended]")

	id, _ = b.background(object{"cmd": "sleep 1000", "tty": true})
	require.Contains(t, b.ok("input_command", object{"id": id, "input": "\x03", "wait_ms": long}), "[killed by signal: SIGINT]")
}

func TestBackground_Killed(t *testing.T) {
	b := setup(t)
	id, out := b.background(object{"cmd": "trap 'echo bye; exit' TERM; echo $$ ready; while :; do :; done"})
	out = b.until(id, out, "ready")
	require.Equal(t, "bye\n[command 1-0 was killed]", b.ok("kill_command", object{"id": id}))
	require.False(t, alive(t, out))
	require.Empty(t, b.session.Background())

	id, out = b.background(object{"cmd": "trap 'echo hup' HUP; echo ready; while :; do :; done"})
	b.until(id, out, "ready")
	out = b.ok("kill_command", object{"id": id, "signal": "HUP"})
	require.Contains(t, b.until(id, out, "hup"), "still running")
	out = b.ok("kill_command", object{"id": id, "signal": "KILL"})
	if !strings.Contains(out, "has ended") { // a slow machine
		out = b.ok("input_command", object{"id": id, "wait_ms": long})
	}
	require.Contains(t, out, "[killed by signal: SIGKILL]")
}

// alive reports whether the process whose id a text begins with runs.
func alive(t *testing.T, text string) bool {
	t.Helper()
	pid, err := strconv.Atoi(strings.Fields(text)[0])
	require.NoError(t, err)
	return syscall.Kill(pid, 0) == nil
}

func TestBackground_EndsWithItsSession(t *testing.T) {
	b := setup(t)
	id, out := b.background(object{"cmd": "echo $$ ready; sleep 1000"})
	out = b.until(id, out, "ready")
	require.True(t, alive(t, out))
	require.NoError(t, b.session.Close())
	require.False(t, alive(t, out))
	require.Contains(t, b.fails("exec_command", object{"cmd": "true", "yield_time_ms": 1}), "closed")
}

func TestBackground_OwnTimeoutHolds(t *testing.T) {
	b := setup(t)
	id, out := b.background(object{"cmd": "echo x; sleep 1000", "timeout_ms": 100})
	res := b.run(b.call("input_command", object{"id": id, "wait_ms": long}))
	require.Equal(t, "x\n[command 1-0 has ended]\n[tool timeout: exceeded 100ms]", out+res.Output)
	require.Equal(t, protocol.Failed, res.StopReason)
}

func TestBackground_InterruptEndsTheWaitingOnly(t *testing.T) {
	b := setup(t)
	id, _ := b.background(object{"cmd": "echo ready; read x; echo $x", "stdin": true})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(tool.ErrInterrupted)
	call := b.call("input_command", object{"id": id, "wait_ms": long})
	require.Equal(t, protocol.Aborted, b.runIn(ctx, call, func(string) {}).StopReason)
	require.Contains(t, b.ok("input_command", object{"id": id, "input": "on\n", "wait_ms": long}), "on\n[command 1-0 has ended]")
}

func TestBackground_MiddleOfMuchOutputIsLeftOut(t *testing.T) {
	b := setup(t)
	id, first := b.background(object{"cmd": "seq 200000; touch all; read x; echo end", "stdin": true})
	b.exists("all")
	out := b.ok("input_command", object{"id": id, "input": "\n", "wait_ms": long})
	require.Less(t, len(first+out), 33_000)
	require.True(t, strings.HasPrefix(first+out, "1\n2\n3\n"), first)
	require.Regexp(t, `\n\[\d+ bytes left out\]\n`, out)
	require.Contains(t, out, "\n199999\n200000\nend\n[command 1-0 has ended]")
}

// exists waits for a file that a command makes.
func (b *bench) exists(name string) {
	b.t.Helper()
	require.Equal(b.t, "[no output]", b.ok("exec_command", object{"cmd": "until [ -e " + name + " ]; do sleep 0.01; done"}))
}

func TestBackground_RunesAreWholeInEachCall(t *testing.T) {
	b := setup(t)
	id, first := b.background(object{"cmd": `printf 'a\342'; touch part; read x; printf '\202\254'`, "stdin": true})
	b.exists("part")
	all := first + b.ok("input_command", object{"id": id, "input": "\n", "wait_ms": long})
	require.Equal(t, "a€[command 1-0 has ended]", strings.ReplaceAll(all, "\n", ""))
}

func TestBackground_Bounded(t *testing.T) {
	b := setup(t)
	var changes atomic.Int32
	b.session.OnBackground(func() { changes.Add(1) })
	ids := map[string]bool{}
	for range 16 {
		id, _ := b.background(object{"cmd": "sleep 1000"})
		ids[id] = true
	}
	require.Len(t, ids, 16, "each has its own id")
	require.EqualValues(t, 16, changes.Load())
	require.Contains(t, b.fails("exec_command", object{"cmd": "sleep 1000", "yield_time_ms": 1}), "16 commands run in the background already")
	for id := range ids {
		require.Contains(t, b.ok("kill_command", object{"id": id}), fmt.Sprintf("[command %s was killed]", id))
	}
	b.background(object{"cmd": "sleep 1000"})
}
