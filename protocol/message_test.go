package protocol_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/protocol"
)

const head = `{"timestamp":"2026-03-04T05:06:07.089Z","type":`

func TestDecode_IsKeptByteForByte(t *testing.T) { // L014 L032
	for _, line := range []string{
		head + `"model_msg","payload":{"type":"text","role":"user","text":"a","later":[1, 2],"stop_reason":"completed"},"more":{"x" : 1}}`,
		head + `"event_msg","payload":{"type":"not_yet_known","a":1.50,"a":2}}`,
		head + `"later_msg","payload":{"b":"\u003c"}}`,
		head + `"later_msg"}`,
		`{ "timestamp" : "2026-03-04T07:06:07.089123+02:00" , "type":"event_msg",	"payload" : { "type" : "request_begin" } }`,
		head + `"model_msg","payload":{"type":"thinking","role":"assistant","thinking":"","fidelity":{"z":1,  "a":"\/"}}}`,
		head + `"model_msg","payload":{"type":"text","role":"assistant","text":"x"},"origin":["c1","c2"]}`,
	} {
		m, err := protocol.Decode([]byte(line))
		require.NoError(t, err, line)
		require.Equal(t, line, string(m.Encode()))
		again, err := protocol.Decode(m.Encode())
		require.NoError(t, err)
		require.Equal(t, m, again)
	}
}

func TestDecode_UnknownTypesArePassedOver(t *testing.T) {
	m, err := protocol.Decode([]byte(head + `"event_msg","payload":{"type":"not_yet_known","a":1}}`))
	require.NoError(t, err)
	require.Equal(t, protocol.Unknown{Type: "event_msg", Name: "not_yet_known", Raw: json.RawMessage(`{"type":"not_yet_known","a":1}`)}, m.Payload)
	require.Equal(t, "?not_yet_known", m.String())
	require.Equal(t, head+`"event_msg","payload":{"type":"not_yet_known","a":1}}`, string(m.With(m.Payload).Encode())) //nolint:testifylint // equal to the byte
	require.False(t, protocol.IsOwn(m.Payload))
}

func TestDecode_Faults(t *testing.T) {
	for name, line := range map[string]string{
		"empty":         ``,
		"torn":          head + `"model_msg","payl`,
		"no object":     `[1]`,
		"no timestamp":  `{"type":"event_msg","payload":{"type":"request_begin"}}`,
		"bad timestamp": `{"timestamp":"today","type":"event_msg","payload":{"type":"request_begin"}}`,
		"no type":       `{"timestamp":"2026-03-04T05:06:07.089Z","payload":{}}`,
		"null payload":  head + `"session_meta","payload":null}`,
		"wrong type":    head + `"model_msg","payload":{"type":"text","text":7}}`,
		"no kind":       head + `"model_msg","payload":7}`,
		"two values":    head + `"later_msg"} {}`,
	} {
		_, err := protocol.Decode([]byte(line))
		require.ErrorIs(t, err, protocol.ErrMessage, name)
	}
}

func TestDecode_BadUTF8BecomesReadable(t *testing.T) {
	m, err := protocol.Decode([]byte(head + "\"model_msg\",\"payload\":{\"type\":\"text\",\"role\":\"user\",\"text\":\"a\xffb\"}}"))
	require.NoError(t, err)
	require.Equal(t, "a\ufffdb", m.Payload.(protocol.Text).Text)
	require.True(t, json.Valid(m.Encode()))
}

func TestMessage_StaysOneLineWhenDecodedFromPrettyJSON(t *testing.T) {
	var pretty bytes.Buffer
	require.NoError(t, json.Indent(&pretty, protocol.New(protocol.UserText("a\nb")).Encode(), "", "  "))
	m, err := protocol.Decode(pretty.Bytes())
	require.NoError(t, err)
	require.NotContains(t, string(m.Encode()), "\n")
	lines, err := protocol.DecodeLines(protocol.EncodeLines([]protocol.Message{m, m}))
	require.NoError(t, err)
	require.Len(t, lines, 2)
}

func TestMessage_Origin(t *testing.T) { // L014 L139
	m := protocol.Message{Timestamp: at(), Payload: protocol.RequestBegin{}}
	require.NotContains(t, string(m.Encode()), "origin")
	child := m.WithOrigin("grandchild").WithOrigin("child")
	require.Equal(t, []string{"child", "grandchild"}, child.Origin)
	require.Equal(t, "child/grandchild/request_begin", child.String())
	require.Contains(t, string(child.Encode()), `"origin":["child","grandchild"]`)

	d, err := protocol.Decode([]byte(head + `"event_msg","payload":{"type":"request_begin"},"origin":[]}`))
	require.NoError(t, err)
	require.Nil(t, d.Origin)
}

