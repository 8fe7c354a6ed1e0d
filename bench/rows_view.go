package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"rookery/client"
	"rookery/internal/bus"
	"rookery/protocol"
)

// deltas measures from the endpoint's sending to a viewer's having the first text.
func (b *bench) deltas(ctx context.Context) error {
	s, err := b.newStageWith(ctx, 4, b.box, trickling)
	if err != nil {
		return err
	}
	defer s.close()
	const sid = protocol.ID("delta")
	if err := s.session(ctx, sid); err != nil {
		return err
	}
	raw, err := s.hearRaw(sid)
	if err != nil {
		return err
	}
	watched := s.hearWatch(ctx, sid)
	var viaRaw, viaWatch Sample
	for range b.n(300) {
		if _, err := s.turns(ctx, sid, 0); err != nil {
			return err
		}
		viaRaw.add(<-raw)
		viaWatch.add(<-watched)
	}
	rtt, err := b.rtt(ctx)
	if err != nil {
		return err
	}
	row := func(name, what string, ours Sample) Row {
		return Row{
			Name: name, What: what, Unit: "µs", Floor: single(rtt), Ours: ours.stat(),
			Figure: ours.quantile(0.5) / rtt, Of: "× RTT", Target: 5, Note: "floor: RTT",
		}
	}
	b.add(row("delta.raw", "first delta, endpoint to a subscriber", viaRaw), row("delta.watch", "first delta, endpoint to client.Watch", viaWatch))
	return nil
}

// hearRaw tells how old the first text of each answer is when a subscriber has it.
func (s *stage) hearRaw(sid protocol.ID) (<-chan time.Duration, error) {
	c, err := s.raw()
	if err != nil {
		return nil, err
	}
	ages := make(chan time.Duration, 16)
	_, err = c.Subscribe("rk.out."+string(sid)+".d", func(m *nats.Msg) {
		if at := stampIn(m.Data); !at.IsZero() {
			ages <- time.Since(at)
		}
	})
	return ages, errors.Join(err, flush(c))
}

// hearWatch is hearRaw by the SDK.
func (s *stage) hearWatch(ctx context.Context, sid protocol.ID) <-chan time.Duration {
	ages, caught := make(chan time.Duration, 16), make(chan struct{})
	wctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	s.later(func() { cancel(); watching.Wait() })
	watching.Go(func() {
		for e, err := range client.New(s.asker).Watch(wctx, sid, nil) {
			if err != nil {
				return
			}
			if e.Kind == client.CaughtUp {
				close(caught)
				for len(ages) > 0 {
					<-ages // of the past
				}
			}
			if p, ok := e.Message.Payload.(protocol.PartialText); ok && p.EventType == protocol.Delta {
				if at := stampIn([]byte(p.Text)); !at.IsZero() {
					ages <- time.Since(at)
				}
			}
		}
	})
	<-caught
	return ages
}

// fanout compares how many deliveries a second viewers get with the broker's own.
// All three ways have the same viewers on the same connections, and a publisher
// that is never more than a window ahead of the slowest.
func (b *bench) fanout(ctx context.Context) error {
	curve := Series{Name: "fanout", What: "Deliveries a second over viewers of one session", X: "viewers", Y: "1000/s"}
	core, raw, watch := Line{Name: "core"}, Line{Name: "rk.out, raw"}, Line{Name: "client.Watch"}
	var errs []error
	for _, v := range []int{1, 10, 100, 1000} {
		f, err := b.fan(ctx, v)
		if err != nil {
			errs = append(errs, fmt.Errorf("%d viewers: %w", v, err))
			continue
		}
		row := func(name, what string, ours Sample, target float64) Row {
			r := Row{Name: fmt.Sprintf("fanout.%d.%s", v, name), What: fmt.Sprintf("%d viewers, %s", v, what), Unit: "deliveries/s", Floor: f.core.stat(), Ours: ours.stat(), Note: "deltas; floor: core"}
			r.Floor.P99, r.Ours.P99 = 0, 0
			r.Figure, r.Of = ratio(r.Ours.Median, r.Floor.Median), "of core"
			if v >= 100 {
				r.Target, r.AtLeast = target, true
			}
			return r
		}
		b.add(row("raw", "subscribers of rk.out", f.raw, 0.8), row("watch", "client.Watch", f.watch, 0.4))
		core.add(float64(v), f.core.quantile(0.5)/1000)
		raw.add(float64(v), f.raw.quantile(0.5)/1000)
		watch.add(float64(v), f.watch.quantile(0.5)/1000)
	}
	curve.Lines = []Line{core, raw, watch}
	b.draw(curve)
	return errors.Join(errs...)
}

// A fan has the deliveries a second of each way.
type fan struct{ core, raw, watch Sample }

const fanConnections = 100

func (b *bench) fan(ctx context.Context, viewers int) (f fan, err error) {
	r, err := b.newRig(ctx, rigOptions{})
	if err != nil {
		return f, err
	}
	defer r.close()
	w, err := r.newWriter(ctx, "raw")
	if err != nil {
		return f, err
	}
	shown, err := r.newWriter(ctx, "watched")
	if err != nil {
		return f, err
	}
	n := min(max(200, b.n(400_000)/viewers), b.n(40_000))
	coreViewers, err := r.rawViewers(viewers, "core.fan")
	if err != nil {
		return f, err
	}
	rawViewers, err := r.rawViewers(viewers, "rk.out.raw.d")
	if err != nil {
		return f, err
	}
	example := w.encoded()
	pub, err := r.raw()
	if err != nil {
		return f, err
	}
	for range 2 {
		f.core = append(f.core, pump(coreViewers, n, func() error { return pub.Publish("core.fan", example) }))
		f.raw = append(f.raw, pump(rawViewers, n, w.delta))
	}
	watchers, err := r.watchViewers(ctx, viewers)
	if err != nil {
		return f, err
	}
	if err := shown.begin(); err != nil {
		return f, err
	}
	for range 2 {
		f.watch = append(f.watch, pump(watchers, n, shown.delta))
		f.core = append(f.core, pump(coreViewers, n, func() error { return pub.Publish("core.fan", example) }))
	}
	return f, nil
}

