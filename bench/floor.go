package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A floor makes a tool call's four publishes by hand: the call into a work queue,
// the claim and the result into a stream that keeps the first message of a
// subject, the output into a log behind the last one. Owner and worker have a
// connection each.
type floor struct {
	owner, worker *nats.Conn
	ojs, wjs      jetstream.JetStream
	done          chan struct{} // the library writes, calls reads; capacity 1
	served        sync.WaitGroup
	stop          context.CancelFunc
	count         int
	last          uint64 // sequence in the log
}

func (r *rig) newFloor(ctx context.Context) (*floor, error) {
	f := &floor{done: make(chan struct{}, 1)}
	var err error
	if f.owner, err = r.raw(); err != nil {
		return nil, err
	}
	if f.worker, err = r.raw(); err != nil {
		return nil, err
	}
	if f.ojs, err = jetstream.New(f.owner); err != nil {
		return nil, err
	}
	if f.wjs, err = jetstream.New(f.worker); err != nil {
		return nil, err
	}
	if err := f.streams(ctx); err != nil {
		return nil, err
	}
	if _, err := f.owner.Subscribe("f.done.>", func(m *nats.Msg) {
		if m.Subject[len(m.Subject)-1] == 'd' {
			f.done <- struct{}{}
		}
	}); err != nil {
		return nil, err
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	f.stop = stop
	return f, f.serve(life)
}

// streams are like rookery's.
func (f *floor) streams(ctx context.Context) error {
	like := func(name string) jetstream.StreamConfig {
		return jetstream.StreamConfig{
			Name: "F" + name, Subjects: []string{"f." + name + ".>"}, Storage: jetstream.FileStorage,
			Discard: jetstream.DiscardNew, MaxBytes: 256 << 20, MaxMsgSize: 1 << 20, AllowDirect: true, Duplicates: 2 * time.Minute,
		}
	}
	call, res, log := like("call"), like("res"), like("log")
	call.Retention = jetstream.WorkQueuePolicy
	res.MaxMsgsPerSubject, res.DiscardNewPerSubject = 1, true
	res.RePublish = &jetstream.RePublish{Source: "f.res.>", Destination: "f.done.>"}
	log.RePublish = &jetstream.RePublish{Source: "f.log.>", Destination: "f.out.>"}
	for _, c := range []jetstream.StreamConfig{call, res, log} {
		if _, err := f.ojs.CreateStream(ctx, c); err != nil {
			return fmt.Errorf("make the floor's stream %s: %w", c.Name, err)
		}
	}
	_, err := f.ojs.CreateConsumer(ctx, "Fcall", jetstream.ConsumerConfig{
		Durable: "w", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 10 * time.Second, MaxDeliver: -1,
	})
	return err
}

// serve answers calls: claim, ack, result. One pull waits at any time.
func (f *floor) serve(ctx context.Context) error {
	inbox := f.worker.NewInbox()
	got := make(chan *nats.Msg, 8)
	if _, err := f.worker.ChanSubscribe(inbox, got); err != nil {
		return err
	}
	pull, err := json.Marshal(map[string]any{"batch": 1 << 20, "expires": time.Hour})
	if err != nil {
		return err
	}
	if err := f.worker.PublishRequest("$JS.API.CONSUMER.MSG.NEXT.Fcall.w", inbox, pull); err != nil {
		return err
	}
	body := make([]byte, 300)
	f.served.Go(func() {
		for {
			select {
			case m := <-got:
				id := m.Subject[len("f.call."):]
				if _, err := f.wjs.Publish(ctx, "f.res."+id+".c", body[:100], jetstream.WithMsgID(id+"/c")); err != nil {
					return
				}
				_ = m.Respond([]byte("+ACK"))
				if _, err := f.wjs.Publish(ctx, "f.res."+id+".d", body, jetstream.WithMsgID(id+"/d")); err != nil {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	})
	return nil
}

// calls makes n calls one after the other.
func (f *floor) calls(ctx context.Context, n int, s *Sample) error {
	body := make([]byte, 400)
	for range n {
		f.count++
		id := strconv.Itoa(f.count)
		began := time.Now()
		if _, err := f.ojs.Publish(ctx, "f.call."+id, body, jetstream.WithMsgID(id)); err != nil {
			return err
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		a, err := f.ojs.Publish(ctx, "f.log.s.1", body[:250], jetstream.WithMsgID("l"+id), jetstream.WithExpectLastSequenceForSubject(f.last, "f.log.s.>"))
		if err != nil {
			return err
		}
		f.last = a.Sequence
		s.add(time.Since(began))
	}
	return nil
}

func (f *floor) close() {
	f.stop()
	f.served.Wait()
}
