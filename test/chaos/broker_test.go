package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"rookery/client"
	"rookery/internal/llm/llmtest"
	"rookery/protocol"
)

// The broker is killed and started again while a task runs; nothing else is, so the
// task must look as if nothing had happened.
func TestBroker_KilledTwentyTimesDuringOneTask(t *testing.T) {
	t.Parallel()
	const kills, n = 20, 30
	r := bareRig(t)
	server := r.broker()
	r.connect()
	r.orchestrator("o1", "")
	r.orchestrator("o2", "")
	r.worker("")
	req := r.request(r.brain.teach(paced(n)))
	sid := r.run(req)
	for k := range kills {
		r.began(k + 1)
		server.kill()
		server = r.broker()
	}
	lines := r.verify(sid)
	require.Contains(t, lines, fmt.Sprintf(`text[assistant]"all %d done"`, n))
	require.NotContains(t, lines, "+takeover")
	require.Equal(t, n+1, r.brain.requests(req.Prompt))
	require.Len(t, r.ledger(), n)
	for line, times := range r.ledger() {
		require.Equal(t, 1, times, line)
	}
}

// paced is steps that take a moment each.
func paced(n int) plan {
	return func(v view) []llmtest.Step {
		for k := 1; k <= n; k++ {
			if _, told := v.Told[k]; !told {
				return step(k, "sleep 0.05;")
			}
		}
		return answer(v.summary(n))
	}
}

// A hundred prompts at once, through two orchestrators: one task begins, and all
// others are told that the session is busy.
func TestPrompts_OneOfAHundredBeginsATask(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.orchestrator("o1", "")
	r.orchestrator("o2", "")
	r.worker("")
	for _, idle := range []protocol.ID{protocol.NewSessionID(), r.idle()} {
		gate := "all have asked " + string(idle)
		prompt := r.brain.teach(func(view) []llmtest.Step {
			return []llmtest.Step{llmtest.Hold(gate), llmtest.Text("hello"), llmtest.Usage(10, 5)}
		})
		before := count(r.stored(idle), "+task_begin")
		accepted := r.storm(100, func(int) client.RunRequest {
			req := r.request(prompt)
			req.Session = idle
			return req
		})
		require.Equal(t, 1, accepted)
		r.endpoint.Release(gate)
		r.wait(func() bool { return count(r.lines(idle), "+task_end") == before+1 }, because("the task does not end"))
		require.Equal(t, before+1, count(r.lines(idle), "+task_begin"))
	}
}

// idle makes a session that has run a task.
func (r *rig) idle() protocol.ID {
	r.t.Helper()
	sid := r.run(r.request(r.brain.teach(func(view) []llmtest.Step { return answer("ready") })))
	r.verify(sid)
	return sid
}

// stored is lines of a session that may not exist.
func (r *rig) stored(sid protocol.ID) []string {
	r.t.Helper()
	if _, err := r.client.End(r.t.Context(), sid); err != nil {
		require.ErrorIs(r.t, err, client.ErrNoSession)
		return nil
	}
	return r.lines(sid)
}

// storm sends n requests at once, half of them to each orchestrator, and counts the
// accepted ones.
func (r *rig) storm(n int, request func(k int) client.RunRequest) int {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, n)
	for k := range n {
		wg.Go(func() {
			_, errs[k] = r.client.At(protocol.ID([]string{"o1", "o2"}[k%2])).Run(ctx, request(k))
		})
	}
	wg.Wait()
	accepted := 0
	for _, err := range errs {
		var refused *client.RefusedError
		switch {
		case err == nil:
			accepted++
		case errors.As(err, &refused):
			require.Equal(r.t, protocol.ReplyTaskInProgress, refused.Reply.Code, refused.Reply.Reason)
		default:
			require.NoError(r.t, err)
		}
	}
	return accepted
}

// A request that kills whoever sends it is not sent for ever.
func TestTakeover_ARequestThatKillsEveryOrchestrator(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var owners []*proc
	for k := range 4 {
		owners = append(owners, r.orchestrator(fmt.Sprintf("o%d", k+1), "after-request-begin"))
	}
	r.worker("")
	req := r.request(r.brain.teach(func(view) []llmtest.Step { return answer("never asked") }))
	_, _ = r.client.At("o1").Run(t.Context(), req) // its answer may die with the owner
	lines := r.until(req.Session, "+task_end")
	require.Equal(t, []string{`abort("orchestrator lost 3 times in this turn")`, "+task_end(failed)"}, lines[len(lines)-2:])
	require.Equal(t, 3, count(lines, "+takeover"))
	require.Equal(t, 3, count(lines, "request_begin"))
	alive := 0
	for _, o := range owners {
		if o.alive() {
			alive++
		}
	}
	require.Equal(t, 1, alive)
	r.verify(req.Session)
}

// Three brokers, three replicas: the leader of the trace is killed in the middle of
// a turn.
func TestBroker_LeaderOfAClusterIsKilled(t *testing.T) {
	t.Parallel()
	r := bareRig(t)
	servers := r.cluster(3)
	r.env["ROOKERY_STORE_REPLICAS"] = "3"
	r.connect()
	r.orchestrator("o1", "")
	r.orchestrator("o2", "")
	r.worker("")
	const n = 12
	req := r.request(r.brain.teach(paced(n)))
	sid := r.run(req)
	r.began(3)
	servers[r.leader("TRACE")].kill()
	lines := r.verify(sid)
	require.Contains(t, lines, fmt.Sprintf(`text[assistant]"all %d done"`, n))
	require.Len(t, r.ledger(), n)
	for line, times := range r.ledger() {
		require.Equal(t, 1, times, line)
	}
	require.Equal(t, n+1, r.brain.requests(req.Prompt))
}

// cluster starts n servers on loopback and makes them the configured ones.
func (r *rig) cluster(n int) map[string]*proc {
	r.t.Helper()
	var routes, urls, hosts []string
	for range n {
		host := ownAddress()
		hosts = append(hosts, host)
		routes, urls = append(routes, "nats://"+host+":6222"), append(urls, "nats://"+host+":4222")
	}
	servers := map[string]*proc{}
	for k, host := range hosts {
		name := fmt.Sprintf("n%d", k+1)
		servers[name] = r.start("nats-server", r.env, "-a", host, "-p", "4222", "-n", name, "-js",
			"-sd", filepath.Join(r.dir, name), "-cluster_name", "rookery", "-cluster", routes[k], "-routes", strings.Join(routes, ","))
	}
	r.urls = urls
	r.env["NATS_URL"] = strings.Join(urls, ",")
	for _, s := range servers {
		s.says("Server is ready")
	}
	r.wait(func() bool { return r.leader("") != "" }, because("the cluster has no leader"))
	return servers
}

// leader is the name of the server that leads a stream of ours, or the cluster.
func (r *rig) leader(stream string) string {
	r.t.Helper()
	nc, err := nats.Connect(strings.Join(r.urls, ","))
	if err != nil {
		return ""
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(r.t, err)
	ctx, cancel := context.WithTimeout(r.t.Context(), 2*time.Second) // a cluster without a leader does not answer
	defer cancel()
	if stream == "" {
		if _, err := js.AccountInfo(ctx); err != nil {
			return ""
		}
		return "some"
	}
	for name := range js.StreamNames(ctx).Name() {
		if strings.HasSuffix(name, stream) {
			s, err := js.Stream(ctx, name)
			require.NoError(r.t, err)
			return s.CachedInfo().Cluster.Leader
		}
	}
	require.FailNow(r.t, "no stream "+stream)
	return ""
}
