package e2e_test

import (
	"context"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/client"
	"rookery/internal/llm/llmtest"
	"rookery/protocol"
)

// A fleet is a broker, orchestrators and workers as processes of their own.
type fleet struct {
	*world
	host          string // the broker's address
	server        *proc
	orchestrators []*proc
	workers       []*proc
}

// newFleet is a broker alone, for a model that is chosen before the rest starts.
func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{world: newWorld(t)}
	f.host, f.server = f.nats()
	f.env["NATS_URL"] = brokerAt(f.host)
	return f
}

func (f *fleet) orchestrator() *proc {
	f.t.Helper()
	p := f.start("orchestrator", "--node", "o"+strconv.Itoa(len(f.orchestrators)+1))
	f.orchestrators = append(f.orchestrators, p)
	p.says("orchestrator serves")
	return p
}

// worker starts the worker of a root, which keeps its id.
func (f *fleet) worker(n int) {
	f.t.Helper()
	f.workers = append(f.workers, f.start("toolworker",
		"--root", filepath.Join(f.dir, "worker"+strconv.Itoa(n)), "--allow", f.workspace, "--slots", "4"))
}

// ready waits until status shows the workers.
func (f *fleet) ready(workers int) {
	f.t.Helper()
	if workers == 0 {
		return
	}
	require.Eventually(f.t, func() bool {
		p := f.run("status", "--json")
		var who struct{ Workers []protocol.WorkerInfo }
		return p.code == 0 && protocol.Unmarshal([]byte(p.stdout.String()), &who) == nil && len(who.Workers) == workers
	}, patience, pollEvery, "the workers do not come")
}

// stop ends the processes gracefully.
func (f *fleet) stop(ps ...*proc) {
	f.t.Helper()
	for _, p := range ps {
		p.signal(syscall.SIGTERM)
	}
	for _, p := range ps {
		require.Zero(f.t, p.wait(), "%s\n%s", p.name, p.stderr)
	}
}

// task runs a prompt through the SDK and returns its session and end.
func (f *fleet) task(prompt string) (protocol.ID, protocol.TaskEnd) {
	f.t.Helper()
	c := f.dial()
	defer c.Close()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	t, err := c.Run(ctx, client.RunRequest{
		Prompt: prompt, Options: protocol.TaskOptions{Approve: "allow-all"}, New: protocol.SessionOptions{Workspace: f.workspace},
	})
	require.NoError(f.t, err)
	return t.Session, f.follow(ctx, c, t)
}

func (f *fleet) follow(ctx context.Context, c *client.Client, t client.Task) protocol.TaskEnd {
	f.t.Helper()
	var end protocol.TaskEnd
	for e, err := range c.Follow(ctx, t, nil) {
		require.NoError(f.t, err)
		if p, ok := e.Message.Payload.(protocol.TaskEnd); ok {
			end = p
		}
	}
	return end
}

func TestFleet_RunAttachAndReadAgainAfterARestart(t *testing.T) {
	f := newFleet(t)
	s := f.endpoint()
	f.orchestrator()
	f.worker(0)
	f.worker(1)
	f.ready(2)
	s.Reply(calls("echo from a worker; echo x > made.txt")...)
	s.Reply(llmtest.Text("one "), llmtest.Hold("attached"), llmtest.Text("two"), llmtest.Usage(10, 5))

	url := f.env["NATS_URL"]
	f.env["NATS_URL"] = "nats://127.0.0.1:1" // the flag wins
	run := f.start("rookery", "run", "--server", url, "-C", f.workspace, "--json", "--approve", "allow-all", "work over there")
	f.env["NATS_URL"] = url
	run.says("one ")
	sid := f.session("work over there")
	attach := f.start("rookery", "attach", "--json", string(sid))
	attach.says("one ")
	s.Release("attached")
	require.Zero(t, run.wait(), run.stderr)
	require.Zero(t, attach.wait(), attach.stderr)
	seen := messages(t, attach.stdout.String())
	require.Equal(t, protocol.TaskCompleted, end(t, seen).Status)
	require.Equal(t, transcript(messages(t, run.stdout.String())), fromTask(transcript(seen)))
	require.FileExists(t, filepath.Join(f.workspace, "made.txt"))

	f.stop(f.orchestrators...)
	f.stop(f.workers...)
	before := f.reads(sid) // nobody but the broker is needed for that
	require.Contains(t, before["ls"], string(sid))
	f.server.kill()
	f.natsAt(f.host)
	f.orchestrators, f.workers = nil, nil
	f.orchestrator()
	f.worker(0)
	f.worker(1)
	f.ready(2)
	require.Equal(t, before, f.reads(sid))
	require.Equal(t, transcript(seen), transcript(messages(t, before["logs"])))
	f.verify(sid)
}

