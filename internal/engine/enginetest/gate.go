package enginetest

import (
	"context"
	"sync"
	"time"
)

// Gates are the named holds of a script. A release opens the hold for all who wait
// there, or for the next one to come. The zero value is ready; safe for concurrent use.
type Gates struct {
	mu     sync.Mutex
	queues map[string]*queue
}

type queue struct {
	open    chan struct{}
	waiting int
	tokens  int
}

func (g *Gates) queue(name string) *queue {
	if g.queues == nil {
		g.queues = map[string]*queue{}
	}
	q := g.queues[name]
	if q == nil {
		q = &queue{open: make(chan struct{})}
		g.queues[name] = q
	}
	return q
}

// Wait blocks until name is released or ctx is done; then it returns ctx's cause.
func (g *Gates) Wait(ctx context.Context, name string) error {
	g.mu.Lock()
	q := g.queue(name)
	if q.tokens > 0 {
		q.tokens--
		g.mu.Unlock()
		return nil
	}
	q.waiting++
	open := q.open
	g.mu.Unlock()
	select {
	case <-open:
		return nil
	case <-ctx.Done():
		g.leave(q, open)
		return context.Cause(ctx)
	}
}

// leave takes back a wait that its context ended, unless the hold opened meanwhile.
func (g *Gates) leave(q *queue, open chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if q.open == open {
		q.waiting--
	}
}

// Release opens the hold.
func (g *Gates) Release(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	q := g.queue(name)
	if q.waiting == 0 {
		q.tokens++
		return
	}
	close(q.open)
	q.open, q.waiting = make(chan struct{}), 0
}

// sleepUntil waits for an instant; false means that ctx ended first. An instant
// that has passed is no pause.
func sleepUntil(ctx context.Context, at time.Time) bool {
	d := time.Until(at)
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
