package client_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/client"
	"rookery/internal/bus"
	"rookery/internal/bus/bustest"
	"rookery/protocol"
)

func TestRun_FollowShowsTheTaskToItsEnd(t *testing.T) {
	b := bustest.Start(t)
	serve(t, b, true)
	c := client.New(b)
	for _, prompt := range []string{"one", "two"} {
		task, err := c.Run(soon(t), client.RunRequest{Session: "s", Prompt: prompt})
		require.NoError(t, err)
		var lines []string
		for e, err := range c.Follow(soon(t), task, &client.WatchOptions{NoPartials: true}) {
			require.NoError(t, err)
			if e.Kind == client.Message {
				lines = append(lines, e.Message.String())
			}
		}
		require.Equal(t, []string{
			"+task_begin(run)", `text[user]"` + prompt + `"`, "request_begin", `text[assistant]"You said: ` + prompt + `"`,
			"request_end(completed)", "+task_end(completed)",
		}, lines, "only this task is shown")
	}
}

func TestRun_ARepeatedIDStartsNoSecondTask(t *testing.T) {
	b := bustest.Start(t)
	serve(t, b, true)
	c := client.New(b)
	for range 2 {
		_, err := c.Run(soon(t), client.RunRequest{Session: "s", ID: "t1", Prompt: "hi"})
		require.NoError(t, err)
	}
	begun := 0
	for e, err := range c.History(soon(t), "s", protocol.Cursor{}) {
		require.NoError(t, err)
		if _, ok := e.Message.Payload.(protocol.TaskBegin); ok {
			begun++
		}
	}
	require.Equal(t, 1, begun)
}

func TestCommand_RefusalsAndAbsenceAreTold(t *testing.T) {
	b := bustest.Start(t)
	c := client.New(b)
	_, err := c.Run(soon(t), client.RunRequest{Prompt: "hi"})
	require.ErrorIs(t, err, client.ErrNoOrchestrator)
	require.ErrorIs(t, c.At("o9").Steer(soon(t), "s", "hi"), client.ErrNoOrchestrator)

	serve(t, b, true)
	_, err = c.Status(soon(t), "s")
	require.ErrorIs(t, err, client.ErrNoSession)
	_, err = c.Run(soon(t), client.RunRequest{Session: "s", Prompt: "hi"})
	require.NoError(t, err)
	var refused *client.RefusedError
	require.ErrorAs(t, c.Steer(soon(t), "s", "hi"), &refused)
	require.Equal(t, protocol.ReplyNotRunning, refused.Reply.Code)
	require.EqualError(t, refused, "steer s: not_running: session s runs no task")
	running, err := c.Abort(soon(t), "s", "user")
	require.NoError(t, err)
	require.False(t, running)
	_, err = c.Run(soon(t), client.RunRequest{Session: "s", Prompt: strings.Repeat("x", protocol.MaxBody)})
	require.ErrorIs(t, err, client.ErrTooLarge)
}

func TestAt_FollowsTheAnswerToAnotherOrchestrator(t *testing.T) {
	b := bustest.Start(t)
	serve(t, b, false)
	forward := func(to protocol.ID) bus.Orchestrator {
		return bus.Orchestrator{
			Command: func(_ protocol.ID, _ protocol.Verb, _ protocol.Command, respond func(protocol.Reply)) {
				respond(protocol.Reply{Code: protocol.ReplyUse, Use: to})
			},
		}
	}
	for at, to := range map[protocol.ID]protocol.ID{"o2": "o1", "o3": "o4", "o4": "o3"} {
		stop, err := b.ServeOrch(at, forward(to), false)
		require.NoError(t, err)
		t.Cleanup(stop)
	}
	_, err := client.New(b).At("o2").Run(soon(t), client.RunRequest{Session: "s", Prompt: "hi"})
	require.NoError(t, err)
	_, err = client.New(b).At("o3").Run(soon(t), client.RunRequest{Session: "s", Prompt: "hi"})
	require.ErrorIs(t, err, client.ErrNoOrchestrator, "orchestrators that point to each other are no endless loop")
}

func TestWatch_AViewerInMidSegmentSeesItsBeginning(t *testing.T) {
	b := bustest.Start(t)
	h := serve(t, b, true)
	o, err := h.own(soon(t), "s")
	require.NoError(t, err)
	require.NoError(t, h.record(soon(t), o, protocol.TaskBegin{TaskID: "t", Of: "run"}, protocol.RequestBegin{}))
	h.stream("s", o, "1.1", "half a ")
	step := 0
	es := shown(t, soon(t), client.New(b), nil, func(e client.Event) bool {
		p, _ := e.Message.Payload.(protocol.PartialText)
		switch {
		case e.Kind == client.CaughtUp:
			step++
			h.mu.Lock()
			m := protocol.New(protocol.PartialText{Role: protocol.Assistant, EventType: protocol.Delta, Text: "sentence"})
			h.live("s", o, protocol.Live{Segment: "1.1", Offset: len("half a "), Message: &m})
			h.mu.Unlock()
		case p.Text == "sentence":
			step++
			require.NoError(t, h.record(soon(t), o, completed("half a sentence."), protocol.RequestEnd{Status: protocol.Completed},
				protocol.TaskEnd{TaskID: "t", Status: protocol.TaskCompleted}))
		}
		return taskEnd(e)
	})
	require.Equal(t, 2, step)
	var lines []string
	for _, e := range es {
		if e.Kind == client.Message {
			lines = append(lines, e.Message.String())
		}
	}
	require.Equal(t, []string{
		"+task_begin(run)", "request_begin", "partial_text(start)", `partial_text(delta:"half a ")`, `partial_text(delta:"sentence")`,
		`partial_text(delta:".")`, "partial_text(stop)", `text[assistant]"half a sentence."`, "request_end(completed)", "+task_end(completed)",
	}, lines)
}

