package client_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/client"
	"rookery/internal/bus"
	"rookery/protocol"
)

// A house is an orchestrator that answers a prompt by saying it back, word by word,
// and does nothing else. Everything it says goes over a real broker.
type house struct {
	bus  *bus.Bus
	node protocol.ID

	mu       sync.Mutex // handlers of the bus come on several goroutines
	sessions map[protocol.ID]*owned
}

// An owned session of a house.
type owned struct {
	log  *bus.Log
	n    uint64
	last string // id of the last command that was taken
	open *protocol.Segment
}

// serve opens house o1 on a bus, for the queue or only by name.
func serve(tb testing.TB, b *bus.Bus, queue bool) *house {
	tb.Helper()
	h := &house{bus: b, node: "o1", sessions: map[protocol.ID]*owned{}}
	refuse := func(_ protocol.ID, respond func(protocol.Reply)) { respond(protocol.Reply{Code: protocol.ReplyFailed}) }
	stop, err := b.ServeOrch(h.node, bus.Orchestrator{
		Command:  h.command,
		Remove:   refuse,
		Import:   func(sid protocol.ID, _ bus.Import, respond func(protocol.Reply)) { refuse(sid, respond) },
		Register: func(_ protocol.WorkerInfo, respond func(protocol.Reply)) { refuse("", respond) },
	}, queue)
	require.NoError(tb, err)
	tb.Cleanup(stop)
	return h
}

func (h *house) command(sid protocol.ID, verb protocol.Verb, c protocol.Command, respond func(protocol.Reply)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	o := h.sessions[sid]
	switch {
	case verb == protocol.VerbRun && o != nil && o.last == c.ID:
		respond(protocol.Reply{Code: protocol.ReplyAccepted})
	case verb == protocol.VerbRun:
		respond(h.run(sid, c))
	case verb == protocol.VerbSnap && o != nil:
		snap := &protocol.Snap{Epoch: o.log.Epoch()}
		if o.open != nil {
			snap.Segments = []protocol.Segment{*o.open}
		}
		respond(protocol.Reply{Code: protocol.ReplyAccepted, Snap: snap})
	case o == nil:
		respond(protocol.Reply{Code: protocol.ReplyNotFound, Reason: "there is no session " + string(sid)})
	case verb == protocol.VerbStatus:
		respond(protocol.Reply{Code: protocol.ReplyAccepted, Status: &protocol.Status{Session: sid, State: protocol.StateIdle, Model: "echo"}})
	case verb == protocol.VerbAbort:
		respond(protocol.Reply{Code: protocol.ReplyIdle})
	default:
		respond(protocol.Reply{Code: protocol.ReplyNotRunning, Reason: "session " + string(sid) + " runs no task"})
	}
}

// run records a whole task, streaming its text.
func (h *house) run(sid protocol.ID, c protocol.Command) protocol.Reply {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	o, err := h.own(ctx, sid)
	if err != nil {
		return protocol.Reply{Code: protocol.ReplyFailed, Reason: err.Error()}
	}
	o.last = c.ID
	prompt, _ := c.Prompt[0].(protocol.Text)
	if prompt.Text == "" {
		return protocol.Reply{Code: protocol.ReplyBadRequest, Reason: "the prompt is empty"}
	}
	if err := h.say(ctx, sid, o, c.ID, prompt.Text); err != nil {
		return protocol.Reply{Code: protocol.ReplyFailed, Reason: err.Error()}
	}
	return protocol.Reply{Code: protocol.ReplyAccepted, Seq: o.log.Last().Seq}
}

func (h *house) own(ctx context.Context, sid protocol.ID) (*owned, error) {
	if o := h.sessions[sid]; o != nil {
		return o, nil
	}
	log, err := h.bus.OpenLog(ctx, sid, h.node, "boot1")
	if err != nil {
		return nil, err
	}
	o := &owned{log: log, n: log.Last().N}
	h.sessions[sid] = o
	return o, nil
}

func (h *house) say(ctx context.Context, sid protocol.ID, o *owned, task, text string) error {
	if err := h.record(ctx, o, protocol.TaskBegin{TaskID: task, Of: "run"}, protocol.UserText(text), protocol.RequestBegin{}); err != nil {
		return err
	}
	h.stream(sid, o, "1.1", "You said: ", text)
	return h.record(ctx, o, completed("You said: "+text),
		protocol.RequestEnd{Status: protocol.Completed}, protocol.TaskEnd{TaskID: task, Status: protocol.TaskCompleted})
}

// stream says pieces of a text that is not recorded yet.
func (h *house) stream(sid protocol.ID, o *owned, id string, pieces ...string) {
	start := protocol.New(protocol.PartialText{Role: protocol.Assistant, EventType: protocol.Start})
	o.open = &protocol.Segment{ID: id, After: o.n, Start: start}
	h.live(sid, o, protocol.Live{Segment: id, Message: &start})
	for _, p := range pieces {
		m := protocol.New(protocol.PartialText{Role: protocol.Assistant, EventType: protocol.Delta, Text: p})
		h.live(sid, o, protocol.Live{Segment: id, Offset: len(o.open.Text), Message: &m})
		o.open.Text += p
	}
}

func (h *house) live(sid protocol.ID, o *owned, l protocol.Live) {
	l.Epoch, l.After = o.log.Epoch(), o.n
	_ = h.bus.PublishLive(sid, l) // lossy by contract
}

func (h *house) record(ctx context.Context, o *owned, ps ...protocol.Payload) error {
	ms := make([]protocol.Message, len(ps))
	for i, p := range ps {
		ms[i] = protocol.New(p)
	}
	o.n += uint64(len(ps))
	o.open = nil
	_, err := o.log.Append(ctx, 1, false, ms)
	return err
}

func completed(s string) protocol.Text {
	return protocol.Text{Role: protocol.Assistant, Text: s, StopReason: protocol.Completed}
}

// shown gathers what a watch of session s shows until stop says enough.
func shown(t *testing.T, ctx context.Context, c *client.Client, o *client.WatchOptions, stop func(client.Event) bool) []client.Event {
	t.Helper()
	var es []client.Event
	for e, err := range c.Watch(ctx, "s", o) {
		require.NoError(t, err, fmt.Sprint(len(es), " events"))
		if es = append(es, e); stop(e) {
			break
		}
	}
	return es
}

func taskEnd(e client.Event) bool {
	_, ok := e.Message.Payload.(protocol.TaskEnd)
	return ok
}

// soon bounds what a correct program ends by itself.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
