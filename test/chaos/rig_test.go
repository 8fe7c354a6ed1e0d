package chaos_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/client"
	"rookery/internal/crash"
	"rookery/internal/llm/llmtest"
	"rookery/internal/trace"
	"rookery/protocol"
)

// No case depends on these: they end what hangs.
const (
	patience  = 60 * time.Second
	pollEvery = 20 * time.Millisecond
)

// A rig is a fleet on one machine: a broker, orchestrators, workers, an endpoint.
type rig struct {
	t         *testing.T
	dir       string
	workspace string
	host      string   // the broker's address
	urls      []string // of a cluster
	endpoint  *llmtest.Server
	brain     *brain
	client    *client.Client
	env       map[string]string // of every process

	mu    sync.Mutex // storms start processes beside the test
	procs []*proc
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := bareRig(t)
	r.broker()
	r.connect()
	return r
}

// bareRig is one whose broker the case starts.
func bareRig(t *testing.T) *rig {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	r := &rig{t: t, dir: dir, workspace: filepath.Join(dir, "work"), host: ownAddress(), endpoint: llmtest.Start(t), brain: newBrain()}
	r.endpoint.Choose(r.brain.reply)
	r.env = map[string]string{
		"PATH": os.Getenv("PATH"), "HOME": filepath.Join(dir, "home"), "TMPDIR": filepath.Join(dir, "tmp"),
		"XDG_RUNTIME_DIR": filepath.Join(dir, "run"), "LANG": "C.UTF-8", "ROOKERY_SANDBOX": "none",
		"OPENAI_BASE_URL": r.endpoint.URL, "OPENAI_API_KEY": "test-key", "ROOKERY_MODEL": "scripted", "ROOKERY_TITLE": "false",
		"NATS_URL": r.url(), "ROOKERY_TOOLS_UNREACHABLE_GRACE": "1s", "ROOKERY_RETRY_BACKOFF": "50ms", "NO_PROXY": "127.0.0.1",
	}
	for _, d := range []string{r.workspace, r.env["HOME"], r.env["TMPDIR"], r.env["XDG_RUNTIME_DIR"]} {
		require.NoError(t, os.MkdirAll(d, 0o700))
	}
	t.Cleanup(r.end)
	return r
}

// ownAddress is an address of the loopback that only this test uses: a port of
// 127.0.0.1 that is free now may be taken before the server listens.
func ownAddress() string {
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
}

func (r *rig) url() string { return "nats://" + r.host + ":4222" }

// broker starts the server on the rig's store.
func (r *rig) broker() *proc {
	r.t.Helper()
	p := r.start("nats-server", r.env, "-a", r.host, "-p", "4222", "-js", "-sd", filepath.Join(r.dir, "jetstream"))
	p.says("Server is ready")
	return p
}

func (r *rig) connect() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{Server: strings.Split(r.env["NATS_URL"], ",")})
	require.NoError(r.t, err)
	r.client = c
	r.t.Cleanup(c.Close)
}

// with is the rig's environment and more, in pairs.
func (r *rig) with(pairs ...string) map[string]string {
	env := maps.Clone(r.env)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			env[pairs[i]] = pairs[i+1]
		}
	}
	return env
}

// orchestrator starts one that serves; point is where it will crash, or nothing.
func (r *rig) orchestrator(node, point string) *proc {
	r.t.Helper()
	p := r.start("orchestrator", r.with(crash.Variable, point), "--node", node)
	p.says("orchestrator serves")
	return p
}

// worker starts a worker, always on the same root, which keeps its id, and waits
// until it is signed on.
func (r *rig) worker(point string) *proc {
	r.t.Helper()
	p := r.start("toolworker", r.with(crash.Variable, point), r.workerArgs("w1")...)
	p.says("signed on")
	return p
}

func (r *rig) workerArgs(name string) []string {
	return []string{"--root", filepath.Join(r.dir, name), "--allow", r.workspace, "--slots", "4"}
}

