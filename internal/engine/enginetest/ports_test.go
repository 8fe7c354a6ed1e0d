package enginetest_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/engine"
	"rookery/internal/engine/enginetest"
	"rookery/protocol"
)

// script is a model with the replies of a text, and what it found wrong.
type script struct {
	*enginetest.Model
	gates  enginetest.Gates
	faults []string
}

func newScript(t *testing.T, replies string) *script {
	t.Helper()
	s := &script{}
	s.Model = enginetest.NewModel(parse(t, "t\n-- script --\n"+replies).Replies(), &s.gates, func(line int, format string, args ...any) {
		s.faults = append(s.faults, fmt.Sprintf("%d: "+format, append([]any{line}, args...)...))
	})
	return s
}

// stream plays the next reply; hook sees each payload as it is emitted.
func (s *script) stream(ctx context.Context, hook func(string) error) ([]string, engine.Outcome) {
	var got []string
	out := s.Stream(ctx, engine.Request{IDs: &protocol.CallIDs{}}, func(p protocol.Payload) error {
		line := protocol.Notation(p, true)
		got = append(got, line)
		if hook != nil {
			return hook(line)
		}
		return nil
	})
	return got, out
}

func TestModel_StreamsWithExactPartials(t *testing.T) { // L022 L023
	s := newScript(t, "model\n  think \"\"\n  call A t {}\n  call A t {}\n  half text \"a\" \"b\"\n  usage 3\n  end malformed torn\n")
	got, out := s.stream(t.Context(), nil)
	require.Equal(t, []string{
		"partial_thinking(start)", "partial_thinking(stop)", `thinking""`,
		"partial_tool_call[A](start)", `partial_tool_call[A](delta:"{}")`, "partial_tool_call[A](stop)", "tool_call[A,completed] t {}",
		"partial_tool_call[A#2](start)", `partial_tool_call[A#2](delta:"{}")`, "partial_tool_call[A#2](stop)", "tool_call[A#2,completed] t {}",
		"partial_text(start)", `partial_text(delta:"a")`, `partial_text(delta:"b")`, "partial_text(stop,malformed)", `text[assistant,malformed]"ab"`,
	}, got)
	require.Equal(t, engine.Outcome{Status: protocol.Malformed, Message: "torn", Usage: &protocol.Usage{CacheWrite: 3, Total: 3}}, out)
}

func TestModel_LengthIsCompletedWithFailedHalves(t *testing.T) { // L057
	got, out := newScript(t, "model\n  half call A t {\n  end length\n").stream(t.Context(), nil)
	require.Equal(t, "tool_call[A,failed] t {", got[len(got)-1])
	require.Equal(t, engine.Outcome{Status: protocol.Completed, Finish: "length"}, out)
}

func TestModel_NoticesAnAbortOnlyWhereItPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript(t, "model\n  text a\n  text b\nmodel\n  text a\n  wait 1s\n  text b\nmodel\n  half text a\n  hold h\n  half call A t\n")
		for _, want := range []struct {
			status protocol.StopReason
			last   string
		}{
			{protocol.Completed, `text[assistant]"b"`},
			{protocol.Aborted, `text[assistant]"a"`},
			{protocol.Aborted, `text[assistant,aborted]"a"`},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			got, out := s.stream(ctx, func(string) error { cancel(); return nil })
			require.Equal(t, want.status, out.Status)
			require.Equal(t, want.last, got[len(got)-1])
		}
		require.Empty(t, s.faults)
	})
}

func TestModel_ClockRunsOnWhileEmitBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		_, out := newScript(t, "model\n  text a\n  wait 100ms\n  text b\n  wait 50ms\n").stream(t.Context(), func(line string) error {
			if line == `text[assistant]"a"` {
				time.Sleep(80 * time.Millisecond)
			}
			return nil
		})
		require.Equal(t, protocol.Completed, out.Status)
		require.Equal(t, 150*time.Millisecond, time.Since(start))
	})
}

func TestModel_HalfWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript(t, "model\n  half text a\nmodel\n  half text a\n")
		ctx, cancel := context.WithCancel(t.Context())
		got, out := s.stream(ctx, func(line string) error {
			if line == `partial_text(delta:"a")` {
				cancel()
			}
			return nil
		})
		require.Equal(t, protocol.Aborted, out.Status)
		require.Equal(t, `text[assistant,aborted]"a"`, got[len(got)-1])
		require.Empty(t, s.faults)

		_, _ = s.stream(t.Context(), nil)
		require.Equal(t, []string{"5: the reply leaves an item half, but has no end and the run is not aborted"}, s.faults)
	})
}

