package budget_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus/bustest"
	"rookery/internal/trace"
	"rookery/protocol"
)

// Bounds have room above what was measured; they are for the accident that doubles it.
func TestAllocations_OfHotPaths(t *testing.T) {
	delta := protocol.New(protocol.PartialText{Role: protocol.Assistant, EventType: protocol.Delta, Text: "some words", StopReason: protocol.Completed})
	live := protocol.Live{Epoch: 1, After: 3, Segment: "1.1", Offset: 10, Message: &delta}
	wire := protocol.Encode(live)
	output := protocol.New(protocol.ToolCallOutput{Role: protocol.User, Output: "some words", ToolCallID: "c1", StopReason: protocol.Completed})
	line := output.Encode()
	frame := []protocol.Message{output.Sealed(), output.Sealed(), output.Sealed(), output.Sealed()}
	b := bustest.Start(t)
	fold := trace.NewFold()
	fold.Add(1, protocol.New(protocol.SessionMeta{SessionID: "s1"}))
	turn := []protocol.Message{
		protocol.New(protocol.RequestBegin{}),
		protocol.New(protocol.ToolCall{Role: protocol.Assistant, Name: "t", Arguments: "{}", ToolCallID: "c1", StopReason: protocol.Completed}),
		protocol.New(protocol.RequestEnd{Status: protocol.Completed}), output,
	}

	for name, c := range map[string]struct {
		most float64
		f    func()
	}{
		"encode a delta":         {12, func() { protocol.Encode(live) }},
		"decode a delta":         {18, func() { var l protocol.Live; _ = protocol.Unmarshal(wire, &l) }},
		"encode an output":       {10, func() { output.Encode() }},
		"decode an output":       {15, func() { _, _ = protocol.Decode(line) }},
		"encode a frame of four": {12, func() { protocol.EncodeLines(frame) }},
		"PublishLive":            {16, func() { _ = b.PublishLive("s1", live) }},
		"fold a turn": {40, func() {
			for _, m := range turn {
				fold.Add(1, m)
			}
		}},
	} {
		n := testing.AllocsPerRun(200, c.f)
		t.Logf("%s: %.0f", name, n)
		require.LessOrEqual(t, n, c.most, name)
	}
}