func TestWatch_ACutConnectionLosesNothing(t *testing.T) {
	s := bustest.NewServer(t)
	h := serve(t, s.Bus(t), true)
	o, err := h.own(soon(t), "s")
	require.NoError(t, err)
	require.NoError(t, h.record(soon(t), o, protocol.TaskBegin{TaskID: "t", Of: "run"}))
	kinds := map[client.Kind]int{}
	es := shown(t, soon(t), client.New(s.Bus(t)), nil, func(e client.Event) bool {
		kinds[e.Kind]++
		switch e.Kind {
		case client.CaughtUp:
			s.Cut()
		case client.Reconnecting:
			require.NoError(t, h.record(soon(t), o, completed("said while you were away")))
		case client.Reconnected:
			require.NoError(t, h.record(soon(t), o, protocol.TaskEnd{TaskID: "t", Status: protocol.TaskCompleted}))
		case client.Message, client.Owned:
		}
		return taskEnd(e)
	})
	require.Positive(t, kinds[client.Reconnecting])
	require.Len(t, recorded(es), 3)
	checkFragments(t, es)
}

func TestWatch_ASlowViewerLosesNoCompleteMessage(t *testing.T) {
	b := bustest.Start(t)
	h := serve(t, b, true)
	o, err := h.own(soon(t), "s")
	require.NoError(t, err)
	require.NoError(t, h.record(soon(t), o, protocol.TaskBegin{TaskID: "t", Of: "run"}))
	const texts = 150
	big := strings.Repeat("x", 100<<10) // more than a subscription holds, in sum
	es := shown(t, soon(t), client.New(b), nil, func(e client.Event) bool {
		if e.Kind == client.CaughtUp { // nothing is read meanwhile
			for range texts {
				h.stream("s", o, "1.1", "x", "x")
				require.NoError(t, h.record(soon(t), o, completed(big)))
			}
			require.NoError(t, h.record(soon(t), o, protocol.TaskEnd{TaskID: "t", Status: protocol.TaskCompleted}))
		}
		return taskEnd(e)
	})
	require.Len(t, recorded(es), texts+2)
	checkFragments(t, es)
}

func TestWatch_ACursorGoesOnWhereItWas(t *testing.T) {
	b := bustest.Start(t)
	serve(t, b, true)
	c := client.New(b)
	_, err := c.Run(soon(t), client.RunRequest{Session: "s", Prompt: "hi"})
	require.NoError(t, err)
	all := recorded(shown(t, soon(t), c, nil, taskEnd))
	require.Len(t, all, 6)
	for i := range all[:5] {
		var seen []client.Event
		for e, err := range c.History(soon(t), "s", protocol.Cursor{}) {
			require.NoError(t, err)
			if e.Recorded {
				seen = append(seen, e)
			}
		}
		from := seen[i].Cursor
		text, err := from.MarshalText()
		require.NoError(t, err)
		require.NoError(t, from.UnmarshalText(text))
		require.Equal(t, all[i+1:], recorded(shown(t, soon(t), c, &client.WatchOptions{From: from}, taskEnd)))
	}
}

func TestWatch_EndsWithItsReason(t *testing.T) {
	s := bustest.NewServer(t)
	b := s.Bus(t)
	serve(t, b, true)
	last := func(ctx context.Context, c *client.Client, sid protocol.ID, f func(client.Event)) (last error) {
		for e, err := range c.Watch(ctx, sid, nil) {
			if last = err; err == nil {
				f(e)
			}
		}
		return last
	}
	require.ErrorIs(t, last(soon(t), client.New(b), "nosuch", nil), client.ErrNoSession)

	_, err := client.New(b).Run(soon(t), client.RunRequest{Session: "s", Prompt: "hi"})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(soon(t))
	require.ErrorIs(t, last(ctx, client.New(b), "s", func(e client.Event) {
		if e.Kind == client.CaughtUp {
			cancel()
		}
	}), context.Canceled)

	other := s.Connect(t, bus.Options{})
	require.ErrorIs(t, last(soon(t), client.New(other), "s", func(e client.Event) {
		if e.Kind == client.CaughtUp {
			other.Close()
		}
	}), client.ErrClosed)
}

func TestRecords_HaveWhatIsPrivate(t *testing.T) {
	b := bustest.Start(t)
	h := serve(t, b, true)
	o, err := h.own(soon(t), "s")
	require.NoError(t, err)
	_, err = o.log.Append(soon(t), 1, true, []protocol.Message{protocol.New(protocol.SessionMeta{SessionID: "s"})})
	require.NoError(t, err)
	require.NoError(t, h.record(soon(t), o, protocol.UserText("hi")))
	var lines []string
	for r, err := range client.New(b).Records(soon(t), "s") {
		require.NoError(t, err)
		switch {
		case r.Own != nil:
			lines = append(lines, "own "+string(r.Own.Node))
		case r.Private:
			lines = append(lines, "private "+r.Message.String())
		default:
			lines = append(lines, r.Message.String())
		}
	}
	require.Equal(t, []string{"own o1", "private session_meta", `text[user]"hi"`}, lines)
	for _, err := range client.New(b).Records(soon(t), "nosuch") {
		require.ErrorIs(t, err, client.ErrNoSession)
	}
}
