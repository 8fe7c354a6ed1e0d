package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"rookery/internal/bus"
	"rookery/protocol"
)

// calls compares a call's way, from the stored dispatch to the stored output, with
// the same four publishes by hand.
func (b *bench) calls(ctx context.Context) error {
	var errs []error
	for _, c := range []struct {
		name, what string
		rigOptions
		n int
	}{
		{"call.tcp", "tool call, no-op tool, TCP", rigOptions{}, 1500},
		{"call.pipe", "the same, in process", rigOptions{piped: true}, 1500},
		{"call.tcp.sync", "the same, TCP, sync always", rigOptions{sync: true}, 150},
	} {
		target := 1.5
		row, err := b.call(ctx, c.rigOptions, b.n(c.n))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.name, err))
			continue
		}
		row.Name, row.What, row.Unit = c.name, c.what, "µs"
		b.add(row.over(target))
	}
	return errors.Join(errs...)
}

const rounds = 3 // of floor and rookery in turns

func (b *bench) call(ctx context.Context, o rigOptions, n int) (Row, error) {
	r, err := b.newRig(ctx, o)
	if err != nil {
		return Row{}, err
	}
	defer r.close()
	turns := max(2, n/rounds)
	if _, err := r.host(ctx, caller{turns: turns}); err != nil {
		return Row{}, err
	}
	if err := r.worker(ctx, 4); err != nil {
		return Row{}, err
	}
	f, err := r.newFloor(ctx)
	if err != nil {
		return Row{}, err
	}
	defer f.close()
	asker, err := r.bus(ctx)
	if err != nil {
		return Row{}, err
	}
	e, err := r.ends()
	if err != nil {
		return Row{}, err
	}
	var floor, ours Sample
	for i := range rounds {
		if err := f.calls(ctx, turns, &floor); err != nil {
			return Row{}, fmt.Errorf("floor: %w", err)
		}
		sid := protocol.ID(fmt.Sprintf("call%d", i))
		if _, err := e.run(ctx, asker, sid, "go"); err != nil {
			return Row{}, err
		}
		if err := roundTrips(ctx, asker, sid, &ours); err != nil {
			return Row{}, err
		}
	}
	return Row{Floor: floor.stat(), Ours: ours.stat(), Note: "CALL, claim, result, trace; times are the broker's own"}, nil
}

// roundTrips reads from a trace how long each call took, by the broker's clock.
func roundTrips(ctx context.Context, b *bus.Bus, sid protocol.ID, s *Sample) error {
	sent := map[string]time.Time{}
	for f, err := range b.Trace(ctx, sid, 0) {
		if err != nil {
			return err
		}
		for _, m := range f.Messages {
			switch p := m.Payload.(type) {
			case protocol.CallDispatched:
				sent[p.ToolCallID] = f.Time
			case protocol.ToolCallOutput:
				s.add(f.Time.Sub(sent[p.ToolCallID]))
			default:
			}
		}
	}
	return nil
}
