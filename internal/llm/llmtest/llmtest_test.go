package llmtest_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/llm/llmtest"
)

func TestCheck_RefusesWhatProvidersRefuse(t *testing.T) {
	const (
		user  = `{"role":"user","content":"a"}`
		calls = `{"role":"assistant","tool_calls":[{"id":"A","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"B","type":"function","function":{"name":"f","arguments":"{}"}}]}`
		outA  = `{"role":"tool","tool_call_id":"A","content":"x"}`
		outB  = `{"role":"tool","tool_call_id":"B","content":"x"}`
	)
	for _, c := range []struct {
		messages []string
		want     string // empty: nothing is refused
	}{
		{[]string{`{"role":"system","content":"s"}`, user, calls, outA, outB}, ""},
		{[]string{user, calls, outA, outB, calls, outA, outB, user}, ""},
		{[]string{`{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"u"}}]}`}, ""},
		{nil, "no messages"},
		{[]string{user, calls, outA}, `call "B" is not answered`},
		{[]string{user, calls, outB, outA}, `answers call "B", but "A" is next`},
		{[]string{user, calls, outA, user, outB}, `message 3 (user) comes before call "B" is answered`},
		{[]string{user, calls, outA, outB, outB}, `answers call "B", which is not open`},
		{[]string{user, `{"role":"system","content":"s"}`}, "is not the first"},
		{[]string{`{"role":"user","content":""}`}, "has no content"},
		{[]string{`{"role":"developer","content":"a"}`}, "unknown role"},
		{[]string{user, calls, `{"role":"tool","tool_call_id":"A","content":""}`, outB}, "has no content"},
		{[]string{user, strings.Replace(calls, `"tool_calls"`, `"content":"","tool_calls"`, 1), outA, outB}, "empty content beside calls"},
		{[]string{user, strings.Replace(calls, `"{}"`, `""`, 1), outA, outB}, "not an object"},
		{[]string{user, strings.Replace(calls, `"id":"A"`, `"id":""`, 1), outA, outB}, `id ""`},
		{[]string{`{"role":"user","content":[{"type":"text","text":""}]}`}, "empty part"},
	} {
		err := llmtest.Check(fmt.Appendf(nil, `{"model":"m","messages":[%s]}`, strings.Join(c.messages, ",")))
		if c.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, c.want)
	}
	require.ErrorContains(t, llmtest.Check([]byte(`{"model":"m","tools":[],"messages":[`+user+`]}`)), "leave it out")
	require.ErrorContains(t, llmtest.Check([]byte(`{`)), "not JSON")
}

func post(t *testing.T, url, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/chat/completions", strings.NewReader(body))
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(b)
}

const valid = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`

func TestServer_TellsFaults(t *testing.T) {
	s, err := llmtest.NewServer()
	require.NoError(t, err)
	defer s.Close()
	code, _ := post(t, s.URL, `{"model":"m","messages":[]}`)
	require.Equal(t, 400, code)
	code, said := post(t, s.URL, valid)
	require.Equal(t, 400, code)
	require.Contains(t, said, "no reply is left")
	require.Len(t, s.Faults(), 2)
	require.ErrorContains(t, s.Faults()[0], "request 1: no messages")

	s.Lenient()
	s.Reply(llmtest.Text("x"))
	code, _ = post(t, s.URL, `{"model":"m","messages":[]}`)
	require.Equal(t, 200, code)
}

func TestServer_PlaysAScript(t *testing.T) {
	s := llmtest.Start(t)
	s.Reply(llmtest.Text("a", "b"), llmtest.Call("A", "f", "{}"), llmtest.Usage(1, 2))
	s.Choose(func(r llmtest.Request) []llmtest.Step {
		return []llmtest.Step{llmtest.Text(fmt.Sprintf("%d %s", r.Number, r.Last("user").Text()))}
	})
	_, said := post(t, s.URL, valid)
	require.Equal(t, string(llmtest.Encode(llmtest.Text("a", "b"), llmtest.Call("A", "f", "{}"), llmtest.Usage(1, 2))), said)
	require.Less(t, strings.Index(said, `"finish_reason":"tool_calls"`), strings.Index(said, `"usage"`))
	require.True(t, strings.HasSuffix(said, "data: [DONE]\n\n"))
	_, said = post(t, s.URL, valid)
	require.Contains(t, said, `"content":"2 hello"`)
	require.Len(t, s.Requests(), 2)
}

func TestServer_Static(t *testing.T) {
	s := llmtest.Start(t)
	call, end := llmtest.Encode(llmtest.Call("A", "f", "{}")), llmtest.Encode(llmtest.Text("end"))
	s.Static(func(body []byte) []byte {
		if bytes.Contains(body, []byte("more")) {
			return call
		}
		return end
	})
	_, said := post(t, s.URL, "more")
	require.Equal(t, string(call), said)
	_, said = post(t, s.URL, "x")
	require.Equal(t, string(end), said)
	require.Empty(t, s.Requests())
}

func TestServer_CloseCutsWhatWaits(t *testing.T) {
	s, err := llmtest.NewServer()
	require.NoError(t, err)
	s.Reply(llmtest.Text("a"), llmtest.Hold("never"))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/chat/completions", strings.NewReader(valid))
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	s.Close()
	_, err = io.ReadAll(resp.Body)
	require.Error(t, err)
}
