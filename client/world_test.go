package client_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"rookery/internal/bus"
	"rookery/protocol"
)

// A world is a session that makes things up: its owner queues records, stores them
// in frames, streams deltas of what it is about to record, and is replaced now and
// then. Its viewers hear all that over pipes that lose, repeat and reorder.
type world struct {
	rnd     *rand.Rand
	seq     uint64 // of the stream; other sessions write, too
	shown   uint64
	any     uint64
	stored  []bus.Frame
	queue   []protocol.Message // not stored yet
	n       uint64             // queued ones included
	epoch   uint64
	open    []*stream
	running bool // a task
	asking  bool // a request
	request int
	calls   []string // of the turn, without output
	pipes   []*pipe
}

// A stream is one segment as its owner knows it.
type stream struct {
	key, id string
	start   protocol.Message
	text    string
	sent    int
}

func newWorld(seed uint64) *world {
	w := &world{rnd: rand.New(rand.NewPCG(seed, 7))}
	w.take()
	return w
}

func (w *world) chance(percent int) bool { return w.rnd.IntN(100) < percent }

// take makes another owner: what was not stored is lost, and so is what streams.
func (w *world) take() {
	w.n -= uint64(len(w.queue))
	w.queue, w.open = nil, nil
	w.epoch++
	w.seq += 1 + w.rnd.Uint64N(3)
	f := bus.Frame{Seq: w.seq, Prev: w.any, Own: &protocol.Own{Epoch: w.epoch, Node: "o1", Boot: "b"}}
	w.any = w.seq
	w.stored = append(w.stored, f)
	w.tell(bus.Event{Frame: &f})
	w.recall()
}

// recall derives the loop's state from what is stored, and closes the request that
// the predecessor left open.
func (w *world) recall() {
	w.running, w.asking, w.calls = false, false, nil
	for _, f := range w.stored {
		for _, m := range f.Messages {
			w.observe(m.Payload)
		}
	}
	if w.asking {
		w.record(protocol.RequestEnd{Status: protocol.Timeout})
	}
}

func (w *world) observe(p protocol.Payload) {
	switch p := p.(type) {
	case protocol.TaskBegin:
		w.running = true
	case protocol.TaskEnd:
		w.running = false
	case protocol.RequestBegin:
		w.asking = true
	case protocol.RequestEnd:
		w.asking = false
	case protocol.ToolCall:
		w.calls = append(w.calls, p.ToolCallID)
	case protocol.ToolCallOutput:
		w.calls = slices.DeleteFunc(w.calls, func(id string) bool { return id == p.ToolCallID })
	default:
	}
}

func (w *world) record(p protocol.Payload) {
	w.observe(p)
	w.n++
	w.queue = append(w.queue, protocol.New(p).Sealed())
}

// store makes a frame of what is queued, at times after a private one.
func (w *world) store() {
	if len(w.queue) == 0 {
		return
	}
	k := 1 + w.rnd.IntN(len(w.queue))
	w.seq += 1 + w.rnd.Uint64N(4)
	f := bus.Frame{Seq: w.seq, Context: 1, N: w.n - uint64(len(w.queue)) + 1, Prev: w.shown, Messages: w.queue[:k:k]}
	w.queue = w.queue[k:]
	w.shown, w.any = w.seq, w.seq
	w.stored = append(w.stored, f)
	w.tell(bus.Event{Frame: &f})
}

func (w *world) tell(e bus.Event) {
	for _, p := range w.pipes {
		p.put(e)
	}
}

func (w *world) say(l protocol.Live) {
	l.Epoch, l.After = w.epoch, w.n
	w.tell(bus.Event{Live: &l})
}

// begin starts to stream.
func (w *world) begin(key, id string, start protocol.Payload) {
	for _, s := range w.open {
		if s.key == key {
			return
		}
	}
	s := &stream{key: key, id: id, start: protocol.New(start)}
	w.open = append(w.open, s)
	w.say(protocol.Live{Segment: id, Message: &s.start})
}

// grow lengthens a segment, and sends what was held back or not.
func (w *world) grow(s *stream) {
	s.text += strings.Repeat(string(rune('a'+w.rnd.IntN(26))), 1+w.rnd.IntN(3)) + "é"
	if w.chance(70) {
		w.send(s)
	}
}

func (w *world) send(s *stream) {
	if s.sent == len(s.text) {
		return
	}
	m := protocol.New(fragmentOf(s.start.Payload, protocol.Delta, s.text[s.sent:], protocol.Completed))
	w.say(protocol.Live{Segment: s.id, Offset: s.sent, Message: &m})
	s.sent = len(s.text)
}

// complete ends a segment: the rest, the stop, the record.
func (w *world) complete(s *stream, stop protocol.StopReason) {
	w.send(s)
	m := protocol.New(fragmentOf(s.start.Payload, protocol.Stop, "", stop))
	w.say(protocol.Live{Segment: s.id, Offset: s.sent, Message: &m})
	w.open = slices.DeleteFunc(w.open, func(o *stream) bool { return o == s })
	w.record(completeOf(s, stop))
}

