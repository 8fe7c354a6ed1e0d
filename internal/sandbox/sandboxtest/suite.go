package sandboxtest

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"rookery/internal/sandbox"
)

// Run runs the suite. open makes the backend with the given operations; a
// confining backend whose helper is another process must offer them there, too.
func Run(t *testing.T, open func(t *testing.T, ops sandbox.Ops) sandbox.Backend) {
	t.Helper()
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT) // as under nohup
	t.Cleanup(func() { signal.Reset(syscall.SIGHUP, syscall.SIGINT) })
	for name, test := range map[string]func(*bench){
		"Check": (*bench).testCheck, "Exit": (*bench).testExit, "Merge": (*bench).testMerge, "Signalled": (*bench).testSignalled,
		"KillIsPolite": (*bench).testKillIsPolite, "KillWins": (*bench).testKillWins, "Timeout": (*bench).testTimeout, "KillTree": (*bench).testKillTree,
		"DaemonDies": (*bench).testDaemonDies, "Stdin": (*bench).testStdin, "NoStdin": (*bench).testNoStdin, "Signal": (*bench).testSignal, "IgnoredSignals": (*bench).testIgnoredSignals,
		"Terminal": (*bench).testTerminal, "TerminalInput": (*bench).testTerminalInput, "Environment": (*bench).testEnvironment,
		"Descriptors": (*bench).testDescriptors, "Invalid": (*bench).testInvalid, "Dir": (*bench).testDir, "LargeOutput": (*bench).testLargeOutput,
		"LateReader": (*bench).testLateReader, "Parallel": (*bench).testParallel, "Ops": (*bench).testOps, "Close": (*bench).testClose, "Usage": (*bench).testUsage,
	} {
		t.Run(name, func(t *testing.T) { test(newBench(t, open(t, Ops()))) })
	}
}

// A bench is an open session and its directories.
type bench struct {
	t       *testing.T
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
	return &bench{t: t, backend: b, Session: s, workspace: spec.Workspace}
}

// Ops are the operations that the suite asks for. A backend whose helper is another
// process gives them there, too.
func Ops() sandbox.Ops {
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

func (b *bench) start(spec sandbox.CallSpec) sandbox.Call {
	t := b.t
	t.Helper()
	c, err := b.Start(t.Context(), spec)
	require.NoError(t, err)
	return c
}

// run runs a command to its end and returns what it printed.
func (b *bench) run(spec sandbox.CallSpec) (string, sandbox.Result) {
	t := b.t
	t.Helper()
	c := b.start(spec)
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
func (b *bench) free(name string) {
	t := b.t
	t.Helper()
	f, err := os.Open(filepath.Join(b.workspace, name))
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	require.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), "%s is still held", name)
}
