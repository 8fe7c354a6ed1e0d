package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"rookery/internal/bus"
	"rookery/protocol"
)

const readmeText = "one line\nanother line\nand a third one, which is a little longer than the others\n"

// A stage is a rig with an orchestrator, a worker and an endpoint, ready for tasks
// of the plan that reads a file.
type stage struct {
	*rig
	endpoint *process
	asker    *bus.Bus
	ends     *ends
	plan     plan
}

func (b *bench) newStage(ctx context.Context, slots int, box string) (*stage, error) {
	return b.newStageWith(ctx, slots, box, "")
}

// newStageWith is newStage with an endpoint of another manner.
func (b *bench) newStageWith(ctx context.Context, slots int, box, manner string) (*stage, error) {
	r, err := b.newRig(ctx, rigOptions{})
	if err != nil {
		return nil, err
	}
	r.box = box
	s := &stage{rig: r, plan: plan{tool: "read_file", args: `{"path":"README.md"}`}}
	if err := s.fill(ctx, slots, manner); err != nil {
		r.close()
		return nil, err
	}
	return s, nil
}

func (s *stage) fill(ctx context.Context, slots int, manner string) (err error) {
	if s.endpoint, err = s.bench.spawn(roleEndpoint, manner); err != nil {
		return err
	}
	s.later(s.endpoint.stop)
	model, err := endpointModel(s.endpoint.url)
	if err != nil {
		return err
	}
	if _, err = s.host(ctx, model); err != nil {
		return err
	}
	if err = s.worker(ctx, slots); err != nil {
		return err
	}
	if s.asker, err = s.rig.bus(ctx); err != nil {
		return err
	}
	s.ends, err = s.rig.ends()
	return err
}

// session makes a session whose workspace has the file.
func (s *stage) session(ctx context.Context, sid protocol.ID) error {
	if _, err := s.ends.run(ctx, s.asker, sid, plan{}.String()); err != nil {
		return err
	}
	w, _, _, err := s.asker.Workspace(ctx, sid)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(w.Path, "README.md"), []byte(readmeText), 0o600)
}

// turns runs a task of n turns.
func (s *stage) turns(ctx context.Context, sid protocol.ID, n int) (time.Duration, error) {
	p := s.plan
	p.turns = n
	return s.ends.run(ctx, s.asker, sid, p.String())
}

