package bus_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/bus/natsd"
	"rookery/protocol"
)

func TestSetup_FitsAStoreOfAnySize(t *testing.T) {
	for _, size := range []int64{16 << 20, 225 << 20, 300 << 20, 5 << 30} {
		srv, err := natsd.Start(natsd.Options{StoreDir: t.TempDir(), MaxStore: size})
		require.NoError(t, err)
		t.Cleanup(srv.Shutdown)
		b, err := bus.Connect(t.Context(), bus.Options{InProcess: srv})
		require.NoError(t, err)
		t.Cleanup(b.Close)
		for range 2 {
			require.NoError(t, b.Setup(t.Context(), bus.StoreOptions{}), "%d bytes", size)
		}
		require.NoError(t, b.PutSession(t.Context(), protocol.Entry{Session: "s1"}), "%d bytes", size)
		_, err = b.OpenLog(t.Context(), "s1", "o1", "b1")
		require.NoError(t, err)
	}
}