// step does one thing that a session may do now.
func (w *world) step() {
	switch {
	case w.chance(35):
		w.store()
	case w.chance(2):
		w.take()
	case len(w.open) > 0 && w.chance(75):
		s := w.open[w.rnd.IntN(len(w.open))]
		if w.chance(80) {
			w.grow(s)
		} else {
			w.complete(s, protocol.Completed)
		}
	case !w.running:
		w.record(protocol.TaskBegin{TaskID: fmt.Sprint("t", w.n), Of: "run"})
		w.record(protocol.UserText("go"))
	case w.asking:
		w.model()
	case len(w.calls) > 0:
		id := w.calls[w.rnd.IntN(len(w.calls))]
		w.begin("out:"+id, "1-"+id, protocol.PartialToolCallOutput{Role: protocol.User, EventType: protocol.Start, ToolCallID: id})
	case w.chance(80):
		w.request++
		w.record(protocol.RequestBegin{})
	default:
		w.record(protocol.TaskEnd{TaskID: "t", Status: protocol.TaskCompleted})
	}
}

// model says something in the running request, or ends it.
func (w *world) model() {
	id := fmt.Sprintf("%d.%d.%d", w.epoch, w.request, w.n)
	switch {
	case w.chance(30):
		w.begin("text", id, protocol.PartialText{Role: protocol.Assistant, EventType: protocol.Start})
	case w.chance(30):
		w.begin("thinking", id, protocol.PartialThinking{Role: protocol.Assistant, EventType: protocol.Start})
	case w.chance(50):
		call := fmt.Sprintf("c%d-%d", w.epoch, w.n)
		w.begin("call:"+call, id, protocol.PartialToolCall{Role: protocol.Assistant, EventType: protocol.Start, Name: "t", ToolCallID: call})
	default:
		status := protocol.Completed
		if w.chance(30) {
			status = protocol.Malformed
		}
		for _, s := range slices.Clone(w.open) {
			if !strings.HasPrefix(s.key, "out:") {
				w.complete(s, status)
			}
		}
		w.record(protocol.RequestEnd{Status: status})
	}
}

// finish ends the task and stores everything.
func (w *world) finish() {
	for w.running {
		switch {
		case w.asking:
			w.record(protocol.RequestEnd{Status: protocol.Failed})
		case len(w.open) > 0:
			w.complete(w.open[0], protocol.Aborted)
		default:
			w.record(protocol.TaskEnd{TaskID: "t", Status: protocol.TaskFailed})
		}
	}
	for len(w.queue) > 0 {
		w.store()
	}
}

// History implements client.Source; pages are small.
func (w *world) History(_ context.Context, _ protocol.ID, after protocol.Cursor) (bus.Page, error) {
	var p bus.Page
	for _, f := range w.stored {
		if f, ok := f.After(after); ok {
			if len(p.Frames) == 3 {
				p.More = true
				break
			}
			p.Frames = append(p.Frames, f)
		}
	}
	return p, nil
}

// Connected implements client.Source.
func (w *world) Connected() bool { return true }

// snap is the owner's answer; it fails at times, and its pages are one segment each.
func (w *world) snap(_ context.Context, page int) (protocol.Reply, error) {
	if w.chance(20) {
		return protocol.Reply{}, errors.New("no answer")
	}
	snap := &protocol.Snap{Epoch: w.epoch, More: page+1 < len(w.open)}
	if page < len(w.open) {
		s := w.open[page]
		snap.Segments = []protocol.Segment{{ID: s.id, After: w.n, Start: s.start, Text: s.text}}
	}
	return protocol.Reply{Code: protocol.ReplyAccepted, Snap: snap}, nil
}

// A pipe brings events to one viewer, badly.
type pipe struct {
	w       *world
	queue   []bus.Event
	perfect bool
}

func (p *pipe) put(e bus.Event) {
	r := p.w.rnd
	switch {
	case p.perfect:
	case p.w.chance(15):
		return // lost
	case e.Frame != nil && p.w.chance(5):
		e = bus.Event{Gap: true}
	case p.w.chance(10):
		p.queue = append(p.queue, e) // twice
	case e.Live != nil && len(p.queue) > 0 && p.w.chance(20):
		p.queue = slices.Insert(p.queue, r.IntN(len(p.queue)), e)
		return
	}
	p.queue = append(p.queue, e)
}

func fragmentOf(start protocol.Payload, e protocol.EventType, text string, stop protocol.StopReason) protocol.Payload {
	switch p := start.(type) {
	case protocol.PartialText:
		p.EventType, p.Text, p.StopReason = e, text, stop
		return p
	case protocol.PartialThinking:
		p.EventType, p.Thinking, p.StopReason = e, text, stop
		return p
	case protocol.PartialToolCall:
		p.EventType, p.Arguments, p.StopReason, p.Name = e, text, stop, ""
		return p
	case protocol.PartialToolCallOutput:
		p.EventType, p.Output, p.StopReason = e, text, stop
		return p
	default:
		return nil
	}
}

func completeOf(s *stream, stop protocol.StopReason) protocol.Payload {
	switch p := s.start.Payload.(type) {
	case protocol.PartialText:
		return protocol.Text{Role: p.Role, Text: s.text, StopReason: stop}
	case protocol.PartialThinking:
		return protocol.Thinking{Role: p.Role, Thinking: s.text, StopReason: stop}
	case protocol.PartialToolCall:
		return protocol.ToolCall{Role: p.Role, Name: p.Name, Arguments: s.text, ToolCallID: p.ToolCallID, StopReason: stop}
	case protocol.PartialToolCallOutput:
		out := protocol.ToolCallOutput{Role: p.Role, Output: s.text, ToolCallID: p.ToolCallID, StopReason: stop}
		if len(s.text)%5 == 0 {
			out.Images = []string{"data:image/png;base64,AAAA"}
		}
		return out
	default:
		return nil
	}
}