func TestMessage_NewIsCutToMilliseconds(t *testing.T) { // L014
	m := protocol.New(protocol.RequestBegin{})
	require.Zero(t, m.Timestamp.Nanosecond()%int(time.Millisecond))
	d, err := protocol.Decode(m.Encode())
	require.NoError(t, err)
	require.True(t, d.Timestamp.Equal(m.Timestamp))
}

func TestMessage_WithForgetsTheBytes(t *testing.T) {
	m, err := protocol.Decode([]byte(head + `"model_msg","payload":{"type":"text","role":"user","text":"a"},"more":1}`))
	require.NoError(t, err)
	changed := m.With(protocol.UserText("b"))
	require.Equal(t, head+`"model_msg","payload":{"type":"text","role":"user","text":"b","stop_reason":"completed"}}`, string(changed.Encode())) //nolint:testifylint // equal to the byte
	require.Contains(t, string(m.Encode()), "more")
	sealed := changed.Sealed()
	require.Equal(t, string(changed.Encode()), string(sealed.Encode()))
}

func TestMessage_EmbeddedInOtherJSON(t *testing.T) {
	live := protocol.Live{Epoch: 1, After: 2, Message: new(protocol.Message{Timestamp: at(), Payload: protocol.UserText("<&>")})}
	var back protocol.Live
	require.NoError(t, protocol.Unmarshal(protocol.Encode(live), &back))
	require.Equal(t, live.Message.String(), back.Message.String())
	require.Error(t, protocol.Unmarshal([]byte(`{"message":{"type":"x"}}`), &back))
}

func TestDecodeLines_NamesTheLine(t *testing.T) {
	good := string(protocol.Message{Timestamp: at(), Payload: protocol.RequestBegin{}}.Encode())
	ms, err := protocol.DecodeLines([]byte(good + "\n\n" + good + "\n{\n"))
	require.ErrorContains(t, err, "line 4: ")
	require.Len(t, ms, 2)
}

func TestEncode_WhatCannotBeJSONIsNotAPanic(t *testing.T) {
	for _, p := range []protocol.Payload{
		nil,
		protocol.Text{Text: "\xff\x00", Fidelity: json.RawMessage(`{broken`)},
		protocol.Unknown{Type: "x", Name: "y", Raw: json.RawMessage(`{broken`)},
		protocol.Unknown{Type: "x"},
		protocol.SessionMeta{AgentState: json.RawMessage(`nope`), Tools: []protocol.ToolSpec{{Parameters: json.RawMessage(`{`)}}},
		protocol.ReplyReceived{Rest: protocol.Payloads{nil, protocol.Unknown{Raw: json.RawMessage(`}`)}}},
	} {
		require.True(t, json.Valid(protocol.New(p).Encode()), "%T", p)
		require.True(t, json.Valid(protocol.Encode(protocol.Command{Prompt: protocol.Payloads{p}})), "%T", p)
	}
}

func TestPayloads_RoundTrip(t *testing.T) {
	in := `[{"type":"text","role":"user","text":"a","stop_reason":"completed"},{"type":"image_url","role":"user","image_url":"data:x"},{"type":"later","z":1},null]`
	var ps protocol.Payloads
	require.NoError(t, json.Unmarshal([]byte(in), &ps))
	require.Equal(t, in, string(protocol.Encode(ps)))
	require.Error(t, json.Unmarshal([]byte(`[{"type":"text","text":1}]`), &ps))
	require.Error(t, json.Unmarshal([]byte(`[7]`), &ps))
}

func TestReplyCode_Accepted(t *testing.T) {
	require.True(t, protocol.ReplyIdle.Accepted()) // L135: not an error
	require.True(t, protocol.ReplyAborting.Accepted())
	require.False(t, protocol.ReplyTaskInProgress.Accepted())
}

func TestArguments(t *testing.T) { // L052
	m, err := protocol.Arguments(`{"a":[1]}`)
	require.NoError(t, err)
	require.Equal(t, `[1]`, string(m["a"]))
	for _, bad := range []string{``, `null`, `[1]`, `"x"`, `{`, `{} {}`} {
		_, err := protocol.Arguments(bad)
		require.Error(t, err, bad)
	}
}
