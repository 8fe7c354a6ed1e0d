package engine_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/engine"
	"rookery/internal/engine/enginetest"
	"rookery/internal/trace"
	"rookery/protocol"
)

// scripted returns the scripted model of a scenario text.
func scripted(t *testing.T, script string) *enginetest.Model {
	t.Helper()
	s, err := enginetest.Parse("script", []byte("t\n-- script --\n"+script))
	require.NoError(t, err)
	return enginetest.NewModel(s.Replies(), &enginetest.Gates{}, func(line int, format string, args ...any) {
		t.Errorf("line %d: "+format, append([]any{line}, args...)...)
	})
}

// play runs one task and returns its messages.
func play(t *testing.T, cfg engine.Config, in engine.Input, hook func(*engine.Engine, protocol.Message)) []protocol.Message {
	t.Helper()
	cfg.CompactionPrompt = "SUM"
	e, err := engine.New(cfg)
	require.NoError(t, err)
	if in.Prompt == nil {
		in.Prompt = protocol.Payloads{protocol.UserText("go")}
	}
	var got, public []protocol.Message
	var place trace.Placer
	for m := range e.Run(t.Context(), engine.Resume{}, in) {
		got = append(got, m)
		if _, private, _ := place.Place(m); !private {
			public = append(public, m)
		}
		if hook != nil {
			hook(e, m)
		}
	}
	require.Empty(t, enginetest.CheckFragments(public))
	return got
}

// show writes messages without partials.
func show(ms []protocol.Message) []string {
	var s []string
	for _, m := range ms {
		if !protocol.IsPartial(m.Payload) {
			s = append(s, m.String())
		}
	}
	return s
}

// find returns the first message whose notation begins with prefix.
func find(t *testing.T, ms []protocol.Message, prefix string) protocol.Message {
	t.Helper()
	for _, m := range ms {
		if strings.HasPrefix(m.String(), prefix) {
			return m
		}
	}
	require.Fail(t, "no such message", prefix)
	return protocol.Message{}
}

const oneCall = "model\n  call A t {}\nmodel\n  text \"end\"\n"

type approverFunc func(context.Context, engine.Call, func(engine.Ask)) (engine.Verdict, error)

func (f approverFunc) Approve(ctx context.Context, c engine.Call, ask func(engine.Ask)) (engine.Verdict, error) {
	return f(ctx, c, ask)
}

func TestEngine_BrokenApproverDenies(t *testing.T) { // L010
	for name, approve := range map[string]approverFunc{
		"error": func(context.Context, engine.Call, func(engine.Ask)) (engine.Verdict, error) {
			return engine.Verdict{Decision: protocol.Allow}, errors.New("approver is down")
		},
		"panic": func(context.Context, engine.Call, func(engine.Ask)) (engine.Verdict, error) { panic("oops") },
		"nothing": func(context.Context, engine.Call, func(engine.Ask)) (engine.Verdict, error) {
			return engine.Verdict{}, nil
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			tools := enginetest.NewTools(nil, &enginetest.Gates{})
			got := show(play(t, engine.Config{Model: scripted(t, oneCall), Executor: tools, Approver: approve}, engine.Input{}, nil))
			require.Contains(t, got, "approval_decision(deny,A)", name)
			require.Contains(t, got, `tool_call_output[A,aborted]"Tool call denied by user."`, name)
			require.Equal(t, `text[assistant]"end"`, got[len(got)-3], name)
			require.Empty(t, tools.Runs(), name)
		})
	}
}

func TestEngine_BrokenToolIsAFailedOutput(t *testing.T) { // L050
	synctest.Test(t, func(t *testing.T) {
		tools := toolFunc(func(_ context.Context, _ engine.Call, emit func(string)) engine.Output {
			emit("so far")
			panic("layer broke")
		})
		got := show(play(t, engine.Config{Model: scripted(t, oneCall), Executor: tools, Approver: allowAll{}}, engine.Input{}, nil))
		require.Contains(t, got, `tool_call_output[A,failed]"so far\n[tool error] layer broke"`)
		require.Contains(t, got, `text[assistant]"end"`)
	})
}

