package chaos_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"rookery/internal/llm/llmtest"
)

// A brain answers model requests by what they say alone, as a careful model would:
// a request that is made again gets the same answer, and a step whose outcome was
// told, whatever it was, is not asked for again.
type brain struct {
	mu    sync.Mutex // handlers of the endpoint read and count
	plans map[string]plan
	asked map[string]int
}

// A plan answers the requests of one task.
type plan func(v view) []llmtest.Step

// A view is what a request says.
type view struct {
	// Told maps the steps whose outcome is known to whether they were done.
	Told map[int]bool
	// Task is the prompt, Text the whole conversation.
	Task, Text string
	// Asked counts the requests of this task before this one. A plan that looks at
	// it describes an endpoint that behaves differently the second time.
	Asked int
}

func newBrain() *brain { return &brain{plans: map[string]plan{}, asked: map[string]int{}} }

// teach returns the prompt of a task that p answers.
func (b *brain) teach(p plan) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	prompt := fmt.Sprintf("task %04d", len(b.plans))
	b.plans[prompt] = p
	return prompt
}

// requests is how many the task with that prompt has made.
func (b *brain) requests(prompt string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asked[prompt]
}

var (
	taskName = regexp.MustCompile(`task \d{4}`)
	retried  = regexp.MustCompile(`(?s)\[tool_call_output id="step-(\d+)" status="[a-z]+"\](.*?)\[/tool_call_output\]`)
)

func (b *brain) reply(req llmtest.Request) []llmtest.Step {
	v := view{Told: map[int]bool{}}
	var all strings.Builder
	for _, m := range req.Messages {
		text := content(m.Content)
		all.WriteString(text + "\n")
		if n, err := strconv.Atoi(strings.TrimPrefix(m.ToolCallID, "step-")); m.Role == "tool" && err == nil {
			v.Told[n] = done(n, text)
		}
		for _, out := range retried.FindAllStringSubmatch(text, -1) {
			n, _ := strconv.Atoi(out[1]) // the pattern has digits
			v.Told[n] = done(n, out[2])
		}
	}
	v.Text = all.String()
	if names := taskName.FindAllString(v.Text, -1); len(names) > 0 {
		v.Task = names[len(names)-1]
	}
	b.mu.Lock()
	p := b.plans[v.Task]
	v.Asked = b.asked[v.Task]
	b.asked[v.Task]++
	b.mu.Unlock()
	if p == nil {
		return []llmtest.Step{llmtest.Status(400, `{"error":{"message":"no plan for this conversation"}}`)}
	}
	return p(v)
}

// done reports an output that is the step's word and nothing else.
func done(n int, output string) bool { return strings.TrimSpace(output) == fmt.Sprintf("did-%d", n) }

// content is the text of a message, whose content is a string or parts.
func content(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var parts []llmtest.Part
	_ = json.Unmarshal(raw, &parts) // neither: no text
	for _, p := range parts {
		s += p.Text
	}
	return s
}

// answer says a text; usage comes with it.
func answer(text string) []llmtest.Step {
	return []llmtest.Step{llmtest.Text(text), llmtest.Usage(10, 5)}
}

// step asks for one step: an effect that is entered into the ledger, and its word.
func step(n int, more string) []llmtest.Step {
	return []llmtest.Step{stepCall(n, more), llmtest.Usage(10, 5)}
}

func stepCall(n int, more string) llmtest.Step {
	return call(n, "exec_command", map[string]string{
		"cmd": fmt.Sprintf("echo $ROOKERY_CALL_ID step-%d >> ledger; %s echo did-%d", n, more, n),
	})
}

func call(n int, tool string, args map[string]string) llmtest.Step {
	b, err := json.Marshal(args)
	if err != nil {
		panic(err) // a map of strings
	}
	return llmtest.Call(fmt.Sprintf("step-%d", n), tool, string(b))
}

// steps is a task of n steps, one after the other; its answer says which of them
// it could not see done.
func steps(n int) plan {
	return func(v view) []llmtest.Step {
		for k := 1; k <= n; k++ {
			if _, told := v.Told[k]; !told {
				return step(k, "")
			}
		}
		return answer(v.summary(n))
	}
}

func (v view) summary(n int) string {
	var missing []string
	for k := 1; k <= n; k++ {
		if !v.Told[k] {
			missing = append(missing, strconv.Itoa(k))
		}
	}
	if len(missing) == 0 {
		return fmt.Sprintf("all %d done", n)
	}
	return "done but for " + strings.Join(missing, ", ")
}
