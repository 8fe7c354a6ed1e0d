package native_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/sandbox"
	"rookery/internal/sandbox/native"
	"rookery/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	native.Main(sandboxtest.Ops())
	os.Exit(m.Run())
}

// open returns a backend that ends with the test.
func open(t *testing.T, ops sandbox.Ops) sandbox.Backend {
	t.Helper()
	// An ordinary user may have no control groups.
	n := native.New(ops, native.Options{SoftLimits: os.Geteuid() != 0})
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return n
}

func TestNative(t *testing.T) {
	sandboxtest.Run(t, open)
}
