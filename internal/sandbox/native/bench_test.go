package native_test

import (
	"io"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/sandbox"
	"rookery/internal/sandbox/native"
	"rookery/internal/sandbox/sandboxtest"
)

// BenchmarkUnshare is the measure of the others: all namespaces and a /proc, made
// by a small C program.
func BenchmarkUnshare(b *testing.B) {
	for b.Loop() {
		cmd := exec.CommandContext(b.Context(), "unshare", "-U", "-r", "-m", "-n", "-i", "-u", "-p", "-C", "-f", "--mount-proc", "/bin/true")
		require.NoError(b, cmd.Run())
	}
}

func benchSession(b *testing.B, n *native.Native) sandbox.Session {
	b.Helper()
	s, err := n.Open(b.Context(), sandbox.SessionSpec{ID: "b", Workspace: b.TempDir(), Scratch: b.TempDir()})
	require.NoError(b, err)
	return s
}

// BenchmarkOpen opens a session and closes it.
func BenchmarkOpen(b *testing.B) {
	n := native.New(sandboxtest.Ops(), native.Options{SoftLimits: true})
	defer func() { require.NoError(b, n.Close()) }()
	require.NoError(b, benchSession(b, n).Close()) // compiles the filter
	for b.Loop() {
		require.NoError(b, benchSession(b, n).Close())
	}
}

// BenchmarkCall runs true in an open session.
func BenchmarkCall(b *testing.B) {
	n := native.New(sandboxtest.Ops(), native.Options{SoftLimits: true})
	defer func() { require.NoError(b, n.Close()) }()
	s := benchSession(b, n)
	defer func() { require.NoError(b, s.Close()) }()
	for b.Loop() {
		c, err := s.Start(b.Context(), sandbox.CallSpec{Argv: []string{"/bin/true"}, Merge: true})
		require.NoError(b, err)
		out, _ := c.Output()
		_, _ = io.Copy(io.Discard, out)
		r, err := c.Wait()
		require.NoError(b, err)
		require.Zero(b, r.Exit)
	}
}

// BenchmarkDo is one file operation in an open session.
func BenchmarkDo(b *testing.B) {
	n := native.New(sandboxtest.Ops(), native.Options{SoftLimits: true})
	defer func() { require.NoError(b, n.Close()) }()
	s := benchSession(b, n)
	defer func() { require.NoError(b, s.Close()) }()
	for b.Loop() {
		_, _ = s.Do(b.Context(), "read", []byte(`"missing"`))
	}
}
