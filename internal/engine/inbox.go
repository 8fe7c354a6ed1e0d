package engine

import (
	"slices"
	"sync"

	"rookery/protocol"
)

// An inbox takes what comes from outside while a task runs: steering and the abort.
// Clients write it from any goroutine, the run reads it after every message.
type inbox struct {
	notify chan struct{} // capacity 1: something came; written by clients, read by the run

	mu        sync.Mutex
	steerable bool
	closed    bool
	aborted   bool
	by        string
	fresh     []protocol.SteeringQueued // accepted, not yet announced
	queue     []protocol.SteeringQueued // announced, not yet delivered
}

func newInbox(steerable bool, task *Task) *inbox {
	b := &inbox{notify: make(chan struct{}, 1), steerable: steerable}
	if task != nil {
		b.queue = slices.Clone(task.Steering)
	}
	return b
}

func (b *inbox) steer(s protocol.SteeringQueued) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || !b.steerable {
		return false
	}
	b.fresh = append(b.fresh, s)
	b.wake()
	return true
}

func (b *inbox) abort(by string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	if !b.aborted {
		b.aborted, b.by = true, by
		b.wake()
	}
	return true
}

func (b *inbox) wake() {
	select {
	case b.notify <- struct{}{}:
	default:
	}
}

// news returns the next accepted text that was not announced, and queues it.
func (b *inbox) news() (protocol.SteeringQueued, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.fresh) == 0 {
		return protocol.SteeringQueued{}, false
	}
	s := b.fresh[0]
	b.fresh = b.fresh[1:]
	b.queue = append(b.queue, s)
	return s, true
}

// drain takes all announced texts off the queue.
func (b *inbox) drain() []protocol.SteeringQueued {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queue
	b.queue = nil
	return q
}

// waiting reports queued texts.
func (b *inbox) waiting() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue)+len(b.fresh) > 0
}

// closeIfEmpty ends steering unless a text is queued, in one step, so that none is
// accepted and lost (L092).
func (b *inbox) closeIfEmpty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue)+len(b.fresh) > 0 || b.aborted {
		return false
	}
	b.closed = true
	return true
}

// close ends steering and returns the texts that no request got.
func (b *inbox) close() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	var left []string
	for _, s := range append(b.queue, b.fresh...) {
		left = append(left, s.Text)
	}
	b.queue, b.fresh = nil, nil
	return left
}

// interrupted reports an abort and who asked for it.
func (b *inbox) interrupted() (by string, yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.by, b.aborted
}
