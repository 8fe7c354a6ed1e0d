package client

import (
	"hash/maphash"
	"time"

	"rookery/internal/bus"
	"rookery/protocol"
)

// Bounds of what a view keeps.
const (
	maxHeld     = 2048
	maxHeldSize = 4 << 20
	maxOpen     = 1024
)

// A view is what one viewer knows of a session. It takes frames in order and live
// messages as they come, and makes events of them. It blocks nowhere.
type view struct {
	partials bool
	seed     maphash.Seed
	out      []Event // made, and not taken yet

	cursor protocol.Cursor // last place that was applied; all before it was
	n      uint64          // dense number of the last record that was applied
	placed bool            // n is known
	epoch  uint64
	idle   bool // no task runs, as far as the records say

	open  []*segment
	ended ended
	held  []protocol.Live // sent after a record that was not applied yet
	size  int             // of held, in bytes
	// torn: a fragment was lost, and a snapshot would show more.
	torn bool
}

func newView(from protocol.Cursor, partials bool) *view {
	return &view{
		partials: partials, seed: maphash.MakeSeed(), cursor: from,
		placed: from == protocol.Cursor{}, idle: from == protocol.Cursor{},
	}
}

// follows reports that nothing is missing between what was applied and f.
func (v *view) follows(f bus.Frame) bool { return f.Prev <= v.cursor.Seq }

// frame applies what is new of f. Callers have made sure that nothing is missing.
func (v *view) frame(f bus.Frame) {
	f, ok := f.After(v.cursor)
	switch {
	case !ok:
		return
	case f.Own != nil:
		v.own(f)
		return
	case f.Private:
		return
	}
	v.n, v.placed = f.N-1, true
	v.release()
	for i, m := range f.Messages {
		v.cursor = protocol.Cursor{Seq: f.Seq, Pos: f.Pos + i}
		v.record(m)
	}
}

func (v *view) own(f bus.Frame) {
	v.cursor = protocol.Cursor{Seq: f.Seq}
	v.emit(Event{Kind: Owned, Own: f.Own})
	v.enter(f.Own.Epoch)
}

// enter learns of an epoch; what an older owner said and was not shown is dropped.
func (v *view) enter(epoch uint64) {
	v.epoch = max(v.epoch, epoch)
	v.release()
}

// record shows a complete message, and before it what its fragments lack.
func (v *view) record(m protocol.Message) {
	v.n++
	w := complete(m.Payload)
	if v.partials {
		if w.key != "" {
			v.finish(w, m.Timestamp)
		}
		v.closeFor(m)
	}
	switch m.Payload.(type) {
	case protocol.TaskBegin:
		v.idle = false
	case protocol.TaskEnd:
		v.idle = true
	default:
	}
	v.emit(Event{Message: m, Recorded: true})
	v.release()
}

// finish shows what is missing of the fragments of a complete message.
func (v *view) finish(w whole, at time.Time) {
	s := v.take(w.key)
	if s != nil && !s.begins(w.text) {
		v.partial(at, piece(s.start, protocol.Stop, "", nil, protocol.Failed))
		s = nil
	}
	size := 0
	if s == nil {
		v.partial(at, piece(w.start, protocol.Start, "", nil, ""))
	} else {
		size = s.size
	}
	if rest := w.text[size:]; rest != "" {
		v.partial(at, piece(w.start, protocol.Delta, rest, nil, ""))
	}
	if len(w.images) > 0 {
		v.partial(at, piece(w.start, protocol.Delta, "", w.images, ""))
	}
	v.partial(at, piece(w.start, protocol.Stop, "", nil, w.stop))
	v.ended.add(w.key, v.n)
}

// closeFor stops the segments that a record shows to be given up: the model's with
// their request, all with their task.
func (v *view) closeFor(m protocol.Message) {
	reason, all := protocol.Failed, false
	switch p := m.Payload.(type) {
	case protocol.RequestBegin:
	case protocol.RequestEnd:
		if p.Status != protocol.Completed {
			reason = p.Status
		}
	case protocol.TaskEnd:
		all = true
		if p.Status == protocol.TaskAborted {
			reason = protocol.Aborted
		}
	default:
		return
	}
	kept := v.open[:0]
	for _, s := range v.open {
		if all || ofModel(s.key) {
			v.partial(m.Timestamp, piece(s.start, protocol.Stop, "", nil, reason))
		} else {
			kept = append(kept, s)
		}
	}
	clear(v.open[len(kept):])
	v.open = kept
	if v.ended.model = v.n; all {
		v.ended.floor = v.n
	}
}

