package bus

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// A Queue is where calls wait for a worker or for the workers of a pool.
type Queue struct {
	Dest Destination `json:"-"`
	Name string      `json:"queue"` // of Dest
	// Waiting calls were given to nobody yet, Given ones to somebody who has not
	// said that he has them.
	Waiting uint64 `json:"waiting"`
	Given   int    `json:"given"`
	// Slots is how many free slots wait for a call.
	Slots int `json:"slots"`
}

// Queues lists the queues there are, those of workers that are gone included for
// some minutes, in order of their names.
func (b *Bus) Queues(ctx context.Context) ([]Queue, error) {
	s, err := b.js.Stream(ctx, b.stream(streamCall))
	if err != nil {
		return nil, fmt.Errorf("list the queues: %w", err)
	}
	var all []Queue
	list := s.ListConsumers(ctx)
	for c := range list.Info() {
		d, err := ParseDestination(strings.Replace(c.Name, "_", ".", 1))
		if err != nil {
			continue // not one of ours
		}
		all = append(all, Queue{Dest: d, Name: d.String(), Waiting: c.NumPending, Given: c.NumAckPending, Slots: c.NumWaiting})
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("list the queues: %w", err)
	}
	slices.SortFunc(all, func(a, b Queue) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}
