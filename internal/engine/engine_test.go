package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/engine"
	"rookery/protocol"
)

type modelFunc func(ctx context.Context, req engine.Request, emit func(protocol.Payload) error) engine.Outcome

func (f modelFunc) Stream(ctx context.Context, req engine.Request, emit func(protocol.Payload) error) engine.Outcome {
	return f(ctx, req, emit)
}

type toolFunc func(ctx context.Context, c engine.Call, emit func(string)) engine.Output

func (f toolFunc) Execute(ctx context.Context, c engine.Call, emit func(string)) engine.Output {
	return f(ctx, c, emit)
}

type allowAll struct{}

func (allowAll) Approve(context.Context, engine.Call, func(engine.Ask)) (engine.Verdict, error) {
	return engine.Verdict{Decision: protocol.Allow, By: "policy"}, nil
}

func lines(t *testing.T, e *engine.Engine) []string {
	t.Helper()
	var got []string
	for m := range e.Run(t.Context(), engine.Resume{}, engine.Input{TaskID: "t1", Prompt: protocol.Payloads{protocol.UserText("go")}}) {
		got = append(got, m.String())
	}
	return got
}

func TestEngine_OutputsReturnInCallOrder(t *testing.T) { // L036 L041 L046
	synctest.Test(t, func(t *testing.T) {
		n := 0
		var second []protocol.Message
		model := modelFunc(func(_ context.Context, req engine.Request, emit func(protocol.Payload) error) engine.Outcome {
			n++
			if n == 2 {
				second = req.Input
				return engine.Outcome{Status: protocol.Completed}
			}
			for _, id := range []string{"A", "B"} {
				_ = emit(protocol.ToolCall{Role: protocol.Assistant, Name: "t", Arguments: "{}", ToolCallID: id, StopReason: protocol.Completed})
			}
			return engine.Outcome{Status: protocol.Completed, Usage: &protocol.Usage{Total: 10}}
		})
		tools := toolFunc(func(_ context.Context, c engine.Call, _ func(string)) engine.Output {
			if c.ToolCallID == "A" {
				time.Sleep(80 * time.Millisecond)
			}
			return engine.Output{Text: "done " + c.ToolCallID, Stop: protocol.Completed}
		})
		e, err := engine.New(engine.Config{Model: model, Executor: tools, Approver: allowAll{}, Settings: engine.Settings{NoCompaction: true}})
		require.NoError(t, err)
		got := lines(t, e)
		require.Equal(t, "+task_end(completed)", got[len(got)-1])
		require.Len(t, second, 2)
		require.Equal(t, `tool_call_output[A,completed]"done A"`, second[0].String())
		require.Equal(t, `tool_call_output[B,completed]"done B"`, second[1].String())
		require.False(t, e.Steer("x", "late"))
	})
}
