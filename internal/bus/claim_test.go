package bus_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/bus/bustest"
	"rookery/protocol"
)

func TestLastClaim_OfASessionOverAllDestinations(t *testing.T) {
	b := bustest.NewServer(t).Bus(t)
	dispatch, seq, err := b.LastClaim(t.Context(), "s1")
	require.NoError(t, err)
	require.Empty(t, dispatch)
	require.Zero(t, seq)
	claim := func(d bus.Destination, sid protocol.ID, dispatch string) {
		t.Helper()
		existing, err := b.Revoke(t.Context(), d, sid, dispatch, protocol.Claim{Boot: "b1", At: time.Now()})
		require.NoError(t, err)
		require.Nil(t, existing)
	}
	claim(bus.ToWorker("w1"), "s1", "1-0-1")
	claim(bus.ToPool("p1"), "s1", "2-0-1")
	claim(bus.ToWorker("w1"), "s2", "9-0-1")
	require.NoError(t, b.PublishResult(t.Context(), "s1", "1-0-1", protocol.Result{Worker: "w1", Boot: "b1", StopReason: protocol.Completed}))
	dispatch, seq, err = b.LastClaim(t.Context(), "s1")
	require.NoError(t, err)
	require.Equal(t, "2-0-1", dispatch)
	require.Equal(t, uint64(2), seq)
}