// end kills what still runs and looks for what was left behind.
func (r *rig) end() {
	for _, p := range r.procs {
		p.signal(9)
		<-p.done
	}
	var left []string
	if !within(10*time.Second, func() bool { left = r.strays(); return len(left) == 0 }) {
		r.t.Errorf("processes were left behind:\n%s", strings.Join(left, "\n"))
	}
	for _, p := range r.procs {
		if strings.Contains(p.stderr.String(), "WARNING: DATA RACE") {
			r.t.Errorf("%s has a data race:\n%s", p.name, p.stderr)
		}
	}
	if r.t.Failed() {
		for _, p := range r.procs {
			r.t.Logf("%s: exit %d\n%s", p.name, p.code, tail(p.stderr.String()))
		}
	}
}

// within polls until f is true, on this goroutine, for d at most.
func within(d time.Duration, f func() bool) bool {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for end := time.Now().Add(d); ; <-tick.C {
		if f() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// wait polls until f is true, and fails with what why says when it never is.
func (r *rig) wait(f func() bool, why func() string) {
	r.t.Helper()
	if !within(patience, f) {
		require.FailNow(r.t, "never came true", why())
	}
}

func because(why string) func() string { return func() string { return why } }

// records reads the session's whole trace, ownerships left out.
func (r *rig) records(sid protocol.ID) []trace.Record {
	r.t.Helper()
	var rs []trace.Record
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for rec, err := range r.client.Records(ctx, sid) {
		require.NoError(r.t, err)
		if rec.Own == nil {
			rs = append(rs, trace.Record{Context: rec.Context, Private: rec.Private, Message: rec.Message})
		}
	}
	return rs
}

// lines is the notation of a session's records.
func (r *rig) lines(sid protocol.ID) []string {
	r.t.Helper()
	var out []string
	for _, rec := range r.records(sid) {
		out = append(out, rec.Message.String())
	}
	return out
}

// until waits for a record whose notation begins so.
func (r *rig) until(sid protocol.ID, prefix string) []string {
	r.t.Helper()
	var lines []string
	r.wait(func() bool {
		if _, err := r.client.End(r.t.Context(), sid); err != nil {
			return false
		}
		lines = r.lines(sid)
		for _, l := range lines {
			if strings.HasPrefix(l, prefix) {
				return true
			}
		}
		return false
	}, func() string { return "no " + prefix + " in\n" + strings.Join(lines, "\n") })
	return lines
}

// verify waits for the end of the session's only task and holds the trace against
// the rules.
func (r *rig) verify(sid protocol.ID) []string {
	r.t.Helper()
	lines := r.until(sid, "+task_end")
	require.Empty(r.t, trace.Verify(r.records(sid), nil), strings.Join(lines, "\n"))
	require.Equal(r.t, 1, count(lines, "+task_end"), strings.Join(lines, "\n"))
	return lines
}

// ledger counts the lines that tools have written, by what they say.
func (r *rig) ledger() map[string]int {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.workspace, "ledger"))
	if os.IsNotExist(err) {
		return map[string]int{}
	}
	require.NoError(r.t, err)
	counts := map[string]int{}
	for line := range strings.FieldsFuncSeq(string(b), func(c rune) bool { return c == '\n' }) {
		counts[line]++
	}
	return counts
}

// began waits until calls have had n effects.
func (r *rig) began(n int) {
	r.t.Helper()
	r.wait(func() bool { return len(r.ledger()) >= n }, because("the call does not run"))
}

// asked waits until the endpoint got n requests of a task.
func (r *rig) asked(req client.RunRequest, n int) {
	r.t.Helper()
	r.wait(func() bool { return r.brain.requests(req.Prompt) >= n }, because("the request is not made"))
}

// request is for a task of a new session.
func (r *rig) request(prompt string) client.RunRequest {
	return client.RunRequest{
		Session: protocol.NewSessionID(), ID: protocol.Token(8), Prompt: prompt,
		Options: protocol.TaskOptions{Approve: "allow-all"}, New: protocol.SessionOptions{Workspace: r.workspace},
	}
}

func (r *rig) run(req client.RunRequest) protocol.ID {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	_, err := r.client.Run(ctx, req)
	require.NoError(r.t, err)
	return req.Session
}
