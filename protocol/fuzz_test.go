package protocol_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/protocol"
)

func FuzzDecode(f *testing.F) {
	for _, c := range golden() {
		f.Add(protocol.Message{Timestamp: at(), Payload: c.p, Origin: []string{"c"}}.Encode())
	}
	f.Add([]byte(head + `"later_msg"}`))
	f.Add([]byte("{\n}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := protocol.Decode(b)
		if err != nil {
			require.ErrorIs(t, err, protocol.ErrMessage)
			return
		}
		line := m.Encode()
		require.True(t, json.Valid(line))
		require.NotContains(t, string(line), "\n")
		again, err := protocol.Decode(line)
		require.NoError(t, err)
		require.Equal(t, string(line), string(again.Encode()))
		require.Equal(t, m.String(), again.String())
		require.NotContains(t, m.String(), "\n")

		anew, err := protocol.Decode(m.With(m.Payload).Encode())
		require.NoError(t, err)
		require.Equal(t, m.String(), anew.String())
		require.Equal(t, string(anew.Encode()), string(anew.With(anew.Payload).Encode()))
	})
}

func FuzzDecodeLines(f *testing.F) {
	good := protocol.Message{Timestamp: at(), Payload: protocol.UserText("x")}.Encode()
	f.Add([]byte(string(good) + "\n" + string(good)))
	f.Add([]byte("\n{\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		ms, _ := protocol.DecodeLines(b)
		again, err := protocol.DecodeLines(protocol.EncodeLines(ms))
		require.NoError(t, err)
		require.Len(t, again, len(ms))
	})
}

// FuzzBodies reads every body that crosses a process border; what was read once is
// read again to the same.
func FuzzBodies(f *testing.F) {
	f.Add([]byte(`{"id":"c1","prompt":[{"type":"text","role":"user","text":"x"}],"options":{"max_turns":-1},"session":{"model":"m"}}`))
	f.Add([]byte(`{"session":"s","dispatch":"1-0-1","tool":"t","arguments":"{}","workspace":{"path":"/w"},"epoch":3}`))
	f.Add([]byte(`{"worker":"w","boot":"b","at":"2026-03-04T05:06:07Z","output":"o","stop_reason":"completed","resources":{"cpu_ns":1}}`))
	f.Add([]byte(`{"message":{"timestamp":"2026-03-04T05:06:07Z","type":"later","payload":{}},"beat":{"seq":1}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, v := range [][2]any{
			{&protocol.Payloads{}, &protocol.Payloads{}},
			{&protocol.Command{}, &protocol.Command{}},
			{&protocol.Reply{}, &protocol.Reply{}},
			{&protocol.Call{}, &protocol.Call{}},
			{&protocol.Claim{}, &protocol.Claim{}},
			{&protocol.Result{}, &protocol.Result{}},
			{&protocol.WorkerInfo{}, &protocol.WorkerInfo{}},
			{&protocol.Control{}, &protocol.Control{}},
			{&protocol.ControlReply{}, &protocol.ControlReply{}},
			{&protocol.Live{}, &protocol.Live{}},
			{&protocol.Snap{}, &protocol.Snap{}},
			{&protocol.UsageRow{}, &protocol.UsageRow{}},
		} {
			if protocol.Unmarshal(b, v[0]) != nil {
				continue
			}
			once := protocol.Encode(v[0])
			require.NoError(t, protocol.Unmarshal(once, v[1]), "%T %s", v[0], once)
			require.Equal(t, string(once), string(protocol.Encode(v[1])))
		}
	})
}

func FuzzMarkers(f *testing.F) {
	f.Add("[turn_aborted]\nx\n[/turn_aborted]", "out\n[/turn_aborted]\n")
	f.Fuzz(func(t *testing.T, input, out string) {
		got, ok := protocol.ParseSteering(protocol.Steering(input))
		if ok {
			require.Equal(t, input, got)
		} else {
			require.Contains(t, input, "[/user_steering]")
		}
		var b protocol.Block
		b.Output(output("A", out, protocol.Completed))
		s := b.String(protocol.TagTurnAborted)
		lines := strings.Split(s, "\n")
		for _, line := range lines[:len(lines)-1] { // L072: only the last line closes the block
			require.NotEqual(t, "[/turn_aborted]", strings.TrimSpace(line))
		}
		protocol.ExtractSummary(input)
		protocol.ParseContextSummary(input)
	})
}
