package protocol_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/protocol"
)

// What is written in the plain form is read as the same JSON in another form is.
func TestDecode_FormDoesNotMatter(t *testing.T) {
	for _, c := range golden() {
		plain := protocol.Message{Timestamp: at(), Payload: c.p}.Encode()
		want, err := protocol.Decode(plain)
		require.NoError(t, err)
		got, err := protocol.Decode(spaced(t, plain))
		require.NoError(t, err)
		if _, raw := c.p.(protocol.Unknown); raw {
			continue // keeps its form
		}
		require.Equal(t, want.Timestamp, got.Timestamp)
		require.Equal(t, compacted(t, protocol.EncodePayload(want.Payload)), compacted(t, protocol.EncodePayload(got.Payload)))
		require.Equal(t, want.String(), got.String())
	}
}

// spaced is the same JSON with white space, on one line.
func spaced(t *testing.T, line []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, json.Indent(&b, line, "", " "))
	return []byte(strings.ReplaceAll(b.String(), "\n", " "))
}

func compacted(t *testing.T, raw []byte) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, json.Compact(&b, raw))
	return b.String()
}

func TestDecode_PlainLinesThatAreWrongAreRefused(t *testing.T) {
	line := string(protocol.Message{Timestamp: at(), Payload: protocol.UserText("x")}.Encode())
	for _, bad := range []string{
		line + "}", line[:len(line)-1], strings.Replace(line, `"completed"}`, `"completed"},"more"`, 1),
		strings.Replace(line, `{"type"`, `["type"`, 1), strings.Replace(line, `"payload":`, `"payload":{},`, 1),
		strings.Replace(line, "T", "X", 1),
	} {
		_, err := protocol.Decode([]byte(bad))
		require.ErrorIs(t, err, protocol.ErrMessage, bad)
	}
}

func TestDecode_PartialTextIsReadAsAnyJSONIs(t *testing.T) {
	head := `{"timestamp":"2026-03-04T05:06:07.089Z","type":"event_msg","payload":`
	if m := (protocol.Message{Timestamp: at(), Payload: protocol.PartialText{}}); m.Type() == protocol.TypeModel {
		head = strings.Replace(head, protocol.TypeEvent, protocol.TypeModel, 1)
	}
	for _, payload := range []string{
		`{"type":"partial_text","role":"assistant","event_type":"delta","text":"words","stop_reason":"completed"}`,
		`{"type":"partial_text","role":"assistant","event_type":"delta","text":"","stop_reason":"completed"}`,
		`{"type":"partial_text","text":"é ü 日本","role":"assistant"}`,
		`{"type":"partial_text","text":"an\nescape \u00e9","role":"assistant"}`,
		`{"type":"partial_text","text":"later","more":"member"}`,
		`{"type":"partial_text","text":"later","more":{"a":1}}`,
		`{"type":"partial_text","text":"twice","text":"second"}`,
		`{"type":"partial_text"}`,
		`{"type":"partial_text","text":null}`,
		`{"type":"partial_text", "text":"spaced"}`,
	} {
		var want protocol.PartialText
		require.NoError(t, json.Unmarshal([]byte(payload), &want), payload)
		m, err := protocol.Decode([]byte(head + payload + "}"))
		require.NoError(t, err, payload)
		require.Equal(t, want, m.Payload, payload)
	}
	for _, bad := range []string{
		`{"type":"partial_text","text":"a"`, `{"type":"partial_text","text":"a",}`, `{"type":"partial_text","text":"a"}}`,
		`{"type":"partial_text","text":"a" "role":"b"}`, `{"type":"partial_text","text":5}`, "{\"type\":\"partial_text\",\"text\":\"\t\"}",
	} {
		_, err := protocol.Decode([]byte(head + bad + "}"))
		require.ErrorIs(t, err, protocol.ErrMessage, bad)
	}
}

func TestLive_IsReadAsItIsWritten(t *testing.T) {
	m := protocol.Message{Timestamp: at(), Payload: protocol.PartialText{
		Role: protocol.Assistant, EventType: protocol.Delta, Text: "a \"quoted\" <tag> \u2028 text", StopReason: protocol.Completed,
	}}
	start := m.With(protocol.PartialText{Role: protocol.Assistant, EventType: protocol.Start, StopReason: protocol.Completed})
	for _, l := range []protocol.Live{
		{Epoch: 1, After: 2, Segment: "1.1", Message: &start},
		{Epoch: 1, After: 1<<63 - 1, Segment: "1.1", Offset: 12345, Message: &m},
		{Epoch: 3, After: 0, Message: &m},
		{Epoch: 3, After: 4, Segment: `odd " \\ id`, Message: &m},
		{Epoch: 3, After: 4, Beat: &protocol.Beat{Seq: 9, State: protocol.StateIdle}},
	} {
		b := protocol.Encode(l)
		var want, got, other protocol.Live
		require.NoError(t, json.Unmarshal(b, &want), string(b))
		require.NoError(t, protocol.Unmarshal(b, &got), string(b))
		require.Equal(t, want, got)
		require.Equal(t, string(b), string(protocol.Encode(got)))
		require.NoError(t, protocol.Unmarshal(spaced(t, b), &other))
		require.Equal(t, got.Epoch, other.Epoch)
		require.Equal(t, got.Offset, other.Offset)
		require.Equal(t, got.Segment, other.Segment)
	}
	var l protocol.Live
	for _, bad := range []string{`{"epoch":01,"after":2,"message":{}}`, `{"epoch":1,"after":2,"segment":"a","message":{`, `{"epoch":1`} {
		require.Error(t, protocol.Unmarshal([]byte(bad), &l), bad)
	}
}