func TestEngine_UnknownToolAndBadArguments(t *testing.T) { // L052
	synctest.Test(t, func(t *testing.T) {
		tools := enginetest.NewTools(nil, &enginetest.Gates{})
		model := scripted(t, "model\n  call A nosuch {}\n  call B t [1]\n  call C t null\nmodel\n")
		cfg := engine.Config{Model: model, Executor: tools, Approver: allowAll{}}
		cfg.Meta.Tools = []protocol.ToolSpec{{Name: "t"}}
		got := play(t, cfg, engine.Input{}, nil)
		require.Equal(t, `tool_call_output[A,failed]"Unknown tool: nosuch"`, find(t, got, "tool_call_output[A").String())
		require.Regexp(t, `^tool_call_output\[B,failed\]"\[tool error\] .*not a JSON object`, find(t, got, "tool_call_output[B").String())
		require.Regexp(t, `^tool_call_output\[C,failed\]"\[tool error\] .*not a JSON object`, find(t, got, "tool_call_output[C").String())
		require.Equal(t, "partial_tool_call_output[A](start)", find(t, got, "partial_tool_call_output[A]").String())
		require.Empty(t, tools.Runs())
	})
}

func TestEngine_AddsNoWaitOfItsOwn(t *testing.T) { // L042 L060 L100 L103
	synctest.Test(t, func(t *testing.T) {
		model := scripted(t, "model\n  call A t {}\n  wait 10ms\n  end timeout\nmodel\n  end timeout\nmodel\n  call B t {}\nmodel\n")
		tools := enginetest.NewTools(map[string]enginetest.Tool{
			"A": {ID: "A", Pauses: []enginetest.Pause{{For: 120 * time.Millisecond}}, Stop: protocol.Completed},
			"B": {ID: "B", Pauses: []enginetest.Pause{{For: 300 * time.Millisecond}}, Stop: protocol.Completed},
		}, &enginetest.Gates{})
		start := time.Now()
		var begins []time.Duration
		play(t, engine.Config{Model: model, Executor: tools, Approver: allowAll{}}, engine.Input{}, func(_ *engine.Engine, m protocol.Message) {
			if m.Payload == (protocol.RequestBegin{}) {
				begins = append(begins, time.Since(start))
			}
		})
		require.Equal(t, []time.Duration{0, 370 * time.Millisecond, 870 * time.Millisecond, 1170 * time.Millisecond}, begins)
	})
}

func TestEngine_RetryBacksOffLinearly(t *testing.T) { // L100
	synctest.Test(t, func(t *testing.T) {
		model := enginetest.Script(protocol.Timeout, protocol.Malformed, protocol.Completed)
		start := time.Now()
		got := show(play(t, engine.Config{Model: model, Executor: toolFunc(nil)}, engine.Input{}, nil))
		require.Equal(t, 750*time.Millisecond, time.Since(start)) // 250 + 500, and no waiting
		require.Contains(t, got, `text[assistant]"3"`)
		require.Equal(t, "+task_end(completed)", got[len(got)-1])

		got = show(play(t, engine.Config{Model: model, Executor: toolFunc(nil)}, engine.Input{}, nil))
		require.Contains(t, got, `abort("llm request error: no scripted reply")`)
	})
}

func TestEngine_ThinkingLevels(t *testing.T) { // L011 L132
	synctest.Test(t, func(t *testing.T) {
		model := scripted(t, "model\n  end timeout\nmodel\n  text \"x\"\n  usage 100\nmodel\n  text \"sum\"\n")
		cfg := engine.Config{Model: model, Executor: enginetest.NewTools(nil, &enginetest.Gates{})}
		cfg.MaxContext = 100
		cfg.Meta = protocol.SessionMeta{SystemPrompt: "be brief", Tools: []protocol.ToolSpec{{Name: "t"}}}
		play(t, cfg, engine.Input{Options: protocol.TaskOptions{Thinking: "high"}}, nil)
		asked := model.Requests()
		require.Len(t, asked, 3)
		require.Equal(t, []string{"high", "high", ""}, []string{asked[0].Thinking, asked[1].Thinking, asked[2].Thinking})
		for _, r := range asked {
			require.Equal(t, "be brief", r.System)
			require.Equal(t, cfg.Meta.Tools, r.Tools)
		}
		require.Equal(t, append(show(asked[1].Input), `text[assistant]"x"`), show(asked[2].History), "the same prefix")
	})
}

