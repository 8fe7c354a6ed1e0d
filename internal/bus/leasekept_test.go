package bus_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/bus/bustest"
)

func TestLeases_AreKeptSinceTheBrokerStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.Start(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = b.KeepLease(ctx, bus.Lease{Kind: bus.LeaseOrchestrator, ID: "o1", Boot: "b"}, nil)
		}()
		synctest.Wait()
		time.Sleep(time.Minute)
		kept, err := b.LeasesKept(t.Context())
		require.NoError(t, err)
		require.GreaterOrEqual(t, kept, time.Minute)
		require.Less(t, kept, 2*time.Minute)
		cancel()
		<-done
	})
}
