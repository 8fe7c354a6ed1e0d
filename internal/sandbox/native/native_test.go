package native_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/sandbox"
	"rookery/internal/sandbox/native"
	"rookery/internal/sandbox/sandboxtest"
)

// soft: an ordinary user may have no control groups.
var soft = os.Geteuid() != 0

// shared is one backend for all tests: making one costs a compiled filter.
var shared = native.New(sandboxtest.Ops(), native.Options{SoftLimits: soft})

func TestMain(m *testing.M) {
	sandboxtest.Main()
	native.Main(sandboxtest.Ops())
	if dir := os.Getenv(workerDir); dir != "" {
		os.Exit(beWorker(dir))
	}
	code := m.Run()
	if err := shared.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func open(*testing.T, sandbox.Ops) sandbox.Backend { return shared }

func TestNative(t *testing.T) {
	sandboxtest.Run(t, open)
}

func TestNative_Check(t *testing.T) {
	n := open(t, sandboxtest.Ops())
	r, err := n.Check(t.Context())
	require.NoError(t, err)
	for _, l := range r.Lines {
		t.Log(l)
	}
	require.GreaterOrEqual(t, len(r.Lines), 14)
	require.Equal(t, soft, r.Warning != "")
}

func TestNative_NoWayOut(t *testing.T) {
	sandboxtest.Escape(t, shared)
}

func TestNative_EverydayWork(t *testing.T) {
	sandboxtest.Work(t, shared)
}

func TestNative_ServerAndClient(t *testing.T) {
	sandboxtest.ServerAndClient(t, shared)
}

func TestNative_Bombs(t *testing.T) {
	sandboxtest.Bombs(t, shared)
}
