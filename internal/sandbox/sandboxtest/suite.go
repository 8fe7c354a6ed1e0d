package sandboxtest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"rookery/internal/sandbox"
)

// Run runs the suite. open makes the backend with the given operations; a
// confining backend whose helper is another process must offer them there, too.
func Run(t *testing.T, open func(t *testing.T, ops sandbox.Ops) sandbox.Backend) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, *bench){
		"Check": testCheck, "Exit": testExit, "Merge": testMerge, "Signalled": testSignalled,
		"KillIsPolite": testKillIsPolite, "KillWins": testKillWins, "Timeout": testTimeout, "KillTree": testKillTree,
		"DaemonDies": testDaemonDies, "Stdin": testStdin, "NoStdin": testNoStdin, "Signal": testSignal,
		"Terminal": testTerminal, "TerminalInput": testTerminalInput, "Environment": testEnvironment,
		"Descriptors": testDescriptors, "Invalid": testInvalid, "Dir": testDir, "LargeOutput": testLargeOutput,
		"LateReader": testLateReader, "Parallel": testParallel, "Ops": testOps, "Close": testClose, "Usage": testUsage,
	} {
		t.Run(name, func(t *testing.T) { test(t, newBench(t, open(t, ops()))) })
	}
}

// A bench is an open session and its directories.
type bench struct {
	backend sandbox.Backend
	sandbox.Session
	workspace string
}

func newBench(t *testing.T, b sandbox.Backend) *bench {
	t.Helper()
	spec := sandbox.SessionSpec{ID: "s1", Workspace: t.TempDir(), Scratch: t.TempDir(), Env: []string{"FROM_SESSION=yes"}}
	s, err := b.Open(t.Context(), spec)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return &bench{backend: b, Session: s, workspace: spec.Workspace}
}

func ops() sandbox.Ops {
	return sandbox.Ops{
		"read": func(_ context.Context, v *sandbox.View, args json.RawMessage) (any, error) {
			var name string
			if err := json.Unmarshal(args, &name); err != nil {
				return nil, err
			}
			b, err := v.Workspace.Root.ReadFile(name)
			return string(b), err
		},
		"panic": func(context.Context, *sandbox.View, json.RawMessage) (any, error) { panic("broken") },
		"big": func(context.Context, *sandbox.View, json.RawMessage) (any, error) {
			return strings.Repeat("x", sandbox.MaxOp), nil
		},
	}
}

func sh(script string) sandbox.CallSpec {
	return sandbox.CallSpec{Argv: []string{"sh", "-c", script}, Merge: true}
}

func (b *bench) start(t *testing.T, spec sandbox.CallSpec) sandbox.Call {
	t.Helper()
	c, err := b.Start(t.Context(), spec)
	require.NoError(t, err)
	return c
}

// run runs a command to its end and returns what it printed.
func (b *bench) run(t *testing.T, spec sandbox.CallSpec) (string, sandbox.Result) {
	t.Helper()
	c := b.start(t, spec)
	out, _ := c.Output()
	text, err := io.ReadAll(out)
	require.NoError(t, err)
	r, err := c.Wait()
	require.NoError(t, err)
	return string(text), r
}

// expect reads until the output ends with want.
func expect(t *testing.T, r io.Reader, want string) {
	t.Helper()
	var got []byte
	one := make([]byte, 1)
	for !strings.HasSuffix(string(got), want) {
		_, err := io.ReadFull(r, one)
		require.NoError(t, err, "waiting for %q, got %q", want, got)
		got = append(got, one...)
	}
}

// free requires that nobody holds the lock file: its holders are gone.
func (b *bench) free(t *testing.T, name string) {
	t.Helper()
	f, err := os.Open(filepath.Join(b.workspace, name))
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	require.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), "%s is still held", name)
}

func testCheck(t *testing.T, b *bench) {
	r, err := b.backend.Check(t.Context())
	require.NoError(t, err)
	require.Equal(t, b.backend.Name(), r.Backend)
	require.NotEmpty(t, r.Lines)
}

