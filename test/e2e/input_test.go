package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/llm/llmtest"
	"rookery/protocol"
)

// A typed is what somebody types, and what must come of it.
type typed struct {
	args  []string
	stdin string
	env   map[string]string
	exit  int
	says  string // on stderr
}

// check runs the command: one line on stderr says what is wrong, stdout is empty,
// or, for --json, holds the task_end that says the same.
func (w *world) check(c typed) {
	w.t.Helper()
	for k, v := range c.env {
		w.env[k] = v
		defer delete(w.env, k)
	}
	cmd := exec.Command(filepath.Join(binaries, "rookery"), c.args...)
	p := w.spawn(cmd, strings.NewReader(c.stdin))
	require.Equal(w.t, c.exit, p.wait(), "%s\nstdout:\n%s\nstderr:\n%s", p.name, tail(p.stdout.String()), p.stderr)
	require.Contains(w.t, p.stderr.String(), c.says, p.name)
	if !slices.Contains(c.args, "--json") {
		require.Empty(w.t, p.stdout.String(), p.name)
		return
	}
	e := end(w.t, messages(w.t, p.stdout.String()))
	require.Equal(w.t, c.exit, protocol.ExitCode(e.Status, e.Code), "%+v", e)
}

func TestInput_WhatCanBeSeenBeforehandMakesNothing(t *testing.T) {
	w := newWorld(t)
	w.file("file", "")
	w.file("broken.yaml", "max_turns: [\n")
	big := strings.Repeat("x", protocol.MaxBody+1)
	for _, c := range []typed{
		{args: []string{"nonsense"}, exit: protocol.ExitUsage, says: "nonsense"},
		{args: []string{"run", "-m", "demo"}, exit: protocol.ExitUsage, says: "empty"},
		{args: []string{"run", "-m", "demo", "--json"}, exit: protocol.ExitUsage, says: "empty"},
		{args: []string{"run", "-m", "demo", ""}, exit: protocol.ExitUsage, says: "empty"},
		{args: []string{"run", "-m", "demo", " \n\t"}, exit: protocol.ExitUsage, says: "empty"},
		{args: []string{"run", "-m", "demo", "-"}, stdin: "caf\xe9", exit: protocol.ExitUsage, says: "UTF-8"},
		{args: []string{"run", "-m", "demo", "-"}, stdin: big, exit: protocol.ExitUsage, says: "768 KiB"},
		{args: []string{"run", "-m", "demo", "--nope", "x"}, exit: protocol.ExitUsage, says: "--nope"},
		{args: []string{"run", "-m", "demo", "--json", "--nope", "x"}, exit: protocol.ExitUsage, says: "--nope"},
		{args: []string{"run", "-m", "demo", "--approve", "maybe", "x"}, exit: protocol.ExitUsage, says: "allow-all, deny-all, read-only, ask"},
		{args: []string{"run", "-m", "demo", "--sandbox", "paper", "x"}, exit: protocol.ExitUsage, says: "native, landlock, none"},
		{args: []string{"run", "-m", "demo", "--thinking", "hard", "x"}, exit: protocol.ExitUsage, says: "none, low, medium, high, xhigh"},
		{args: []string{"run", "-m", "demo", "--max-turns", "many", "x"}, exit: protocol.ExitUsage, says: "max-turns"},
		{args: []string{"run", "-m", "demo", "--timeout", "soon", "x"}, exit: protocol.ExitUsage, says: "timeout"},
		{args: []string{"run", "-m", "demo", "-C", "missing", "x"}, exit: protocol.ExitUsage, says: "missing"},
		{args: []string{"run", "-m", "demo", "-C", "file", "x"}, exit: protocol.ExitUsage, says: "not a directory"},
		{args: []string{"run", "-m", "demo", "-s", "not an id", "x"}, exit: protocol.ExitUsage, says: "not an id"},
		{args: []string{"run", "-m", "demo", "-s", "a", "-c", "x"}, exit: protocol.ExitUsage, says: "exclude"},
		{args: []string{"run", "-m", "demo", "--json", "--plain", "x"}, exit: protocol.ExitUsage, says: "exclude"},
		{args: []string{"run", "-m", "demo", "--image", "missing.png", "x"}, exit: protocol.ExitUsage, says: "missing.png"},
		{args: []string{"run", "-m", "demo", "--image", "file", "x"}, exit: protocol.ExitUsage, says: "file"},
		{args: []string{"run", "--config", "missing.yaml", "x"}, exit: protocol.ExitUsage, says: "missing.yaml"},
		{args: []string{"run", "--config", "broken.yaml", "x"}, exit: protocol.ExitUsage, says: "broken.yaml"},
		{args: []string{"run", "x"}, env: map[string]string{"ROOKERY_MAX_TURNS": "many"}, exit: protocol.ExitUsage, says: "ROOKERY_MAX_TURNS"},
		{args: []string{"run", "x"}, exit: protocol.ExitModel, says: "-m demo"},
		{args: []string{"run", "--json", "x"}, exit: protocol.ExitModel, says: "-m demo"},
		{args: []string{"run", "-m", "gpt", "x"}, exit: protocol.ExitModel, says: "OPENAI_API_KEY"},
		{args: []string{"run", "-m", "demo", "--server", "nats://127.0.0.1:1", "x"}, exit: protocol.ExitBroker, says: "127.0.0.1:1"},
		{args: []string{"run", "-m", "demo", "--server", "nats://127.0.0.1:1", "--json", "x"}, exit: protocol.ExitBroker, says: "127.0.0.1:1"},
		{args: []string{"ls", "--server", "nats://127.0.0.1:1"}, exit: protocol.ExitBroker, says: "127.0.0.1:1"},
		{args: []string{"show"}, exit: protocol.ExitUsage, says: "ID"},
		{args: []string{"steer", "a"}, exit: protocol.ExitUsage, says: "steer"},
	} {
		w.check(c)
	}
	require.Zero(t, w.broker().PID, "a broker was started for nothing")
	require.NoDirExists(t, w.store())
}

