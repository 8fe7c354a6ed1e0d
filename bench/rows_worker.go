package main

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rookery/internal/bus"
	"rookery/protocol"
)

// A crowd is calls of the pool and a count of those that are done, by worker.
type crowd struct {
	bus   *bus.Bus
	done  atomic.Int64
	by    map[protocol.ID]int // the bus's goroutine writes; read when all are done
	count int
}

func (r *rig) newCrowd(ctx context.Context, sid protocol.ID) (*crowd, error) {
	b, err := r.bus(ctx)
	if err != nil {
		return nil, err
	}
	c := &crowd{bus: b, by: map[protocol.ID]int{}}
	stop, err := b.WatchCalls(sid, func(e bus.CallEvent) {
		if e.Result != nil {
			c.by[e.Worker]++
			c.done.Add(1)
		}
	})
	if err == nil {
		r.later(stop)
	}
	return c, err
}

// send queues n calls, from many goroutines.
func (c *crowd) send(ctx context.Context, sid protocol.ID, n int) error {
	base := c.count
	c.count += n
	return parallel(n, func(i int) error {
		return c.bus.Dispatch(ctx, bus.ToPool("default"), protocol.Call{
			Session: sid, Dispatch: fmt.Sprintf("%d-0-1", base+i+1), Key: "k", ToolCallID: "c", Tool: "nothing", Arguments: "{}",
		})
	})
}

// wait returns when all calls that were sent are done.
func (c *crowd) wait(ctx context.Context) error {
	for int(c.done.Load()) < c.count {
		if err := rest(ctx, time.Millisecond); err != nil {
			return fmt.Errorf("%d of %d calls done: %w", c.done.Load(), c.count, err)
		}
	}
	return nil
}

// workers measures how many calls a pool of 1, 4 and 16 workers takes, and how
// evenly.
func (b *bench) workers(ctx context.Context) error {
	for _, n := range []int{1, 4, 16} {
		if err := b.workersOf(ctx, n); err != nil {
			return fmt.Errorf("%d workers: %w", n, err)
		}
	}
	return nil
}

func (b *bench) workersOf(ctx context.Context, workers int) error {
	r, err := b.newRig(ctx, rigOptions{})
	if err != nil {
		return err
	}
	defer r.close()
	if _, err := r.host(ctx, caller{}); err != nil {
		return err
	}
	for range workers {
		if err := r.worker(ctx, 4); err != nil {
			return err
		}
	}
	c, err := r.newCrowd(ctx, "crowd")
	if err != nil {
		return err
	}
	calls := max(200, b.n(6000))
	began := time.Now()
	if err := c.send(ctx, "crowd", calls); err != nil {
		return err
	}
	if err := c.wait(ctx); err != nil {
		return err
	}
	rate := float64(calls) / time.Since(began).Seconds()
	var per []int
	for _, k := range c.by {
		per = append(per, k)
	}
	fair := fmt.Sprintf("calls a worker: %d to %d", slices.Min(per), slices.Max(per))
	if len(per) < workers {
		fair += fmt.Sprintf(", %d had none", workers-len(per))
	}
	b.add(Row{Name: fmt.Sprintf("workers.%d", workers), What: fmt.Sprintf("calls of one pool, %d workers of 4 slots", workers), Unit: "calls/s", Ours: single(rate), Note: fair})
	return nil
}

// backlog drains calls that waited for a worker, against draining them by hand.
func (b *bench) backlog(ctx context.Context) error {
	r, err := b.newRig(ctx, rigOptions{})
	if err != nil {
		return err
	}
	defer r.close()
	if _, err := r.host(ctx, caller{}); err != nil {
		return err
	}
	c, err := r.newCrowd(ctx, "backlog")
	if err != nil {
		return err
	}
	if err := c.bus.EnsureConsumer(ctx, bus.ToPool("default")); err != nil {
		return err
	}
	n := max(500, b.n(100_000))
	if err := c.send(ctx, "backlog", n); err != nil {
		return err
	}
	began := time.Now()
	if err := r.worker(ctx, 16); err != nil {
		return err
	}
	if err := c.wait(ctx); err != nil {
		return err
	}
	ours := float64(n) / time.Since(began).Seconds()
	floor, err := r.drainByHand(ctx, n/10)
	if err != nil {
		return err
	}
	row := Row{Name: "backlog", What: fmt.Sprintf("%d queued calls drained by one worker of 16 slots", n), Unit: "calls/s", Floor: single(floor), Ours: single(ours), Note: "floor: 16 times claim, ack, result by hand, for a tenth of them"}
	row.Figure, row.Of = ratio(ours, floor), "of floor"
	b.add(row)
	return nil
}

// drainByHand queues n calls and answers them from 16 goroutines.
func (r *rig) drainByHand(ctx context.Context, n int) (float64, error) {
	f := &floor{}
	var err error
	if f.owner, err = r.raw(); err != nil {
		return 0, err
	}
	if f.ojs, err = jetstream.New(f.owner); err != nil {
		return 0, err
	}
	if err := f.streams(ctx); err != nil {
		return 0, err
	}
	body := make([]byte, 300)
	if err := parallel(n, func(i int) error {
		id := fmt.Sprint(i)
		_, err := f.ojs.Publish(ctx, "f.call."+id, body, jetstream.WithMsgID(id))
		return err
	}); err != nil {
		return 0, err
	}
	cons, err := f.ojs.Consumer(ctx, "Fcall", "w")
	if err != nil {
		return 0, err
	}
	began := time.Now()
	var left atomic.Int64
	left.Store(int64(n))
	err = parallel(16, func(int) error {
		for left.Load() > 0 {
			batch, err := cons.Fetch(1, jetstream.FetchMaxWait(time.Second))
			if err != nil {
				return err
			}
			for m := range batch.Messages() {
				if err := f.answer(ctx, m); err != nil {
					return err
				}
				left.Add(-1)
			}
		}
		return nil
	})
	return float64(n) / time.Since(began).Seconds(), err
}

// answer is what a worker publishes for a call.
func (f *floor) answer(ctx context.Context, m jetstream.Msg) error {
	id := m.Subject()[len("f.call."):]
	body := make([]byte, 300)
	if _, err := f.ojs.Publish(ctx, "f.res."+id+".c", body[:100], jetstream.WithMsgID(id+"/c")); err != nil {
		return err
	}
	if err := m.Ack(); err != nil {
		return err
	}
	_, err := f.ojs.Publish(ctx, "f.res."+id+".d", body, jetstream.WithMsgID(id+"/d"))
	return err
}