func testExit(t *testing.T, b *bench) {
	spec := sh("echo out; echo err >&2; exit 3")
	spec.Merge = false
	c := b.start(t, spec)
	stdout, stderr := c.Output()
	out, err := io.ReadAll(stdout)
	require.NoError(t, err)
	errs, err := io.ReadAll(stderr)
	require.NoError(t, err)
	r, err := c.Wait()
	require.NoError(t, err)
	require.Equal(t, "out\n", string(out))
	require.Equal(t, "err\n", string(errs))
	require.Equal(t, 3, r.Exit)
	require.Equal(t, sandbox.Exited, r.Reason)
	require.Nil(t, c.Stdin())
}

func testMerge(t *testing.T, b *bench) {
	out, r := b.run(t, sh("for i in 1 2 3; do echo o$i; echo e$i >&2; done"))
	require.Equal(t, "o1\ne1\no2\ne2\no3\ne3\n", out)
	require.Zero(t, r.Exit)
}

func testSignalled(t *testing.T, b *bench) {
	_, r := b.run(t, sh("kill -SEGV $$; sleep 10"))
	require.Equal(t, int(syscall.SIGSEGV), r.Signal)
	require.Equal(t, 128+int(syscall.SIGSEGV), r.Exit)
	require.Equal(t, sandbox.Exited, r.Reason)
}

func testKillIsPolite(t *testing.T, b *bench) {
	c := b.start(t, sh("trap 'echo bye; exit 4' TERM; echo ready; while :; do sleep 0.02; done"))
	out, _ := c.Output()
	expect(t, out, "ready\n")
	c.Kill(sandbox.WorkerStopped)
	c.Kill(sandbox.Killed) // the first reason counts
	expect(t, out, "bye\n")
	r, err := c.Wait()
	require.NoError(t, err)
	require.Equal(t, sandbox.WorkerStopped, r.Reason)
	require.Equal(t, 4, r.Exit)
}

func testKillWins(t *testing.T, b *bench) {
	c := b.start(t, sh("trap '' TERM INT HUP; echo ready; while :; do sleep 0.02; done"))
	out, _ := c.Output()
	expect(t, out, "ready\n")
	c.Kill(sandbox.Killed)
	r, err := c.Wait()
	require.NoError(t, err)
	require.Equal(t, int(syscall.SIGKILL), r.Signal)
	require.Equal(t, sandbox.Killed, r.Reason)
	require.ErrorIs(t, c.Signal(syscall.SIGTERM), os.ErrProcessDone)
}

func testTimeout(t *testing.T, b *bench) {
	spec := sh("echo before; sleep 1000")
	spec.Timeout = 50 * time.Millisecond
	_, r := b.run(t, spec)
	require.Equal(t, sandbox.TimedOut, r.Reason)
	require.GreaterOrEqual(t, r.Usage.Wall, spec.Timeout)
}

// hold is a script that takes the lock, says so and stays, deaf to signals.
const hold = `trap "" TERM HUP INT; exec 9>lock; flock 9; touch held; sleep 1000`

func testKillTree(t *testing.T, b *bench) {
	c := b.start(t, sh("sh -c '"+hold+"' & setsid sh -c 'sleep 1000' & while [ ! -e held ]; do sleep 0.01; done; echo ready; wait"))
	out, _ := c.Output()
	expect(t, out, "ready\n")
	c.Kill(sandbox.Killed)
	_, err := io.ReadAll(out)
	require.NoError(t, err)
	_, err = c.Wait()
	require.NoError(t, err)
	b.free(t, "lock")
}

func testDaemonDies(t *testing.T, b *bench) {
	// The daemon leaves session, group and parent, and keeps the output open.
	out, r := b.run(t, sh("(setsid sh -c '"+hold+"' &) ; while [ ! -e held ]; do sleep 0.01; done; echo done"))
	require.Equal(t, "done\n", out)
	require.Equal(t, sandbox.Exited, r.Reason)
	b.free(t, "lock")
}