func TestInput_AWorkspaceCannotTakeARunOver(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, os.Mkdir(filepath.Join(w.workspace, ".rookery"), 0o700))
	for _, line := range []string{"base_url: http://127.0.0.1:1/v1", "approve: allow-all", "sandbox: none", "server: [nats://127.0.0.1:1]"} {
		w.file(".rookery/config.yaml", line+"\n")
		w.check(typed{args: []string{"run", "-m", "demo", "x"}, exit: protocol.ExitUsage, says: "config.yaml"})
	}
	require.Zero(t, w.broker().PID)
}

func TestInput_WhatOnlyTheBrokerKnows(t *testing.T) {
	w := newWorld(t)
	for _, c := range []typed{
		{args: []string{"run", "-m", "demo", "-s", "nobody", "x"}, exit: protocol.ExitUsage, says: "nobody"},
		{args: []string{"run", "-m", "demo", "-c", "x"}, exit: protocol.ExitUsage, says: "no session"},
		{args: []string{"show", "nobody"}, exit: protocol.ExitUsage, says: "nobody"},
		{args: []string{"attach", "nobody"}, exit: protocol.ExitUsage, says: "nobody"},
		{args: []string{"logs", "nobody"}, exit: protocol.ExitUsage, says: "nobody"},
		{args: []string{"abort", "nobody"}, exit: protocol.ExitUsage, says: "nobody"},
		{args: []string{"rm", "nobody"}, exit: protocol.ExitUsage, says: "nobody"},
	} {
		w.check(c)
	}
	require.Empty(t, w.ok("ls", "--json"))
}

func TestInput_ABrokerWithoutOrchestrator(t *testing.T) {
	w := newWorld(t)
	host, _ := w.nats()
	w.check(typed{args: []string{"run", "-m", "demo", "--server", brokerAt(host), "--json", "x"}, exit: protocol.ExitBroker, says: "orchestrator"})
}

// A prompt in the arguments never waits on stdin, which here stays open.
func TestInput_AnOpenStdinHoldsNothing(t *testing.T) {
	w := newWorld(t)
	r, wr, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer wr.Close()
	p := w.spawn(exec.Command(filepath.Join(binaries, "rookery"), "run", "-m", "demo", "--approve", "allow-all", "list files"), r)
	require.Equal(t, protocol.ExitOK, p.wait(), p.stderr)
	w.verify(w.session("list files"))
}

// Exit tells how the task ended, and the last line of --json says the same.
func TestExit_TellsHowTheTaskEnded(t *testing.T) {
	for name, c := range map[string]struct {
		replies [][]llmtest.Step
		args    []string
		signal  syscall.Signal
		exit    int
	}{
		"completed":    {replies: [][]llmtest.Step{says("done")}, exit: protocol.ExitOK},
		"denied":       {replies: [][]llmtest.Step{calls("true"), says("so be it")}, exit: protocol.ExitDenied},
		"turn limit":   {replies: [][]llmtest.Step{calls("true")}, args: []string{"--approve", "allow-all", "--max-turns", "1"}, exit: protocol.ExitMaxTurns},
		"bad key":      {replies: [][]llmtest.Step{{llmtest.Status(401, `{"error":{"message":"no"}}`)}}, exit: protocol.ExitModel},
		"bad request":  {replies: [][]llmtest.Step{{llmtest.Status(400, `{"error":{"message":"no"}}`)}}, exit: protocol.ExitFailed},
		"timeout":      {replies: [][]llmtest.Step{{llmtest.Text("a"), llmtest.Stall()}}, args: []string{"--timeout", "1s"}, exit: protocol.ExitTimeout},
		"interrupted":  {replies: [][]llmtest.Step{{llmtest.Text("started"), llmtest.Stall()}}, signal: syscall.SIGINT, exit: protocol.ExitAborted},
		"tool aborted": {replies: [][]llmtest.Step{calls("echo started; sleep 600")}, args: []string{"--approve", "allow-all"}, signal: syscall.SIGINT, exit: protocol.ExitAborted},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.endpoint()
			for _, r := range c.replies {
				s.Reply(r...)
			}
			p := w.start("rookery", append([]string{"run", "--json", "end somehow"}, c.args...)...)
			if c.signal != 0 {
				p.says("started")
				p.signal(c.signal)
			}
			require.Equal(t, c.exit, p.wait(), p.stderr)
			e := end(t, messages(t, p.stdout.String()))
			require.Equal(t, c.exit, protocol.ExitCode(e.Status, e.Code), "%+v", e)
			w.verify(w.session("end somehow"))
		})
	}
}