// reads is what the reading commands say of a session.
func (f *fleet) reads(sid protocol.ID) map[string]string {
	f.t.Helper()
	return map[string]string{
		"ls": f.ok("ls", "--json"), "show": f.ok("show", "--json", string(sid)), "trace": f.ok("show", "--trace", string(sid)),
		"logs": f.ok("logs", "--json", string(sid)), "verify": f.ok("verify", string(sid)), "usage": f.ok("usage", "--json"),
	}
}

func TestFleet_DaemonsWaitForTheirBrokerAndEndGracefully(t *testing.T) {
	w := newWorld(t)
	f := &fleet{world: w, host: ownAddress()}
	w.env["NATS_URL"], w.env["ROOKERY_MODEL"] = brokerAt(f.host), "demo"
	o := w.start("orchestrator")
	worker := w.start("toolworker", "--root", filepath.Join(w.dir, "worker"), "--allow", w.workspace)
	o.says("broker is not there")
	worker.says("broker is not there")
	w.natsAt(f.host)
	o.says("orchestrator serves")
	f.ready(1)
	w.file("README.md", text)
	sid, end := f.task("count the words in README.md")
	require.Equal(t, protocol.TaskCompleted, end.Status)
	f.stop(o, worker)
	w.verify(sid)
}

func TestFleet_BadFlagsOfTheDaemons(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"orchestrator", "--nope"}, "--nope"},
		{[]string{"orchestrator", "extra"}, "extra"},
		{[]string{"orchestrator", "--log-level", "loud"}, "loud"},
		{[]string{"orchestrator", "--node", "not an id"}, "not an id"},
		{[]string{"orchestrator", "--config", "missing.yaml"}, "missing.yaml"},
		{[]string{"toolworker", "--sandbox", "paper"}, "paper"},
		{[]string{"toolworker", "--slots", "many"}, "many"},
		{[]string{"toolworker", "--pool", "a.b"}, "a.b"},
	} {
		p := w.start(c.args[0], c.args[1:]...)
		require.Equal(t, protocol.ExitUsage, p.wait(), "%s\n%s", p.name, p.stderr)
		require.Contains(t, p.stderr.String(), c.says)
		require.Equal(t, 1, countLines(p.stderr.String(), ""), "not one line: %s", p.stderr)
		require.Empty(t, p.stdout.String())
	}
}

func TestServe_RunsJoinItAndGoOnWithoutIt(t *testing.T) {
	w := newWorld(t)
	require.Equal(t, protocol.ExitOK, w.readme().code)
	detached := w.broker().PID
	serve := w.start("rookery", "serve", "--listen", "127.0.0.1:0", "--allow", w.workspace)
	serve.says("NATS_URL=")
	require.NotEqual(t, detached, w.broker().PID)
	require.Contains(t, w.ok("run", "-m", "demo", "-c", "--approve", "allow-all", "count the words in README.md"), "words")

	serve.signal(syscall.SIGTERM)
	require.Zero(t, serve.wait(), serve.stderr)
	require.Zero(t, w.broker().PID)
	require.Contains(t, w.ok("run", "-m", "demo", "-c", "--approve", "allow-all", "read README.md"), "rook")
	w.verify(w.session("count the words in README.md"))
}