func testStdin(t *testing.T, b *bench) {
	spec := sh("cat; echo end")
	spec.Stdin = true
	c := b.start(t, spec)
	out, _ := c.Output()
	_, err := io.WriteString(c.Stdin(), "one\n")
	require.NoError(t, err)
	expect(t, out, "one\n")
	require.NoError(t, c.Stdin().Close())
	expect(t, out, "end\n")
	_, err = c.Wait()
	require.NoError(t, err)
}

func testNoStdin(t *testing.T, b *bench) {
	out, _ := b.run(t, sh("cat; echo end"))
	require.Equal(t, "end\n", out)
}

func testSignal(t *testing.T, b *bench) {
	c := b.start(t, sh("trap 'echo int; exit 0' INT; echo ready; while :; do sleep 0.02; done"))
	out, _ := c.Output()
	expect(t, out, "ready\n")
	require.NoError(t, c.Signal(syscall.SIGINT))
	expect(t, out, "int\n")
	r, err := c.Wait()
	require.NoError(t, err)
	require.Equal(t, sandbox.Exited, r.Reason)
}

func testTerminal(t *testing.T, b *bench) {
	spec := sh("test -t 0 && test -t 1 && test -t 2 && stty size && read x && stty size")
	spec.PTY = &sandbox.Size{Rows: 7, Cols: 31}
	c := b.start(t, spec)
	out, stderr := c.Output()
	require.Nil(t, stderr)
	expect(t, out, "7 31\r\n")
	require.NoError(t, c.Resize(sandbox.Size{Rows: 9, Cols: 40}))
	_, err := io.WriteString(c.Stdin(), "go\n")
	require.NoError(t, err)
	expect(t, out, "9 40\r\n")
	_, err = io.ReadAll(out)
	require.NoError(t, err)
	r, err := c.Wait()
	require.NoError(t, err)
	require.Zero(t, r.Exit)
}

func testTerminalInput(t *testing.T, b *bench) {
	spec := sh("stty -echo; echo ready; cat; echo end")
	spec.PTY = &sandbox.Size{Rows: 24, Cols: 80}
	c := b.start(t, spec)
	out, _ := c.Output()
	expect(t, out, "ready\r\n")
	require.NoError(t, c.Stdin().Close())
	expect(t, out, "end\r\n")
	_, err := c.Wait()
	require.NoError(t, err)
}

func testEnvironment(t *testing.T, b *bench) {
	t.Setenv("ROOKERY_TEST_SECRET", "leaked")
	spec := sh("env")
	spec.Env = []string{"FROM_CALL=1", "LANG=de_DE.UTF-8"}
	out, _ := b.run(t, spec)
	require.NotContains(t, out, "leaked")
	for _, want := range []string{"FROM_SESSION=yes\n", "FROM_CALL=1\n", "LANG=de_DE.UTF-8\n", "PATH=/", "HOME=/", "TMPDIR=/"} {
		require.Contains(t, out, want)
	}
	require.Equal(t, 1, strings.Count("\n"+out, "\nLANG="))
}

func testDescriptors(t *testing.T, b *bench) {
	fd, err := unix.Open("/dev/null", unix.O_RDONLY, 0) // as if inherited: not closed on exec
	require.NoError(t, err)
	defer func() { _ = unix.Close(fd) }()
	out, _ := b.run(t, sh("i=3; while [ $i -lt 260 ]; do [ -e /proc/$$/fd/$i ] && echo $i; i=$((i+1)); done"))
	require.Empty(t, out)
}

func testInvalid(t *testing.T, b *bench) {
	for want, spec := range map[string]sandbox.CallSpec{
		"no program":                            {},
		"argument 2 contains a NUL byte":        {Argv: []string{"sh", "-c", "echo \x00"}},
		`"A" contains a NUL byte`:               {Argv: []string{"true"}, Env: []string{"A=\x00"}},
		`"NOEQUALS" is not NAME=value`:          {Argv: []string{"true"}, Env: []string{"NOEQUALS"}},
		"working directory contains a NUL byte": {Argv: []string{"true"}, Dir: "a\x00"},
	} {
		_, err := b.Start(t.Context(), spec)
		require.ErrorIs(t, err, sandbox.ErrInvalid)
		require.ErrorContains(t, err, want)
	}
	_, err := b.Start(t.Context(), sandbox.CallSpec{Argv: []string{"no-such-program"}})
	require.ErrorIs(t, err, sandbox.ErrNotFound)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("not any more"))
	_, err = b.Start(ctx, sh("true"))
	require.ErrorContains(t, err, "not any more")
}

