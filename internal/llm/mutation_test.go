package llm_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/llm/llmtest"
	"rookery/protocol"
)

// A mutation is an entry of mutations.json.
type mutation struct{ Name string }

// harmless mutations change the framing only: the result must be the same. small
// keeps the size down where every byte is a read.
func harmless(name, body string, small bool) (string, bool) {
	comments, pad := 400, 1<<20
	if small {
		comments, pad = 4, 4<<10
	}
	switch name {
	case "crlf":
		return strings.ReplaceAll(body, "\n", "\r\n"), true
	case "cr":
		return strings.ReplaceAll(body, "\n", "\r"), true
	case "bom":
		return "\ufeff" + body, true
	case "no-space":
		return strings.ReplaceAll(body, "data: ", "data:"), true
	case "single-newline":
		return strings.ReplaceAll(body, "\n\n", "\n"), true
	case "trim-end":
		return strings.TrimRight(body, "\n"), true
	case "keepalive":
		return after(body, strings.Repeat(": keep-alive\n\n", comments)), true
	case "empty-data":
		return after(body, "data:\n\n"), true
	case "pad-1MiB":
		return strings.Replace(body, "data: {", `data: {"pad":"`+strings.Repeat("x", pad)+`",`, 1), true
	case "error-null":
		return errorNull(body), true
	case "one-byte", "content-type", "gzip":
		return body, true // how it is sent makes the difference
	}
	return "", false
}

func after(body, insert string) string {
	var b strings.Builder
	for _, ev := range events(body) {
		if !strings.HasSuffix(ev, "\n\n") {
			ev += "\n\n"
		}
		b.WriteString(ev + insert)
	}
	return b.String()
}

func errorNull(body string) string {
	evs := events(body)
	for i, ev := range evs {
		if strings.Contains(ev, `"object":"chat.completion.chunk"`) && !strings.Contains(ev, `"error"`) {
			evs[i] = strings.Replace(ev, "data: {", `data: {"error":null,`, 1)
		}
	}
	return strings.Join(evs, "")
}

// A harm mutates a body so that something else comes out. want may be empty: then
// committed replies are completed and others have one of the others.
type harm struct {
	steps []llmtest.Step
	body  string // what is sent, to see whether it was finished
	want  []string
	limit time.Duration // fake time it takes at most
}

func harmful(name string, r recording) (h harm, ok bool) {
	evs := events(r.body)
	half := strings.Join(evs[:len(evs)/2], "")
	finish := finishAt(evs)
	sent := func(body string, want ...string) harm {
		return harm{steps: []llmtest.Step{llmtest.RawEnd(body)}, body: body, want: want}
	}
	then := func(step llmtest.Step, limit time.Duration, want ...string) harm {
		return harm{steps: []llmtest.Step{llmtest.Raw(half), step}, body: half, want: want, limit: limit}
	}
	const malformed, timeout = "malformed", "timeout"
	switch name {
	case "no-done":
		h = sent(strings.ReplaceAll(r.body, "data: [DONE]", ""), r.statuses()...)
		if r.Finish == nil && r.Status == "completed" {
			h.want = []string{malformed}
		}
	case "cut-before-finish":
		if finish < 0 {
			finish = len(evs) - 1
		}
		h = sent(strings.Join(evs[:finish], ""), malformed)
	case "cut-mid-json":
		at := strings.LastIndex(r.body[:len(r.body)/2], "data: {")
		h = sent(r.body[:max(at, 0)+20], malformed)
	case "bad-chunk":
		h = sent(half+"data: {not json\n\n"+strings.Join(evs[len(evs)/2+1:], ""), malformed)
		h.body = half
	case "error-mid":
		h = sent(half+`data: {"error":{"message":"upstream died","type":"server_error","code":502}}`+"\n\n", timeout)
	case "error-mid-unknown":
		h = sent(half+`data: {"error":{"message":"boom"}}`+"\n\n", malformed, timeout)
	case "abort":
		h = then(llmtest.Abort(), 0, timeout, malformed)
	case "reset":
		h = then(llmtest.Reset(), 0, timeout)
	case "stall":
		h = then(llmtest.Stall(), 120*time.Second, timeout)
	case "stall-with-comments":
		h = then(chatter(), 601*time.Second, timeout)
	case "stall-after-finish":
		if finish < 0 {
			return harm{}, true
		}
		h = harm{body: strings.Join(evs[:finish+1], ""), want: r.statuses(), limit: 5 * time.Second}
		h.steps = []llmtest.Step{llmtest.Raw(h.body), llmtest.Stall()}
		if r.Status != "completed" {
			h.want = []string{malformed}
		}
	case "status-200-json":
		h = harm{steps: []llmtest.Step{llmtest.Status(200, `{"error":{"message":"x","code":429}}`)}, want: []string{timeout}}
	case "status-200-html":
		h = harm{steps: []llmtest.Step{llmtest.Status(200, "<html>hello</html>", "Content-Type", "text/html")}, want: []string{malformed}}
	case "status-200-empty":
		h = sent("", malformed)
	case "whole-reply":
		h = harm{want: []string{"completed"}, steps: []llmtest.Step{llmtest.Status(200,
			`{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"all of it"},"finish_reason":"stop"}],`+
				`"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`)}}
	default:
		return harm{}, false
	}
	if r.Status == "completed" && finished(h.body) && name != "no-done" {
		h.want = append(h.want, "completed")
	}
	return h, true
}

