package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"rookery/internal/llm/llmtest"
)

// A plan is what a prompt asks the endpoint for: so many turns of one call each,
// then a text. It travels in the prompt, so that the endpoint keeps no state.
type plan struct {
	turns int
	tool  string
	args  string        // of each call, JSON
	delay time.Duration // before each answer
}

const planMark = "plan:"

func (p plan) String() string {
	return fmt.Sprintf("%s%d,%s,%d,%s:", planMark, p.turns, p.tool, p.delay.Milliseconds(), hex(p.args))
}

func hex(s string) string { return fmt.Sprintf("%x", s) }

// parsePlan finds the last plan of a request, which is the running task's.
func parsePlan(body []byte) (p plan, rest []byte, ok bool) {
	at := bytes.LastIndex(body, []byte(planMark))
	if at < 0 {
		return p, nil, false
	}
	rest = body[at+len(planMark):]
	text, _, _ := bytes.Cut(rest, []byte(":"))
	f := bytes.SplitN(text, []byte(","), 4)
	if len(f) != 4 {
		return p, nil, false
	}
	p.turns, _ = strconv.Atoi(string(f[0]))
	p.tool = string(f[1])
	ms, _ := strconv.Atoi(string(f[2]))
	p.delay = time.Duration(ms) * time.Millisecond
	var args []byte
	_, _ = fmt.Sscanf(string(f[3]), "%x", &args)
	p.args = string(args)
	return p, rest, true
}

// answer is the reply to a request: the next call of its plan, or the end, which
// tells when it was sent.
func answer(body []byte) []byte {
	p, rest, ok := parsePlan(body)
	if !ok {
		return llmtest.Encode(llmtest.Text("no plan"), llmtest.Usage(10, 5))
	}
	if p.delay > 0 {
		_ = restUntil(p.delay)
	}
	made := bytes.Count(rest, []byte(`"role":"tool"`))
	if made < p.turns {
		return llmtest.Encode(llmtest.Call(fmt.Sprintf("call-%d", made), p.tool, p.args), llmtest.Usage(100+made, 5))
	}
	return llmtest.Encode(llmtest.Text(stamp()), llmtest.Usage(100, 5))
}

func restUntil(d time.Duration) error { return rest(context.Background(), d) }

// stampMark is before the time at which a text was sent.
const stampMark = "sent:"

func stamp() string { return stampMark + strconv.FormatInt(time.Now().UnixNano(), 10) + " " }

// stampIn reads the time of a text; zero when there is none.
func stampIn(b []byte) time.Time {
	_, b, ok := bytes.Cut(b, []byte(stampMark))
	if !ok {
		return time.Time{}
	}
	digits, _, _ := bytes.Cut(b, []byte(" "))
	ns, err := strconv.ParseInt(string(digits), 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// trickling is the manner of an endpoint that does not send all at once.
const trickling = "trickling"

// trickle answers with a text that tells when it was sent, and its end some time later.
func trickle(llmtest.Request) []llmtest.Step {
	return []llmtest.Step{llmtest.Text(stamp()), llmtest.Wait(5 * time.Millisecond), llmtest.Text("end"), llmtest.Usage(100, 5)}
}

// serveEndpoint answers by plans, or in the given manner.
func serveEndpoint(manner string) error {
	s, err := llmtest.NewServer()
	if err != nil {
		return err
	}
	defer s.Close()
	if manner == trickling {
		s.Choose(trickle)
	} else {
		s.Static(answer)
	}
	if err := say(s.URL); err != nil {
		return err
	}
	untilInputEnds()
	return nil
}

// A bare client asks the endpoint as directly as can be: it posts a history that
// grows by one call and one output a turn, and reads the answer to its end.
type bare struct {
	url  string
	http *http.Client
	body bytes.Buffer
}

func newBare(url string) *bare {
	return &bare{url: url + "/chat/completions", http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 512, DisableCompression: true}}}
}

// begin starts a task.
func (c *bare) begin(p plan) {
	c.body.Reset()
	fmt.Fprintf(&c.body, `{"model":"scripted","stream":true,"messages":[{"role":"user","content":%s}`, quoted(p.String()))
}

// ask makes the next request and adds what a turn with this output adds.
func (c *bare) ask(ctx context.Context, output string) error {
	body := append(bytes.Clone(c.body.Bytes()), "]}"...)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	c.grow(1, output)
	return nil
}

// grow adds turns to the history.
func (c *bare) grow(turns int, output string) {
	for range turns {
		fmt.Fprintf(&c.body, `,{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}`+
			`,{"role":"tool","content":%s,"tool_call_id":"c"}`, quoted(output))
	}
}

// prompt adds one.
func (c *bare) prompt(p plan) {
	fmt.Fprintf(&c.body, `,{"role":"user","content":%s}`, quoted(p.String()))
}

func quoted(s string) string {
	b, _ := json.Marshal(s) // strings always encode
	return string(b)
}