func TestEngine_DeafToolIsGivenUp(t *testing.T) { // L067
	synctest.Test(t, func(t *testing.T) {
		late := make(chan struct{})
		tools := toolFunc(func(_ context.Context, _ engine.Call, emit func(string)) engine.Output {
			emit("so far")
			<-late
			emit("late")
			return engine.Output{Text: "so farlate", Stop: protocol.Completed}
		})
		start := time.Now()
		seen := 0
		got := play(t, engine.Config{Model: scripted(t, oneCall), Executor: tools, Approver: allowAll{}}, engine.Input{}, func(e *engine.Engine, m protocol.Message) {
			switch m.String() {
			case `partial_tool_call_output[A](delta:"so far")`, "request_end(completed)":
				if seen++; seen == 2 {
					e.Abort("user")
				}
			}
		})
		took := find(t, got, "abort(").Timestamp.Sub(start)
		require.Equal(t, 3*time.Second, took)
		s := show(got)
		require.Equal(t, []string{`tool_call_output[A,aborted]"so far\n[interrupted: tool aborted by user]"`, `abort("aborted by user")`, "+task_end(aborted)"}, s[len(s)-3:])
		close(late)
	})
}

func TestEngine_DeafModelIsAbandoned(t *testing.T) { // L081
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		model := modelFunc(func(_ context.Context, _ engine.Request, emit func(protocol.Payload) error) engine.Outcome {
			_ = emit(protocol.PartialText{Role: protocol.Assistant, EventType: protocol.Start, StopReason: protocol.Completed})
			_ = emit(protocol.PartialText{Role: protocol.Assistant, EventType: protocol.Delta, Text: "half", StopReason: protocol.Completed})
			<-end
			_ = emit(protocol.Text{Role: protocol.Assistant, Text: "late", StopReason: protocol.Completed})
			return engine.Outcome{Status: protocol.Completed}
		})
		start := time.Now()
		got := play(t, engine.Config{Model: model, Executor: toolFunc(nil)}, engine.Input{}, func(e *engine.Engine, m protocol.Message) {
			if m.String() == `partial_text(delta:"half")` {
				e.Abort("user")
			}
		})
		require.Equal(t, 2*time.Second, find(t, got, "abort(").Timestamp.Sub(start))
		s := show(got)
		require.Equal(t, []string{`text[assistant,aborted]"half"`, "request_end(aborted)", `abort("aborted by user")`, "+task_end(aborted)"}, s[len(s)-4:])
		close(end)
	})
}

func TestEngine_UserSignalWinsOverIdleTimeout(t *testing.T) { // L109
	synctest.Test(t, func(t *testing.T) {
		model := modelFunc(func(ctx context.Context, _ engine.Request, emit func(protocol.Payload) error) engine.Outcome {
			_ = emit(protocol.PartialText{Role: protocol.Assistant, EventType: protocol.Start, StopReason: protocol.Completed})
			<-ctx.Done()
			_ = emit(protocol.PartialText{Role: protocol.Assistant, EventType: protocol.Stop, StopReason: protocol.Aborted})
			_ = emit(protocol.Text{Role: protocol.Assistant, StopReason: protocol.Aborted})
			return engine.Outcome{Status: protocol.Timeout, Message: "idle"}
		})
		got := show(play(t, engine.Config{Model: model, Executor: toolFunc(nil)}, engine.Input{}, func(e *engine.Engine, m protocol.Message) {
			if m.String() == "partial_text(start)" {
				e.Abort("user")
			}
		}))
		require.Equal(t, []string{"request_end(aborted)", `abort("aborted by user")`, "+task_end(aborted)"}, got[len(got)-3:])
	})
}

func TestEngine_ModelThatBreaksIsAFailedRequest(t *testing.T) { // L013
	synctest.Test(t, func(t *testing.T) {
		model := modelFunc(func(context.Context, engine.Request, func(protocol.Payload) error) engine.Outcome {
			panic("adapter broke")
		})
		got := show(play(t, engine.Config{Model: model, Executor: toolFunc(nil)}, engine.Input{}, nil))
		require.Contains(t, got, "request_end(failed)")
		require.Contains(t, strings.Join(got, "\n"), "llm request error: ")
		require.Equal(t, "+task_end(failed)", got[len(got)-1])
	})
}