func testDir(t *testing.T, b *bench) {
	require.NoError(t, os.Mkdir(filepath.Join(b.workspace, "sub"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(b.workspace, "file"), nil, 0o644))
	require.NoError(t, os.Symlink("/", filepath.Join(b.workspace, "out")))
	inside := b.Paths().Workspace
	for _, dir := range []string{"sub", filepath.Join(inside, "sub")} {
		spec := sh("pwd")
		spec.Dir = dir
		out, _ := b.run(t, spec)
		require.Equal(t, filepath.Join(inside, "sub")+"\n", out)
	}
	for _, dir := range []string{"missing", "file", "..", "/", "out"} {
		spec := sh("pwd")
		spec.Dir = dir
		_, err := b.Start(t.Context(), spec)
		require.Error(t, err, dir)
	}
}

func testLargeOutput(t *testing.T, b *bench) {
	c := b.start(t, sh("head -c 20000000 /dev/zero"))
	out, _ := c.Output()
	n, err := io.Copy(io.Discard, out)
	require.NoError(t, err)
	require.EqualValues(t, 20_000_000, n)
}

func testLateReader(t *testing.T, b *bench) {
	c := b.start(t, sh("(setsid sleep 1000 &); head -c 50000 /dev/zero"))
	_, err := c.Wait()
	require.NoError(t, err)
	out, _ := c.Output()
	n, err := io.Copy(io.Discard, out)
	require.NoError(t, err)
	require.EqualValues(t, 50_000, n)
}

func testParallel(t *testing.T, b *bench) {
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			c, err := b.Start(t.Context(), sh("echo $$ | wc -l"))
			if err != nil {
				t.Error(err)
				return
			}
			out, _ := c.Output()
			text, err := io.ReadAll(out)
			if _, waitErr := c.Wait(); err != nil || waitErr != nil || strings.TrimSpace(string(text)) != "1" {
				t.Error(string(text), err, waitErr)
			}
		})
	}
	wg.Wait()
}

func testOps(t *testing.T, b *bench) {
	require.NoError(t, os.WriteFile(filepath.Join(b.workspace, "a"), []byte("text"), 0o644))
	out, err := b.Do(t.Context(), "read", json.RawMessage(`"a"`))
	require.NoError(t, err)
	require.JSONEq(t, `"text"`, string(out))
	for op, want := range map[string]string{"read": "escapes", "panic": "broke", "big": "too large", "none": "unknown file operation"} {
		_, err := b.Do(t.Context(), op, json.RawMessage(`"../../etc/passwd"`))
		require.ErrorContains(t, err, want)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("not any more"))
	_, err = b.Do(ctx, "read", json.RawMessage(`"a"`))
	require.ErrorContains(t, err, "not any more")
}

func testClose(t *testing.T, b *bench) {
	c := b.start(t, sh(hold))
	for {
		if _, err := b.Do(t.Context(), "read", json.RawMessage(`"held"`)); err == nil {
			break
		}
		require.NoError(t, t.Context().Err())
	}
	require.NoError(t, b.Close())
	require.NoError(t, b.Close())
	r, err := c.Wait()
	require.NoError(t, err)
	require.Equal(t, sandbox.WorkerStopped, r.Reason)
	b.free(t, "lock")
	_, err = b.Start(t.Context(), sh("true"))
	require.ErrorIs(t, err, sandbox.ErrClosed)
	_, err = b.Do(t.Context(), "read", nil)
	require.ErrorIs(t, err, sandbox.ErrClosed)
}

func testUsage(t *testing.T, b *bench) {
	_, r := b.run(t, sh("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"))
	require.Positive(t, r.Usage.CPU)
	require.Positive(t, r.Usage.PeakMem)
	require.NoError(t, b.Close()) // after which the sum is complete
	require.GreaterOrEqual(t, b.Usage().CPU, r.Usage.CPU)
}
