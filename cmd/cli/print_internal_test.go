package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/client"
	"rookery/internal/bus"
	"rookery/internal/config"
	"rookery/internal/host"
	"rookery/protocol"
)

// show returns what a person sees of some events.
func show(colour, users bool, es ...client.Event) (out, notices string) {
	var o, n strings.Builder
	p := &humanPrinter{out: &o, colour: colour, asked: users, tell: func(format string, args ...any) { say(&n, format+"\n", args...) }}
	for _, e := range es {
		p.show(e)
	}
	return o.String(), n.String()
}

func event(p protocol.Payload) client.Event { return client.Event{Message: protocol.New(p)} }

func text(e protocol.EventType, s string) client.Event {
	return event(protocol.PartialText{Role: protocol.Assistant, EventType: e, Text: s})
}

func thinking(e protocol.EventType, s string) client.Event {
	return event(protocol.PartialThinking{Role: protocol.Assistant, EventType: e, Thinking: s})
}

func output(s string) client.Event {
	return event(protocol.ToolCallOutput{Output: s, ToolCallID: "a"})
}

func TestHuman_TextStreamsAndCallsAreOneLine(t *testing.T) {
	out, _ := show(false, false,
		thinking(protocol.Start, ""), thinking(protocol.Delta, "hm"), thinking(protocol.Stop, ""),
		text(protocol.Start, ""), text(protocol.Delta, "I lo"), text(protocol.Delta, "ok\n"), text(protocol.Stop, ""),
		event(protocol.ToolCall{Name: "exec_command", Arguments: `{"command":"wc -w README.md"}`}),
		event(protocol.ToolCall{Name: "odd", Arguments: `{"x":[1]}`}),
		output("3 README.md\n"),
		text(protocol.Delta, "3"), text(protocol.Stop, ""),
	)
	require.Equal(t, "hm\nI look\n→ exec_command wc -w README.md\n→ odd {\"x\":[1]}\n  3 README.md\n3\n", out)
}

func TestHuman_ParallelStreamsDoNotShareALine(t *testing.T) {
	out, _ := show(false, false, text(protocol.Delta, "one"), output("x"), text(protocol.Delta, "two"), thinking(protocol.Delta, "three"))
	require.Equal(t, "one\n  x\ntwo\nthree", out)
}

func TestHuman_OutputsAreShortened(t *testing.T) {
	out, _ := show(false, false, output(strings.Repeat("line\n", 40)+strings.Repeat("x", 900)))
	require.Contains(t, out, "  line\n  … 29 more lines\n")
	out, _ = show(false, false, output(strings.Repeat("x", 900)))
	require.Less(t, len(out), 200)
	require.Contains(t, out, "…")
}

func TestHuman_ColourIsOursAloneAndOnlyWhenAsked(t *testing.T) {
	hostile := []client.Event{
		text(protocol.Delta, "\x1b[2J"), thinking(protocol.Delta, "\x1b[2J"), output("\x1b[2J"),
		event(protocol.ToolCall{Name: "\x1b[2J", Arguments: "{\"command\":\"\x1b[2J\"}"}), event(protocol.UserText("\x1b[2J")),
	}
	out, _ := show(false, true, hostile...)
	require.NotContains(t, out, "\x1b")
	out, _ = show(true, true, hostile...)
	require.NotContains(t, out, "\x1b[2J")
	require.Contains(t, out, "\x1b[2m")
}