func TestEngine_ImagesRideOneDeltaAndOnlyOnCompleted(t *testing.T) { // L019 L023 L055
	synctest.Test(t, func(t *testing.T) {
		tools := toolFunc(func(_ context.Context, c engine.Call, _ func(string)) engine.Output {
			stop := protocol.Completed
			if c.ToolCallID == "B" {
				stop = protocol.Failed
			}
			return engine.Output{Text: "seen", Images: []string{"data:x"}, Stop: stop}
		})
		got := play(t, engine.Config{Model: scripted(t, "model\n  call A t {}\n  call B t {}\nmodel\n"), Executor: tools, Approver: allowAll{}}, engine.Input{}, nil)
		deltas := 0
		for _, m := range got {
			if p, ok := m.Payload.(protocol.PartialToolCallOutput); ok && len(p.Images) > 0 {
				deltas++
				require.Equal(t, protocol.PartialToolCallOutput{Role: protocol.User, EventType: protocol.Delta, Images: []string{"data:x"}, ToolCallID: "A", StopReason: protocol.Completed}, p)
			}
		}
		require.Equal(t, 1, deltas)
		require.Equal(t, []string{"data:x"}, find(t, got, "tool_call_output[A").Payload.(protocol.ToolCallOutput).Images)
		require.Nil(t, find(t, got, "tool_call_output[B").Payload.(protocol.ToolCallOutput).Images)
	})
}

func TestEngine_ImagesOfAnInterruptedInputAreKept(t *testing.T) { // L083
	synctest.Test(t, func(t *testing.T) {
		model := scripted(t, "model\n  half text \"x\"\n  hold never\nmodel\n")
		e, err := engine.New(engine.Config{Model: model, Executor: toolFunc(nil), Settings: engine.Settings{NoCompaction: true}})
		require.NoError(t, err)
		fold := trace.NewFold()
		image := protocol.ImageURL{Role: protocol.User, ImageURL: "data:x", StopReason: protocol.Completed}
		in := engine.Input{TaskID: "1", Prompt: protocol.Payloads{protocol.UserText("go"), image}}
		var place trace.Placer
		for m := range e.Run(t.Context(), engine.Resume{}, in) {
			if context, _, recorded := place.Place(m); recorded {
				fold.Add(context, m)
			}
			if m.String() == `partial_text(delta:"x")` {
				e.Abort("user")
			}
		}
		s := fold.State()
		in = engine.Input{TaskID: "2", Prompt: protocol.Payloads{protocol.UserText("next")}}
		for range e.Run(t.Context(), engine.Resume{Context: s.Context, History: s.History, Pending: s.Pending, IDs: s.IDs}, in) {
		}
		got := model.Requests()[1].Input
		require.Equal(t, []string{
			`text[user]"[turn_aborted]\n  [user_input]go[/user_input]\n  [text]x[/text]\n[/turn_aborted]"`, "image_url", `text[user]"next"`,
		}, show(got))
		require.Equal(t, image, got[1].Payload)
	})
}

func TestEngine_LeavingTheLoopEndsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := scripted(t, "model\n  call A t {}\n  hold never\n")
		tools := enginetest.NewTools(map[string]enginetest.Tool{"A": {ID: "A", Pauses: []enginetest.Pause{{Gate: "never"}}}}, &enginetest.Gates{})
		e, err := engine.New(engine.Config{Model: model, Executor: tools, Approver: allowAll{}, Settings: engine.Settings{NoCompaction: true}})
		require.NoError(t, err)
		for m := range e.Run(t.Context(), engine.Resume{}, engine.Input{Prompt: protocol.Payloads{protocol.UserText("go")}}) {
			if m.String() == "approval_decision(allow,A)" {
				break
			}
		}
		require.False(t, e.Steer("x", "late"))
		require.False(t, e.Abort("user"))
	})
}

func TestEngine_DefaultSettings(t *testing.T) { // L110
	synctest.Test(t, func(t *testing.T) {
		model := scripted(t, "model\n  text \"a\"\n  usage 127999\nmodel\n  text \"b\"\n  usage 128000\nmodel\n  text \"s\"\n")
		cfg := engine.Config{Model: model, Executor: toolFunc(nil)}
		require.NotContains(t, strings.Join(show(play(t, cfg, engine.Input{}, nil)), "\n"), "compaction")
		require.Contains(t, show(play(t, cfg, engine.Input{}, nil)), "compaction_begin(context,summarize,context 128000,turns 1)")
	})
}