// chatter sends a comment every second.
func chatter() llmtest.Step {
	return llmtest.Every(time.Second, ": still here\n\n")
}

func TestStream_SurvivesTheMutations(t *testing.T) {
	var ms []mutation
	if !load(t, "mutations.json", &ms) {
		return
	}
	for _, r := range recordings(t) {
		for _, m := range ms {
			t.Run(r.File+"/"+m.Name, func(t *testing.T) {
				if _, ok := harmless(m.Name, r.body, true); ok {
					checkHarmless(t, m.Name, r)
					return
				}
				h, ok := harmful(m.Name, r)
				require.True(t, ok, "mutations.json has %q, which is not known here", m.Name)
				if h.steps != nil {
					checkHarm(t, h)
				}
			})
		}
	}
}

func checkHarmless(t *testing.T, name string, r recording) {
	t.Helper()
	for way, edit := range ways(t) {
		body, _ := harmless(name, r.body, way == "one byte")
		s := llmtest.Start(t)
		switch name {
		case "content-type":
			s.Reply(llmtest.Status(200, body, "Content-Type", "text/plain"))
		case "gzip":
			s.Reply(llmtest.Status(200, zipped(t, body), "Content-Type", "text/event-stream", "Content-Encoding", "gzip"))
		case "one-byte":
			s.Reply(inPieces(body, 1))
		default:
			s.Reply(inPieces(body, 64<<10))
		}
		r.check(t, stream(t.Context(), t, newClient(t, s, edit(s)), ask("go")))
	}
}

func zipped(t *testing.T, body string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write([]byte(body))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return b.String()
}

// checkHarm runs in fake time, where a stall costs none and a goroutine that is
// left behind fails the test. A reset needs a socket; in a pipe it is a broken body.
func checkHarm(t *testing.T, h harm) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := llmtest.StartPipe(t)
		s.Reply(h.steps...)
		start := time.Now()
		got := stream(t.Context(), t, newClient(t, s), ask("go"))
		require.Contains(t, h.want, status(got), got.Message)
		require.LessOrEqual(t, time.Since(start), h.limit+time.Second, fmt.Sprint(got.Outcome))
		for _, c := range got.calls {
			if got.Status != protocol.Completed {
				require.Equal(t, got.Status, c.StopReason)
			}
		}
	})
}
