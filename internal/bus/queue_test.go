package bus_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/bus/bustest"
)

func TestQueues_TellWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewServer(t).Bus(t)
		none, err := b.Queues(t.Context())
		require.NoError(t, err)
		require.Empty(t, none)
		dispatch(t, b, bus.ToWorker("w_1"), "1-0-1")
		for _, id := range []string{"2-0-1", "2-1-1", "2-2-1"} {
			dispatch(t, b, pool, id)
		}
		fetch(t, b, pool)
		synctest.Wait()
		all, err := b.Queues(t.Context())
		require.NoError(t, err)
		require.Equal(t, []bus.Queue{
			{Dest: pool, Name: "p.default", Waiting: 2, Given: 1},
			{Dest: bus.ToWorker("w_1"), Name: "w.w_1", Waiting: 1},
		}, all)
	})
}

// A call that is passed on is at once the next worker's; after many rounds it waits a
// little longer each time.
func TestDelivery_Pass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewServer(t).Bus(t)
		dispatch(t, b, pool, cid)
		began := time.Now()
		for range 70 {
			d := fetch(t, b, pool)
			require.Equal(t, cid, d.Call.Dispatch)
			d.Pass()
		}
		waited := time.Since(began)
		require.GreaterOrEqual(t, waited, time.Second)
		require.Less(t, waited, 3*time.Second, "the queue did not wait for the ack to time out")
		c, err := b.Claim(t.Context(), pool, sid, cid)
		require.NoError(t, err)
		require.Nil(t, c)
	})
}