// live takes a message that is not recorded; those sent after a record that was
// not applied yet wait for it.
func (v *view) live(l protocol.Live) {
	switch {
	case l.Message == nil || l.Epoch < v.epoch:
	case !v.placed || l.After > v.n:
		v.hold(l)
	default:
		v.epoch = l.Epoch
		v.show(l)
	}
}

func (v *view) hold(l protocol.Live) {
	n := len(fragment(l.Message.Payload).piece) + 256
	if len(v.held) >= maxHeld || v.size+n > maxHeldSize {
		v.held, v.size, v.torn = nil, 0, true
	}
	v.held, v.size = append(v.held, l), v.size+n
}

// release shows the held messages whose record was applied.
func (v *view) release() {
	if len(v.held) == 0 {
		return
	}
	held := v.held
	v.held, v.size = nil, 0
	for _, l := range held {
		v.live(l)
	}
}

// show places one live message. While no task runs there is nothing to stream: it
// is of an owner whose last records were never stored.
func (v *view) show(l protocol.Live) {
	if v.idle {
		return
	}
	f := fragment(l.Message.Payload)
	if f.key == "" {
		v.other(l)
		return
	}
	if !v.partials || v.ended.late(f.key, l.After) {
		return
	}
	s := v.find(f.key)
	same := s != nil && s.id == l.Segment && s.epoch == l.Epoch
	switch {
	case f.event == protocol.Start:
		v.begin(s, same, f.key, l)
	case f.event == protocol.Stop, len(f.images) > 0:
		// Both come with the complete message, which is about to be stored.
	case !same || l.Offset > s.size:
		v.torn = true
	case l.Offset+len(f.piece) > s.size:
		rest := f.piece[s.size-l.Offset:]
		s.add(rest)
		v.partial(l.Message.Timestamp, piece(s.start, protocol.Delta, rest, nil, ""))
	}
}

// begin opens a segment. One that is open under the same key belongs to an owner
// that is gone: the same dispatch goes on under the new one.
func (v *view) begin(s *segment, same bool, key string, l protocol.Live) {
	switch {
	case same:
		return
	case s != nil && s.id == l.Segment:
		s.epoch = l.Epoch
		return
	case s != nil:
		v.take(key)
		v.partial(l.Message.Timestamp, piece(s.start, protocol.Stop, "", nil, protocol.Failed))
	case len(v.open) >= maxOpen:
		return
	}
	start := piece(l.Message.Payload, protocol.Start, "", nil, "")
	v.open = append(v.open, newSegment(v.seed, key, l.Segment, l.Epoch, start))
	v.partial(l.Message.Timestamp, start)
}

// other shows a message that is neither recorded nor a fragment.
func (v *view) other(l protocol.Live) {
	if w, ok := l.Message.Payload.(protocol.Waiting); ok && v.ended.late(outputKey(w.ToolCallID), l.After) {
		return
	}
	v.emit(Event{Message: *l.Message})
}

// snapshot takes one page of what is being streamed as the messages that were sent.
func (v *view) snapshot(snap protocol.Snap) {
	for _, s := range snap.Segments {
		start := s.Start
		v.live(protocol.Live{Epoch: snap.Epoch, After: s.After, Segment: s.ID, Message: &start})
		text := start.With(piece(start.Payload, protocol.Delta, s.Text, nil, ""))
		v.live(protocol.Live{Epoch: snap.Epoch, After: s.After, Segment: s.ID, Offset: s.Offset, Message: &text})
	}
}

func (v *view) find(key string) *segment {
	for _, s := range v.open {
		if s.key == key {
			return s
		}
	}
	return nil
}

// take removes an open segment.
func (v *view) take(key string) *segment {
	for i, s := range v.open {
		if s.key == key {
			v.open = append(v.open[:i], v.open[i+1:]...)
			return s
		}
	}
	return nil
}

func (v *view) partial(at time.Time, p protocol.Payload) {
	v.emit(Event{Message: protocol.Message{Timestamp: at, Payload: p}})
}

func (v *view) emit(e Event) {
	e.Cursor = v.cursor
	v.out = append(v.out, e)
}
