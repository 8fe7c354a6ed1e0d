package client_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/client"
	"rookery/internal/bus"
	"rookery/protocol"
)

// TestView_AnyViewerEndsWithTheSameTranscript is the promise of the package, over
// many sessions, moments of joining, and kinds of loss.
func TestView_AnyViewerEndsWithTheSameTranscript(t *testing.T) {
	for seed := range uint64(400) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { play(t, seed) })
	}
}

func play(t *testing.T, seed uint64) {
	t.Helper()
	w := newWorld(seed)
	type member struct {
		*client.Viewer
		*pipe
		from protocol.Cursor
	}
	var members []member
	join := func() {
		from := protocol.Cursor{}
		if f := w.stored[w.rnd.IntN(len(w.stored))]; len(f.Messages) > 0 && w.chance(50) {
			from = protocol.Cursor{Seq: f.Seq, Pos: w.rnd.IntN(len(f.Messages))}
		}
		p := &pipe{w: w, perfect: w.chance(20)}
		w.pipes = append(w.pipes, p)
		m := member{client.NewViewer(w, from, w.snap), p, from}
		require.NoError(t, m.CatchUp(t.Context()))
		members = append(members, m)
	}
	for i := range 300 {
		w.step()
		if i%70 == 0 {
			join()
		}
		for _, m := range members {
			if len(m.queue) > 0 && w.chance(60) {
				e := m.queue[0]
				m.queue = m.queue[1:]
				require.NoError(t, m.Take(t.Context(), e))
			}
		}
	}
	w.finish()
	for i, m := range members {
		beat := bus.Event{Live: &protocol.Live{Epoch: w.epoch, After: w.n, Beat: &protocol.Beat{Seq: w.shown}}}
		for _, e := range append(m.queue, beat) {
			require.NoError(t, m.Take(t.Context(), e))
		}
		require.Equal(t, w.transcript(m.from), recorded(m.Shown), "viewer %d", i)
		checkFragments(t, m.Shown)
		open, held, _ := m.Kept()
		require.Zero(t, open+held, "viewer %d", i)
	}
}

// transcript is what is stored after a cursor.
func (w *world) transcript(from protocol.Cursor) []string {
	var lines []string
	for _, f := range w.stored {
		if f, ok := f.After(from); ok {
			for _, m := range f.Messages {
				lines = append(lines, string(m.Encode()))
			}
		}
	}
	return lines
}

func recorded(es []client.Event) []string {
	var lines []string
	for _, e := range es {
		if e.Recorded {
			lines = append(lines, string(e.Message.Encode()))
		}
	}
	return lines
}

// A producer is what checkFragments knows of one.
type producer struct {
	text   strings.Builder
	images int
	open   bool
}

// checkFragments holds what a viewer saw against L022: start, delta*, stop, and a
// complete message right after the stop, equal to its deltas.
func checkFragments(t *testing.T, es []client.Event) {
	t.Helper()
	producers := map[string]*producer{}
	last := map[string]string{}
	for i, e := range es {
		p := e.Message.Payload
		key, event, text, images := look(p)
		if key == "" {
			continue
		}
		pr := producers[key]
		switch event {
		case protocol.Start:
			require.True(t, pr == nil || !pr.open, "event %d: %s starts twice", i, key)
			pr = &producer{open: true}
			producers[key] = pr
		case protocol.Delta, protocol.Stop:
			require.True(t, pr != nil && pr.open, "event %d: %s of %s that is not open", i, event, key)
			pr.text.WriteString(text)
			pr.images += images
			pr.open = event != protocol.Stop
		default:
			require.Equal(t, "stop", last[key], "event %d: %s is complete after", i, key)
			require.Equal(t, text, pr.text.String(), "event %d: %s", i, key)
			require.Equal(t, images, pr.images, "event %d: images of %s", i, key)
		}
		last[key] = string(event)
	}
	for key, pr := range producers {
		require.False(t, pr.open, "%s is open at the end", key)
	}
}

// look tells which producer a message is of; event is empty for a complete one.
func look(p protocol.Payload) (key string, event protocol.EventType, text string, images int) {
	switch p := p.(type) {
	case protocol.PartialText:
		return "text", p.EventType, p.Text, 0
	case protocol.PartialThinking:
		return "thinking", p.EventType, p.Thinking, 0
	case protocol.PartialToolCall:
		return "call " + p.ToolCallID, p.EventType, p.Arguments, 0
	case protocol.PartialToolCallOutput:
		return "output " + p.ToolCallID, p.EventType, p.Output, len(p.Images)
	case protocol.Text:
		if p.Role == protocol.Assistant {
			return "text", "", p.Text, 0
		}
	case protocol.Thinking:
		return "thinking", "", p.Thinking, 0
	case protocol.ToolCall:
		return "call " + p.ToolCallID, "", p.Arguments, 0
	case protocol.ToolCallOutput:
		return "output " + p.ToolCallID, "", p.Output, len(p.Images)
	default: // never streamed
	}
	return "", "", "", 0
}

// A long session with thousands of calls costs a viewer no more than a short one.
func TestView_IsBounded(t *testing.T) {
	w := newWorld(1)
	p := &pipe{w: w, perfect: true}
	w.pipes = []*pipe{p}
	v := client.NewViewer(w, protocol.Cursor{}, w.snap)
	require.NoError(t, v.CatchUp(t.Context()))
	hear := func() {
		for len(w.queue) > 0 {
			w.store()
		}
		for _, e := range p.queue {
			require.NoError(t, v.Take(t.Context(), e))
		}
		p.queue = nil
	}
	w.record(protocol.TaskBegin{TaskID: "t", Of: "run"})
	var late []bus.Event
	for i := range 3000 {
		id := fmt.Sprint("c", i)
		w.begin("out:"+id, id, protocol.PartialToolCallOutput{Role: protocol.User, EventType: protocol.Start, ToolCallID: id})
		w.grow(w.open[0])
		late = append(late, p.queue...)
		w.complete(w.open[0], protocol.Completed)
		hear()
	}
	before := len(v.Shown)
	for _, e := range late {
		require.NoError(t, v.Take(t.Context(), e))
	}
	require.Len(t, v.Shown, before, "what comes late is not shown again")
	for range 10_000 { // of a record that never comes
		w.n++
		w.say(protocol.Live{Segment: "x", Message: &protocol.Message{Payload: protocol.PartialText{EventType: protocol.Delta, Text: "x"}}})
	}
	hear()
	open, held, ended := v.Kept()
	require.Zero(t, open)
	require.LessOrEqual(t, held, 2048)
	require.LessOrEqual(t, ended, 256)
	checkFragments(t, v.Shown)
}