// bareTurns makes the same requests directly.
func (s *stage) bareTurns(ctx context.Context, c *bare, n int) (time.Duration, error) {
	p := s.plan
	p.turns = n
	c.begin(p)
	began := time.Now()
	for range n + 1 {
		if err := c.ask(ctx, readmeText); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}

// turns compares a turn's time, the endpoint's share taken off, with the yardstick.
func (b *bench) turns(ctx context.Context) error {
	s, err := b.newStage(ctx, 4, b.box)
	if err != nil {
		return err
	}
	defer s.close()
	const task = 200
	var floor, ours, over Sample
	client := newBare(s.endpoint.url)
	for i := range max(2, b.n(4)) {
		sid := protocol.ID(fmt.Sprintf("turn%d", i))
		if err := s.session(ctx, sid); err != nil {
			return err
		}
		before, err := b.rtt(ctx)
		if err != nil {
			return err
		}
		direct, err := s.bareTurns(ctx, client, task)
		if err != nil {
			return err
		}
		took, err := s.turns(ctx, sid, task)
		if err != nil {
			return err
		}
		after, err := b.rtt(ctx)
		if err != nil {
			return err
		}
		floor = append(floor, micros(direct)/(task+1))
		ours = append(ours, micros(took)/(task+1))
		over = append(over, (micros(took)-micros(direct))/(task+1)/((before+after)/2))
	}
	b.add(Row{
		Name: "turn.wall", What: "200 turns of one read_file, per turn, without a bare client's", Unit: "µs", Floor: floor.stat(), Ours: ours.stat(),
		Figure: over.quantile(0.5), Of: "× RTT", Target: 12, Note: "sandbox " + b.box + "; floor: the bare client",
	})
	return nil
}

// sessions runs the same script in many sessions at once.
func (b *bench) sessions(ctx context.Context) error {
	curve := Series{Name: "sessions", What: "Turns a second over sessions at once", X: "sessions", Y: "turns/s"}
	rate := Line{Name: "rookery"}
	var errs []error
	for _, n := range []int{1, 16, 64, 256} {
		rows, err := b.atOnce(ctx, n)
		if err != nil {
			errs = append(errs, fmt.Errorf("%d sessions: %w", n, err))
			continue
		}
		b.add(rows...)
		rate.add(float64(n), rows[0].Ours.Median)
	}
	curve.Lines = []Line{rate}
	b.draw(curve)
	return errors.Join(errs...)
}

// atOnce gives the rate, the processor's time and the memory of n sessions.
func (b *bench) atOnce(ctx context.Context, n int) ([]Row, error) {
	s, err := b.newStage(ctx, 32, b.box)
	if err != nil {
		return nil, err
	}
	defer s.close()
	ids := make([]protocol.ID, n)
	for i := range ids {
		ids[i] = protocol.ID(fmt.Sprintf("s%d", i))
	}
	if err := parallel(n, func(i int) error { return s.session(ctx, ids[i]) }); err != nil {
		return nil, err
	}
	turns := max(4, b.n(4000)/n)
	cpu, other, began := usage(), usageOf(s.endpoint.cmd.Process.Pid), time.Now()
	if err := parallel(n, func(i int) error { _, err := s.turns(ctx, ids[i], turns); return err }); err != nil {
		return nil, err
	}
	wall := time.Since(began)
	cpu, other = usage()-cpu, usageOf(s.endpoint.cmd.Process.Pid)-other
	all := float64(n * (turns + 1))
	share := fmt.Sprintf("the endpoint's share of the processors: %.0f %%", 100*other.Seconds()/(wall.Seconds()*float64(runtime.GOMAXPROCS(0))))
	rateRow := Row{
		Name: fmt.Sprintf("sessions.%d.rate", n), What: fmt.Sprintf("%d sessions at once, read_file", n), Unit: "turns/s",
		Ours: single(all / wall.Seconds()), Note: share,
	}
	cpuRow := Row{Name: fmt.Sprintf("sessions.%d.cpu", n), What: "processor time a turn, all but the endpoint", Unit: "µs", Ours: single(micros(cpu) / all)}
	if n == 64 {
		rateRow.Figure, rateRow.Of, rateRow.Target, rateRow.AtLeast = rateRow.Ours.Median, "turns/s", 900, true
		cpuRow.Figure, cpuRow.Of, cpuRow.Target = cpuRow.Ours.Median/1000, "ms", 1.6
	}
	return []Row{rateRow, cpuRow}, nil
}

// parallel runs f for 0..n-1 at once, at most 256 of them.
func parallel(n int, f func(i int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, n)
	free := make(chan struct{}, 256)
	for i := range n {
		free <- struct{}{}
		wg.Go(func() {
			errs[i] = f(i)
			<-free
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// history measures what a turn costs behind a history of so many turns, the bare
// client's time at the same length taken off.
func (b *bench) history(ctx context.Context) error {
	s, err := b.newStage(ctx, 4, b.box)
	if err != nil {
		return err
	}
	defer s.close()
	curve := Series{Name: "history", What: "A turn's own time over the turns before it", X: "turns before", Y: "µs"}
	ours := Line{Name: "rookery, without the endpoint"}
	first := 0.0
	client := newBare(s.endpoint.url)
	for _, n := range []int{10, 100, b.n(1000)} {
		took, err := s.behind(ctx, n, client)
		if err != nil {
			return err
		}
		ours.add(float64(n), took.Median)
		if first == 0 {
			first = took.Median
		}
		b.add(Row{
			Name: fmt.Sprintf("history.%d", n), What: fmt.Sprintf("a turn's own time behind %d turns", n), Unit: "µs",
			Ours: took, Figure: took.Median / first, Of: "× behind 10", Target: 1.2,
		})
	}
	curve.Lines = []Line{ours}
	b.draw(curve)
	return nil
}

// behind builds a history of n turns and measures short tasks behind it.
func (s *stage) behind(ctx context.Context, n int, client *bare) (Stat, error) {
	sid := protocol.ID(fmt.Sprintf("h%d", n))
	if err := s.session(ctx, sid); err != nil {
		return Stat{}, err
	}
	if _, err := s.turns(ctx, sid, n); err != nil {
		return Stat{}, err
	}
	const task = 40
	var own Sample
	for range max(2, s.bench.n(5)) {
		took, err := s.turns(ctx, sid, task)
		if err != nil {
			return Stat{}, err
		}
		direct, err := s.bareBehind(ctx, client, n, task)
		if err != nil {
			return Stat{}, err
		}
		own = append(own, (micros(took)-micros(direct))/(task+1))
	}
	return own.stat(), nil
}

// bareBehind makes the requests of a task behind n turns.
func (s *stage) bareBehind(ctx context.Context, c *bare, n, task int) (time.Duration, error) {
	p := s.plan
	p.turns = task
	c.begin(plan{})
	c.grow(n, readmeText)
	c.prompt(p)
	began := time.Now()
	for range task + 1 {
		if err := c.ask(ctx, readmeText); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}