// A viewer counts what it got.
type viewer struct{ got atomic.Int64 }

// pump publishes n messages and returns the deliveries a second.
func pump(viewers []*viewer, n int, publish func() error) float64 {
	const window = 256
	base := make([]int64, len(viewers))
	for i, v := range viewers {
		base[i] = v.got.Load()
	}
	reached := func(k int64) bool {
		for i, v := range viewers {
			if v.got.Load()-base[i] < k {
				return false
			}
		}
		return true
	}
	began := time.Now()
	for i := range n {
		if i%64 == 0 {
			for !reached(int64(i - window)) {
				_ = restUntil(50 * time.Microsecond)
			}
		}
		if publish() != nil {
			return 0
		}
	}
	for !reached(int64(n)) {
		_ = restUntil(50 * time.Microsecond)
	}
	return float64(n*len(viewers)) / time.Since(began).Seconds()
}

func (r *rig) rawViewers(n int, subject string) ([]*viewer, error) {
	conns := make([]*nats.Conn, min(n, fanConnections))
	for i := range conns {
		c, err := r.raw()
		if err != nil {
			return nil, err
		}
		conns[i] = c
	}
	all := make([]*viewer, n)
	for i := range all {
		v := &viewer{}
		if _, err := conns[i%len(conns)].Subscribe(subject, func(*nats.Msg) { v.got.Add(1) }); err != nil {
			return nil, err
		}
		all[i] = v
	}
	for _, c := range conns {
		if err := flush(c); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// watchViewers watch with the SDK.
func (r *rig) watchViewers(ctx context.Context, n int) ([]*viewer, error) {
	buses := make([]*bus.Bus, min(n, fanConnections))
	for i := range buses {
		b, err := r.bus(ctx)
		if err != nil {
			return nil, err
		}
		buses[i] = b
	}
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	r.later(func() { cancel(); watching.Wait() })
	all := make([]*viewer, n)
	caught := make(chan struct{}, n)
	for i := range all {
		v := &viewer{}
		all[i] = v
		watching.Go(func() {
			for e, err := range client.New(buses[i%len(buses)]).Watch(ctx, "watched", nil) {
				switch p := e.Message.Payload.(type) {
				case protocol.PartialText:
					if p.EventType == protocol.Delta {
						v.got.Add(1)
					}
				default:
					if err != nil {
						return
					}
					if e.Kind == client.CaughtUp {
						caught <- struct{}{}
					}
				}
			}
		})
	}
	for range n {
		<-caught
	}
	return all, nil
}

// A writer is the owner of a session that streams without end.
type writer struct {
	bus    *bus.Bus
	sid    protocol.ID
	log    *bus.Log
	offset int
	text   string
}

func (r *rig) newWriter(ctx context.Context, sid protocol.ID) (*writer, error) {
	b, err := r.bus(ctx)
	if err != nil {
		return nil, err
	}
	w := &writer{bus: b, sid: sid, text: "some words of a model, "}
	if w.log, err = b.OpenLog(ctx, sid, "o", "b"); err != nil {
		return nil, err
	}
	var ms []protocol.Message
	for _, p := range []protocol.Payload{protocol.TaskBegin{TaskID: "t", Of: "run"}, protocol.UserText("go"), protocol.RequestBegin{}} {
		ms = append(ms, protocol.New(p))
	}
	if _, err := w.log.Append(ctx, 1, false, ms); err != nil {
		return nil, err
	}
	stop, err := b.ServeSession(sid, func(_ protocol.ID, _ protocol.Verb, _ protocol.Command, respond func(protocol.Reply)) {
		respond(protocol.Reply{Code: protocol.ReplyAccepted, Snap: &protocol.Snap{Epoch: w.log.Epoch()}})
	})
	if err == nil {
		r.later(stop)
	}
	return w, err
}

// begin starts the segment, once all viewers are there.
func (w *writer) begin() error {
	return w.bus.PublishLive(w.sid, w.live(protocol.New(protocol.PartialText{
		Role: protocol.Assistant, EventType: protocol.Start, StopReason: protocol.Completed,
	})))
}

func (w *writer) live(m protocol.Message) protocol.Live {
	return protocol.Live{Epoch: w.log.Epoch(), After: w.log.Last().N, Segment: "1.1", Offset: w.offset, Message: &m}
}

func (w *writer) message() protocol.Message {
	return protocol.New(protocol.PartialText{Role: protocol.Assistant, EventType: protocol.Delta, Text: w.text, StopReason: protocol.Completed})
}

// delta publishes the next one.
func (w *writer) delta() error {
	m := w.message()
	l := w.live(m)
	w.offset += len(w.text)
	return w.bus.PublishLive(w.sid, l)
}

// encoded is what a delta looks like on the wire.
func (w *writer) encoded() []byte { return bytes.Clone(protocol.Encode(w.live(w.message()))) }
