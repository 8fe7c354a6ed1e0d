package session

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"rookery/internal/bus"
	"rookery/internal/crash"
	"rookery/protocol"
)

// A record is one message on its way into the trace.
type record struct {
	context int
	private bool
	message protocol.Message
	then    []chan<- error // told once it is stored, or never will be; capacity 1 each
}

// stored is what the appender reports of one publish.
type stored struct {
	at      bus.Stored
	visible bool
	err     error
}

// record puts a message into the trace's queue, the fold, and what viewers know.
func (s *session) record(m protocol.Message, then ...chan<- error) {
	s.observe(m)
	ctx, private, recorded := s.placer.Place(m)
	if !recorded {
		s.live.say(s, m)
		return
	}
	m = m.Sealed()
	s.fold.Add(ctx, m)
	if !private {
		s.n++
	}
	s.live.completed(m.Payload)
	s.queue = append(s.queue, record{ctx, private, m, then})
}

const maxFrame = 240 << 10

// flush publishes the next frame unless one is in flight. What is half a step waits
// for its other half (see unready).
func (s *session) flush(ctx context.Context) {
	if len(s.flying) > 0 || len(s.queue) == 0 || s.fault != nil {
		return
	}
	first := s.queue[0]
	n, size := 0, 0
	for n < len(s.queue) && s.queue[n].context == first.context && s.queue[n].private == first.private {
		size += len(s.queue[n].message.Encode()) + 1
		if n > 0 && (size > maxFrame || crash.Between(s.queue[n-1].message, s.queue[n].message)) {
			break
		}
		n++
	}
	if n == len(s.queue) {
		if n -= s.unready(); n <= 0 {
			return
		}
	}
	s.flying = s.queue[:n:n]
	s.queue = s.queue[n:]
	ms := make([]protocol.Message, n)
	for i, r := range s.flying {
		ms[i] = r.message
	}
	s.working.Go(func() {
		actx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.h.cfg.WriteTimeout)
		defer cancel()
		crash.Before(ms)
		at, err := s.trace.Append(actx, first.context, first.private, ms)
		if err == nil {
			crash.After(ms)
		}
		s.stored <- stored{at: at, visible: !first.private, err: err}
	})
}

// settle takes the fate of a publish: on success who waited goes on, else the
// session is lost to this owner.
func (s *session) settle(ctx context.Context, st stored) {
	flying := s.flying
	s.flying = nil
	if st.err != nil {
		s.lose(ctx, st.err, flying)
		return
	}
	if st.visible {
		s.seen = st.at.Seq
	}
	for _, r := range flying {
		for _, c := range r.then {
			c <- nil
		}
		s.confirmed(ctx, r.message)
	}
}

// lose gives the session up: nothing more is recorded, shown or answered.
func (s *session) lose(ctx context.Context, err error, flying []record) {
	s.fault = fmt.Errorf("trace write failed: %w", err)
	if errors.Is(err, bus.ErrFenced) {
		s.fault = errLost
	}
	s.log.WarnContext(ctx, "session lost", "err", err)
	lost := append(flying, s.queue...)
	if !errors.Is(err, bus.ErrFenced) && (s.fold.State().Task != nil || endsTask(lost)) {
		s.h.fail(s, s.fault.Error())
	}
	for _, r := range lost {
		for _, c := range r.then {
			c <- s.fault
		}
	}
	s.queue = nil
	if s.stop != nil {
		s.stop()
	}
}

// endsTask reports that the end of a task is among records.
func endsTask(rs []record) bool {
	return slices.ContainsFunc(rs, func(r record) bool { return r.message.Kind() == (protocol.TaskEnd{}).Kind() })
}

// keep asks the owner to record p and waits until it is stored. It is how the
// engine's goroutines meet the barriers; the order of their sends is the trace's.
func (s *session) keep(ctx context.Context, p protocol.Payload) error {
	done := make(chan error, 1)
	if err := s.tell(ctx, keeping{protocol.New(p), done}); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-s.closed:
		return errLost
	}
}

// say asks the owner to record p and does not wait.
func (s *session) say(ctx context.Context, p protocol.Payload) error {
	return s.tell(ctx, keeping{message: protocol.New(p)})
}

func (s *session) tell(ctx context.Context, ev any) error {
	select {
	case s.events <- ev:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.closed:
		return errLost
	}
}

// keeping is an event: a message to record, and who waits for it.
type keeping struct {
	message protocol.Message
	stored  chan<- error // nil when nobody waits
}

// barrier is an event: who wants to know when all that came before it is stored.
type barrier struct{ stored chan<- error }

// sync waits until everything that was sent to the owner before is stored.
func (s *session) sync(ctx context.Context) error {
	done := make(chan error, 1)
	if err := s.tell(ctx, barrier{done}); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-s.closed:
		return errLost
	}
}

// take handles one event of the engine's side.
func (s *session) take(ev any) {
	if _, engine := ev.(protocol.Message); !engine && s.halfway() {
		s.held = append(s.held, ev)
		return
	}
	switch ev := ev.(type) {
	case protocol.Message:
		s.record(ev)
		if !s.halfway() {
			s.release()
		}
	case keeping:
		if ev.stored != nil {
			s.record(ev.message, ev.stored)
		} else {
			s.record(ev.message)
		}
	case barrier:
		s.await(ev.stored)
	case asking:
		s.pending[ev.p.call.ToolCallID] = ev.p
	case ended:
		s.taskOver(ev)
	case func():
		ev()
	}
}

// halfway reports a token_usage whose request_end has not come yet: the two are one
// step (L043), which nothing may part, not even what a running call records.
func (s *session) halfway() bool {
	if len(s.queue) == 0 || s.placer.Compacting {
		return false
	}
	_, half := s.queue[len(s.queue)-1].message.Payload.(protocol.TokenUsage)
	return half
}

// unready is how many records at the end of the queue wait for what belongs to them:
// a token_usage for its request_end, a task_begin for all of its prompt, so that an
// owner that dies leaves both or neither.
func (s *session) unready() int {
	if s.halfway() {
		return 1
	}
	for i, r := range slices.Backward(s.queue) {
		switch p := r.message.Payload.(type) {
		case protocol.TaskBegin:
			if n := len(s.queue) - i; p.Of == "run" && n <= s.prompt {
				return n
			}
			return 0
		case protocol.Text, protocol.ImageURL:
		default:
			return 0
		}
	}
	return 0
}

// release takes what had to wait for a request_end.
func (s *session) release() {
	held := s.held
	s.held = nil
	for _, ev := range held {
		s.take(ev)
	}
}

// await tells c when the last queued record is stored, at once when there is none.
func (s *session) await(c chan<- error) {
	switch {
	case len(s.queue) > 0:
		last := &s.queue[len(s.queue)-1]
		last.then = append(last.then, c)
	case len(s.flying) > 0:
		last := &s.flying[len(s.flying)-1]
		last.then = append(last.then, c)
	default:
		c <- nil
	}
}

// dropEvent answers an event that comes too late.
func (s *session) dropEvent(ev any) {
	switch ev := ev.(type) {
	case keeping:
		if ev.stored != nil {
			ev.stored <- errLost
		}
	case barrier:
		ev.stored <- errLost
	}
}