func TestModel_NoReplyLeft(t *testing.T) {
	s := newScript(t, "model\n")
	_, _ = s.stream(t.Context(), nil)
	_, out := s.stream(t.Context(), nil)
	require.Equal(t, protocol.Failed, out.Status)
	require.Equal(t, []string{"0: request 2 has no scripted reply"}, s.faults)
	require.Len(t, s.Requests(), 2)
}

func TestModel_EndsWhenEmitRefuses(t *testing.T) {
	s := newScript(t, "model\n  text a\n  text b\n")
	got, _ := s.stream(t.Context(), func(string) error { return errors.New("gone") })
	require.Len(t, got, 1)
}

func TestGates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g enginetest.Gates
		g.Release("h") // kept for the next one
		require.NoError(t, g.Wait(t.Context(), "h"))

		var opened atomic.Int32
		for range 2 {
			go func() {
				if g.Wait(t.Context(), "h") == nil {
					opened.Add(1)
				}
			}()
			synctest.Wait()
		}
		g.Release("h")
		synctest.Wait()
		require.EqualValues(t, 2, opened.Load(), "all who wait")

		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(gone)
		require.ErrorIs(t, g.Wait(ctx, "h"), gone)
		g.Release("h") // nobody waits any more
		require.NoError(t, g.Wait(t.Context(), "h"))
	})
}

// execute runs one call of a tool statement.
func execute(t *testing.T, ctx context.Context, line string, c enginetest.Config) (streamed []string, out engine.Output) {
	t.Helper()
	x := enginetest.NewTools(parse(t, "t\n-- script --\n"+line+"\n").Tools(), &enginetest.Gates{})
	x.Limit(c)
	out = x.Execute(ctx, engine.Call{ToolCall: protocol.ToolCall{Name: "t", Arguments: "{}", ToolCallID: "A"}}, func(p string) { streamed = append(streamed, p) })
	require.Equal(t, map[string]int{"A": 1}, x.Runs())
	return streamed, out
}

func TestTools(t *testing.T) {
	interrupted, cancel := context.WithCancelCause(t.Context())
	cancel(engine.ErrInterrupted)
	for line, want := range map[string]engine.Output{
		"":                                  {Text: "done A", Stop: protocol.Completed},
		`tool A output "x" deltas "y"`:      {Text: "x", Stop: protocol.Completed},
		`tool A deltas "x" "y" stop failed`: {Text: "xy", Stop: protocol.Failed},
		"tool A none":                       {Stop: protocol.Completed},
		"tool A die":                        {Text: protocol.NoteUnknown, Stop: protocol.Failed},
		"tool A twice":                      {Text: "done A", Stop: protocol.Completed},
	} {
		_, out := execute(t, t.Context(), line, enginetest.Config{})
		require.Equal(t, want, out, line)
	}
	streamed, out := execute(t, interrupted, `tool A deltas "x" hold h`, enginetest.Config{})
	require.Equal(t, []string{"x"}, streamed)
	require.Equal(t, engine.Output{Text: "x\n[interrupted: tool aborted by user]", Stop: protocol.Aborted}, out)
	_, out = execute(t, t.Context(), `tool A output "abc"`, enginetest.Config{MaxOutput: 2})
	require.Equal(t, "ab\n[output truncated: exceeded 2 chars]", out.Text)
}

func TestApprover(t *testing.T) { // L136
	require.Nil(t, enginetest.NewApprover("none"))
	var none *enginetest.Approver
	require.Equal(t, protocol.ReplyUnknownCall, none.Decide("A", protocol.Allow).Code)

	a := enginetest.NewApprover("ask")
	call := engine.Call{ToolCall: protocol.ToolCall{ToolCallID: "A", Name: "read_file"}}
	v, err := a.Approve(t.Context(), call, func(ask engine.Ask) {
		require.Equal(t, protocol.ReadOnly, ask.Permission)
		require.Equal(t, protocol.ReplyUnknownCall, a.Decide("B", protocol.Allow).Code)
		require.Equal(t, protocol.ReplyAccepted, a.Decide("A", protocol.Deny).Code)
	})
	require.NoError(t, err)
	require.Equal(t, engine.Verdict{Decision: protocol.Deny, By: "user"}, v)
	late := a.Decide("A", protocol.Allow)
	require.Equal(t, protocol.ReplyDecided, late.Code)
	require.Contains(t, late.Reason, "deny by user")

	ctx, cancel := context.WithCancel(t.Context())
	_, err = a.Approve(ctx, engine.Call{ToolCall: protocol.ToolCall{ToolCallID: "C"}}, func(engine.Ask) { cancel() })
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, protocol.ReplyUnknownCall, a.Decide("C", protocol.Allow).Code)
}
