package e2e_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/llm/llmtest"
	"rookery/protocol"
)

const text = "rookery runs LLM agents whose tools live on other machines.\n\nA rookery is where rooks nest.\n"

func arguments(v any) []byte { return protocol.Encode(v) }

// readme runs the first command of the README in a fresh home.
func (w *world) readme() *proc {
	w.t.Helper()
	w.file("README.md", text)
	return w.run("run", "-m", "demo", "--approve", "allow-all", "count the words in README.md")
}

func TestRun_TheCommandOfTheReadmeAsAFreshUser(t *testing.T) {
	w := newWorld(t)
	p := w.readme()
	require.Equal(t, protocol.ExitOK, p.code, p.stderr)
	require.Contains(t, p.stdout.String(), strconv.Itoa(len(strings.Fields(text))))
	require.Contains(t, p.stdout.String(), "no intelligence", "the demo model hides what it is")
	w.verify(w.session("count the words in README.md"))
}

func TestRun_InACommandSubstitutionEnds(t *testing.T) {
	w := newWorld(t)
	w.file("README.md", text)
	script := fmt.Sprintf(`exec 7>&1; out=$(%s run -q -m demo --approve allow-all "count the words in README.md"); echo "[$out]"`,
		filepath.Join(binaries, "rookery"))
	p := w.spawn(exec.Command("sh", "-c", script), nil)
	// Were a descriptor left to the broker, the wait for the output's end would fail.
	require.Equal(t, protocol.ExitOK, p.wait(), p.stderr)
	require.Contains(t, p.stdout.String(), strconv.Itoa(len(strings.Fields(text))))
	require.NotZero(t, w.broker().PID, "the broker has ended with the shell")
	w.verify(w.session("count the words in README.md"))
}

func TestRun_BrokerKilledBetweenTwoRuns(t *testing.T) {
	w := newWorld(t)
	require.Equal(t, protocol.ExitOK, w.readme().code)
	sid := w.session("count the words in README.md")
	before := w.verify(sid)
	old := w.broker().PID
	require.NoError(t, syscall.Kill(old, syscall.SIGKILL))

	require.Equal(t, protocol.ExitOK, w.run("run", "-m", "demo", "--approve", "allow-all", "list files").code)
	require.NotEqual(t, old, w.broker().PID)
	require.Len(t, w.verify(sid), len(before))
	w.verify(w.session("list files"))
}

func TestRun_BrokerKilledDuringARun(t *testing.T) {
	w := newWorld(t)
	s := w.endpoint()
	s.Reply(calls("echo before")...)
	s.Reply(llmtest.Text("one "), llmtest.Hold("killed"), llmtest.Text("two"), llmtest.Usage(10, 5))
	p := w.start("rookery", "run", "--json", "--approve", "allow-all", "go on whatever happens")
	p.says(`one `)
	old := w.broker().PID
	require.NoError(t, syscall.Kill(old, syscall.SIGKILL))
	s.Release("killed")
	require.Equal(t, protocol.ExitOK, p.wait())
	ms := messages(t, p.stdout.String())
	require.Equal(t, protocol.TaskCompleted, end(t, ms).Status)
	require.NotEqual(t, old, w.broker().PID)
	w.verify(w.session("go on whatever happens"))
}

func TestRun_FiftyTurnsOfParallelCalls(t *testing.T) {
	w := newWorld(t)
	s := w.endpoint()
	const turns, width = 49, 3
	for turn := range turns {
		var steps []llmtest.Step
		for n := range width {
			id := fmt.Sprintf("c%d-%d", turn, n)
			args, err := json.Marshal(map[string]string{"cmd": "echo " + id})
			require.NoError(t, err)
			steps = append(steps, llmtest.Call(id, "exec_command", string(args)))
		}
		s.Reply(append(steps, llmtest.Usage(10, 5))...)
	}
	s.Reply(says("done")...)
	p := w.run("run", "--json", "--approve", "allow-all", "fifty turns")
	require.Equal(t, protocol.ExitOK, p.code)
	ms := messages(t, p.stdout.String())
	require.Equal(t, protocol.TaskCompleted, end(t, ms).Status)
	outputs := all[protocol.ToolCallOutput](ms)
	require.Len(t, outputs, turns*width)
	answered := map[string]bool{} // that the next request has them in call order is the endpoint's to see
	for i, o := range outputs {
		require.Equal(t, o.ToolCallID+"\n", o.Output)
		require.True(t, strings.HasPrefix(o.ToolCallID, fmt.Sprintf("c%d-", i/width)), "output %d is of another turn: %s", i, o.ToolCallID)
		require.False(t, answered[o.ToolCallID], "two outputs for %s", o.ToolCallID)
		answered[o.ToolCallID] = true
	}
	require.Len(t, all[protocol.TokenUsage](ms), turns+1)
	rs := w.verify(w.session("fifty turns"))
	seen := map[string]bool{}
	for _, line := range transcript(ms) {
		seen[line] = true
	}
	for _, r := range rs {
		if !r.Private {
			require.True(t, seen[string(r.Message.Encode())], "stored and not shown: %s", r.Message)
		}
	}
}

func TestRun_ContinueHasItsHistory(t *testing.T) {
	w := newWorld(t)
	s := w.endpoint()
	s.Reply(calls("echo the pebble is green")...)
	s.Reply(says("It is green.")...)
	w.ok("run", "--approve", "allow-all", "which colour?")
	s.Reply(says("I said green.")...)
	require.Contains(t, w.ok("run", "-c", "what did you say?"), "I said green.")

	requests := s.Requests()
	last := requests[len(requests)-1]
	var said []string
	for _, m := range last.Messages[1:] {
		said = append(said, m.Role+": "+strings.TrimSpace(m.Text()))
	}
	require.Equal(t, "user: which colour?", said[0])
	require.Contains(t, said[2], "the pebble is green")
	require.Equal(t, "assistant: It is green.", said[3])
	require.Equal(t, "user: what did you say?", said[len(said)-1])
	w.verify(w.session("which colour?"))
}

func TestRun_TwoAtOnceAndAnAttachBesideThem(t *testing.T) {
	w := newWorld(t)
	s := w.endpoint()
	s.Choose(func(r llmtest.Request) []llmtest.Step {
		if r.Last("tool").ToolCallID == "" {
			return calls("echo " + r.Last("user").Text())
		}
		return []llmtest.Step{llmtest.Text("said "), llmtest.Hold("both"), llmtest.Text(r.Last("tool").Text()), llmtest.Usage(10, 5)}
	})
	run := func(prompt string) *proc {
		return w.start("rookery", "run", "--json", "--approve", "allow-all", prompt)
	}
	left, right := run("left"), run("right")
	left.says("said ")
	right.says("said ")
	attach := w.start("rookery", "attach", "--json", string(w.session("left")))
	attach.says("said ")
	s.Release("both")
	for _, p := range []*proc{left, right, attach} {
		require.Zero(t, p.wait(), "%s\n%s", p.name, p.stderr)
		require.Equal(t, protocol.TaskCompleted, end(t, messages(t, p.stdout.String())).Status)
	}
	require.Equal(t, transcript(messages(t, left.stdout.String())), fromTask(transcript(messages(t, attach.stdout.String()))))
	for prompt, p := range map[string]*proc{"left": left, "right": right} {
		outputs := all[protocol.ToolCallOutput](messages(t, p.stdout.String()))
		require.Len(t, outputs, 1)
		require.Equal(t, prompt+"\n", outputs[0].Output)
		w.verify(w.session(prompt))
	}
}
