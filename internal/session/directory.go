package session

import (
	"context"
	"sync"
	"time"

	"rookery/protocol"
)

// A clerk has directory entries and usage rows to write, in order. Its goroutine
// is there while it has.
type clerk struct {
	mu   sync.Mutex // the owner adds, the clerk's goroutine takes
	todo []func(context.Context)
	busy bool
}

// maxClerk bounds what waits for the clerk.
const maxClerk = 256

// later gives the clerk something to do; false when it is far behind and the work is
// dropped.
func (s *session) later(f func(context.Context)) bool {
	c := &s.clerk
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.todo) >= maxClerk {
		s.log.Warn("clerk is behind, entry dropped")
		return false
	}
	c.todo = append(c.todo, f)
	if !c.busy {
		c.busy = true
		s.working.Go(c.work)
	}
	return true
}

// work works off what there is.
func (c *clerk) work() {
	for f := c.next(); f != nil; f = c.next() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		f(ctx)
		cancel()
	}
}

func (c *clerk) next() (f func(context.Context)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.todo) == 0 {
		c.todo, c.busy = nil, false
		return nil
	}
	f, c.todo = c.todo[0], c.todo[1:]
	return f
}

// enter writes the session's line of the directory.
func (s *session) enter() {
	s.changed = time.Now()
	s.list(s.h.cfg.Node, s.stateNow(), nil)
}

// announce enters a task that runs. Who started it is answered after that, because a
// survivor looks for running sessions in the directory (L005).
func (s *session) announce() {
	s.changed, s.unlisted = time.Now(), true
	s.list(s.h.cfg.Node, s.stateNow(), func() {
		s.unlisted = false
		for _, key := range s.begun {
			s.fire(key)
		}
		s.begun = nil
	})
}

// fireBegun answers for a task that is stored, once the directory has it.
func (s *session) fireBegun(key string) {
	if s.unlisted {
		s.begun = append(s.begun, key)
		return
	}
	s.fire(key)
}

// letGo writes that nobody owns the session, so that a successor need not wait.
func (s *session) letGo() {
	state := protocol.StateIdle
	if s.fold.State().Task != nil {
		state = protocol.StateRunning
	}
	s.list("", state, nil)
}

// list writes an entry; then, if not nil, is called by the owner when that is done or
// has failed.
func (s *session) list(node protocol.ID, state protocol.State, then func()) {
	e := protocol.Entry{
		Session: s.id, State: state, Node: node, Epoch: s.trace.Epoch(), Title: s.title, Untitled: s.untitled,
		At: s.changed.UTC().Format(time.RFC3339), Model: s.model.Name, Workspace: s.place,
	}
	queued := s.later(func(ctx context.Context) {
		if err := s.h.bus.PutSession(ctx, e); err != nil {
			s.log.WarnContext(ctx, "directory entry not written", "err", err)
		}
		if then != nil {
			_ = s.tell(context.Background(), then) // an owner that has ended answers nobody
		}
	})
	if !queued && then != nil {
		then()
	}
}