func TestHuman_WhatHappenedBesideIsANotice(t *testing.T) {
	out, notices := show(false, false,
		event(protocol.ApprovalDecision{Decision: protocol.Deny, ToolCallID: "A", By: "policy", Reason: "read-only"}),
		event(protocol.ApprovalDecision{Decision: protocol.Allow, ToolCallID: "B", By: "user"}),
		event(protocol.Retry{Attempt: 1, WaitMS: 250, Status: protocol.Timeout}),
		event(protocol.Waiting{ToolCallID: "A", For: "a worker"}),
		event(protocol.TaskEnd{Status: protocol.TaskFailed, Code: protocol.CodeLength, Reason: "cut", UndeliveredSteering: []string{"stop"}}),
		client.Event{Kind: client.Reconnecting},
	)
	require.Empty(t, out)
	require.Equal(t, "call A denied by policy: read-only\nrequest timeout, trying again in 250 ms\ncall A waits: a worker\n"+
		"task failed (length): cut; not delivered: \"stop\"\nconnection lost, reconnecting\n", notices)
}

func TestQuestion_ShowsAllOrSaysHowMuchNot(t *testing.T) {
	ask := func(args string) string {
		return question(protocol.ApprovalRequest{ToolCallID: "A", Name: "t", Arguments: args, Permission: "rw"})
	}
	for name, c := range map[string]struct{ args, want string }{
		"texts as they are":   {`{"cmd":"a \u003c b","n":[1, 2]}`, "  cmd: a < b\n  n: [1, 2]"},
		"hostile text":        {`{"cmd":"echo \u202e hi\u001b[2J"}`, `  cmd: echo \u202e hi\x1b[2J`},
		"a key twice":         {`{"cmd":"ls","cmd":"rm"}`, "  cmd: ls\n  cmd: rm"},
		"a line like a key":   {`{"cmd":"ls\n  n: 3"}`, "  cmd: ls\n        n: 3"},
		"a hostile key":       {`{"a\nb":1}`, `  a\nb: 1`},
		"no object":           {`["x"]`, `  ["x"]`},
		"something behind it": {`{"cmd":"ls"} {"cmd":"rm"}`, `  {"cmd":"ls"} {"cmd":"rm"}`},
		"not JSON":            {"{\"cmd\":\ncall B", "  {\"cmd\":\n      call B"},
		"nothing":             {"{}", "  {}"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, "call A: t (may change things)\n"+c.want+"\n", ask(c.args))
		})
	}
	long := strings.Repeat("x", 2*maxAsked)
	require.Contains(t, ask(long), fmt.Sprintf("CUT: %d of %d characters are shown", maxAsked, len(long)+2))
}

func TestVerdict(t *testing.T) {
	for line, want := range map[string]string{
		"y": "allow:", " YES ": "allow:", "n": "deny:", "no": "deny:", "n too risky": "deny:too risky", "use git instead": "deny:use git instead",
	} {
		d, reason, ok := verdict(line)
		require.True(t, ok, line)
		require.Equal(t, want, string(d)+":"+reason, line)
	}
	_, _, ok := verdict("  ")
	require.False(t, ok, "an empty line is no decision")
}

func TestExitOf_ErrorsHaveTheDocumentedStatus(t *testing.T) {
	refused := func(c protocol.ReplyCode) error {
		return fmt.Errorf("run: %w", &client.RefusedError{Reply: protocol.Reply{Code: c}})
	}
	for want, errs := range map[int][]error{
		1: {errors.New("x"), refused(protocol.ReplyTaskInProgress), refused(protocol.ReplyTrace)},
		2: {client.ErrNoSession, client.ErrTooLarge, refused(protocol.ReplyWorkspace), refused(protocol.ReplyBadRequest), host.ErrSandbox},
		5: {bus.ErrUnreachable, bus.ErrAuth, client.ErrNoOrchestrator, &host.BrokerError{Err: errors.New("x")}, context.DeadlineExceeded},
		6: {config.ErrNoModel, config.ErrNoKey, refused(protocol.ReplyModel)},
	} {
		for _, err := range errs {
			require.Equal(t, want, faultOf(err).exit(), "%v", err)
		}
	}
}

func TestNoPasswords(t *testing.T) {
	require.Equal(t, "[nats://me:xxxxx@h:1, nats://h:2]", withoutPasswords("[nats://me:secret@h:1, nats://h:2]"))
}
