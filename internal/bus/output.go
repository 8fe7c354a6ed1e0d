package bus

import (
	"context"
	"sync"

	"github.com/nats-io/nats.go"

	"rookery/protocol"
)

// Bounds of what an Output holds for a slow reader.
const (
	maxLives  = 1024
	maxFrames = 8 << 20 // bytes of frames
)

// An Event is one of four things that a viewer sees.
type Event struct {
	// Frame is visible or an own record.
	Frame *Frame
	// Live is lossy: a delta, a waiting message or a beat.
	Live *protocol.Live
	// Gap: frames were lost; read the history from the last one that was applied.
	Gap bool
	// Link: the connection broke, or is back; frames may have been missed.
	Link *Link
}

// An Output is a subscription to what a session says. A reader that is too slow
// loses lives first; when frames must go too it is told by a Gap.
type Output struct {
	bus  *Bus
	stop []func()

	mu     sync.Mutex // the library's goroutine writes, Next reads
	queue  []Event
	frames int // bytes of frames in queue
	lives  int
	wake   chan struct{} // capacity 1: set when queue was empty
	closed bool
	parts  assembler
	shown  uint64 // last visible frame seen, 0 when none
	any    uint64 // last visible frame or own record seen
}

// Subscribe begins to listen. What happened before is in the History.
func (b *Bus) Subscribe(ctx context.Context, sid protocol.ID) (*Output, error) {
	if err := checkIDs(sid); err != nil {
		return nil, err
	}
	o := &Output{bus: b, wake: make(chan struct{}, 1)}
	live := b.outLive(sid)
	stop, err := b.subscribe(ctx, b.outAll(sid), "", func(m *nats.Msg) {
		if m.Subject == live {
			o.addLive(m)
			return
		}
		o.addPiece(m)
	})
	if err != nil {
		return nil, err
	}
	o.stop = []func(){stop, b.Watch(func(l Link) { o.add(Event{Link: &l}, 0) })}
	return o, nil
}

// Next waits for the next event; its error is the context's or ErrClosed.
func (o *Output) Next(ctx context.Context) (Event, error) {
	for {
		o.mu.Lock()
		if len(o.queue) > 0 {
			e := o.take()
			o.mu.Unlock()
			return e, nil
		}
		closed := o.closed
		o.mu.Unlock()
		if closed {
			return Event{}, ErrClosed
		}
		select {
		case <-o.wake:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		case <-o.bus.life.Done():
			return Event{}, ErrClosed
		}
	}
}

// take removes the first event; the caller holds mu.
func (o *Output) take() Event {
	e := o.queue[0]
	o.queue[0] = Event{}
	o.queue = o.queue[1:]
	switch {
	case e.Live != nil:
		o.lives--
	case e.Frame != nil:
		o.frames -= frameSize(*e.Frame)
	}
	return e
}

// Close ends the subscription; Next then returns what is left and ErrClosed.
func (o *Output) Close() {
	for _, stop := range o.stop {
		stop()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.signal()
}

func (o *Output) addLive(m *nats.Msg) {
	var l protocol.Live
	if err := protocol.Unmarshal(m.Data, &l); err != nil {
		o.bus.log.Debug("live message not understood", "subject", m.Subject, "err", err)
		return
	}
	o.add(Event{Live: &l}, 0)
}

func (o *Output) addPiece(m *nats.Msg) {
	c, err := o.bus.piece(m)
	if err != nil {
		o.bus.log.Warn("output not understood", "subject", m.Subject, "err", err)
		o.add(Event{Gap: true}, 0)
		return
	}
	o.mu.Lock()
	lost := o.shown != 0 && c.prev != o.shown
	if c.context == 0 {
		lost = o.any != 0 && c.prev != o.any
	} else {
		o.shown = c.seq
	}
	o.any = c.seq
	f, ok, err := o.parts.add(c)
	o.mu.Unlock()
	if err != nil {
		o.bus.log.Warn("output not understood", "subject", m.Subject, "err", err)
	}
	if lost || err != nil {
		o.add(Event{Gap: true}, 0)
	}
	if ok {
		o.add(Event{Frame: &f}, frameSize(f))
	}
}

// add queues e and keeps the queue within its bounds.
func (o *Output) add(e Event, size int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	if e.Live != nil {
		if o.lives >= maxLives {
			o.dropLives()
		}
		o.lives++
	}
	if o.frames += size; o.frames > maxFrames {
		o.queue, o.frames, o.lives = nil, 0, 0
		e = Event{Gap: true}
	}
	if n := len(o.queue); e.Gap && n > 0 && o.queue[n-1].Gap {
		return
	}
	o.queue = append(o.queue, e)
	o.signal()
}

// dropLives removes all lives; the frames between them stay in order.
func (o *Output) dropLives() {
	kept := o.queue[:0]
	for _, e := range o.queue {
		if e.Live == nil {
			kept = append(kept, e)
		}
	}
	clear(o.queue[len(kept):])
	o.queue, o.lives = kept, 0
}

func (o *Output) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func frameSize(f Frame) int {
	n := 256
	for _, m := range f.Messages {
		n += len(m.Encode())
	}
	return n
}

// PublishLive tells viewers something that is not recorded. It may be lost, and is
// while the connection is down (ErrUnreachable).
func (b *Bus) PublishLive(sid protocol.ID, l protocol.Live) error {
	if err := checkIDs(sid); err != nil {
		return err
	}
	return b.shout(b.out, b.outLive(sid), protocol.Encode(l))
}
