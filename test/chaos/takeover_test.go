package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/client"
	"rookery/internal/trace"
	"rookery/protocol"
)

// A takeover is one case: an orchestrator that dies at a place, and what its
// successor does.
type takeover struct {
	name  string
	point string   // where the owner dies; empty: it is killed when died returns
	env   []string // of both orchestrators, in pairs
	plan  plan
	// options change the request; approve is allow-all by default.
	options func(*client.RunRequest)
	// meanwhile happens after the request; died waits for the instant to kill the owner.
	meanwhile func(*fallen)
	died      func(*fallen)
	// afterwards happens when the owner is dead.
	afterwards func(*fallen)
	// want are the records from the takeover on; "*" stands for any number of them.
	want []string
	// requests that the endpoint got, and effects in the ledger.
	requests, effects int
}

// A fallen is a running case.
type fallen struct {
	*rig
	request client.RunRequest
	sid     protocol.ID
	owner   *proc
	node    *client.Client         // what goes to the owner
	alive   func() context.Context // ends with the owner
}

// follow makes the case's context, which ends with the owner: an answer that died
// with it is not waited for.
func (f *fallen) follow() {
	ctx, cancel := context.WithCancel(f.t.Context())
	f.alive = func() context.Context { return ctx }
	go func() { // ends with the owner, which the rig ends
		<-f.owner.done
		cancel()
	}()
}

// died reports an error that says that the owner died meanwhile, or none.
func (f *fallen) died(err error) bool {
	return err == nil || errors.Is(err, client.ErrNoOrchestrator) || errors.Is(err, context.Canceled)
}

func (c takeover) run(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := 0; i+1 < len(c.env); i += 2 {
		r.env[c.env[i]] = c.env[i+1]
	}
	f := &fallen{rig: r, owner: r.orchestrator("victim", c.point), node: r.client.At("victim")}
	r.worker("")
	r.orchestrator("survivor", "") // after the worker: it finds the other's lease
	f.follow()
	f.request = r.request(r.brain.teach(c.plan))
	if c.options != nil {
		c.options(&f.request)
	}
	f.sid = f.request.Session
	f.ask()
	if c.meanwhile != nil {
		c.meanwhile(f)
	}
	if c.died != nil {
		c.died(f)
		f.owner.kill()
	}
	f.owner.crashed()
	f.again()
	if c.afterwards != nil {
		c.afterwards(f)
	}
	lines := r.verify(f.sid)
	f.match(c.want, lines)
	require.Equal(t, c.requests, r.brain.requests(f.request.Prompt), "requests")
	f.count(c.effects)
	f.idle()
	f.booked(f.sid, lines)
}

// booked waits until the ledger has a row for each request of the trace.
func (r *rig) booked(sid protocol.ID, lines []string) {
	r.t.Helper()
	want := map[string]bool{}
	for n := range count(lines, "request_begin") {
		want[strconv.Itoa(n+1)] = true
	}
	rows := map[string]bool{}
	r.wait(func() bool {
		for row, err := range r.client.Usage(r.t.Context()) {
			require.NoError(r.t, err)
			if row.Session == sid {
				rows[row.Request] = true
			}
		}
		return len(rows) >= len(want)
	}, func() string { return fmt.Sprint("only these requests are booked: ", rows) })
	require.Equal(r.t, want, rows)
}

// ask sends the request to the owner, which may die of it.
func (f *fallen) ask() {
	f.t.Helper()
	_, err := f.node.Run(f.alive(), f.request)
	require.True(f.t, f.died(err), err)
}

// again repeats the request, as a client does that got no answer: it is known.
func (f *fallen) again() {
	f.t.Helper()
	f.run(f.request)
}

// match holds the records from the takeover on against what is expected.
func (f *fallen) match(want, lines []string) {
	f.t.Helper()
	at := len(lines)
	for i, l := range lines {
		if l == "+takeover" {
			at = i + 1
			break
		}
	}
	require.True(f.t, matches(want, lines[at:]), "want\n  %s\nin\n  %s", strings.Join(want, "\n  "), strings.Join(lines, "\n  "))
}

func matches(want, have []string) bool {
	switch {
	case len(want) == 0:
		return len(have) == 0
	case want[0] == "*":
		for i := range len(have) + 1 {
			if matches(want[1:], have[i:]) {
				return true
			}
		}
		return false
	}
	return len(have) > 0 && want[0] == have[0] && matches(want[1:], have[1:])
}

// verified holds the trace of all tasks against the rules.
func (f *fallen) verified() {
	f.t.Helper()
	require.Empty(f.t, trace.Verify(f.records(f.sid), nil), strings.Join(f.lines(f.sid), "\n"))
}

// count holds the ledger's entries of the session, each of which must be the only
// one of its call.
func (f *fallen) count(effects int) {
	f.t.Helper()
	n := 0
	for line, times := range f.ledger() {
		if strings.HasPrefix(line, string(f.sid)+"/") {
			require.Equal(f.t, 1, times, line)
			n++
		}
	}
	require.Equal(f.t, effects, n, "effects")
}

// idle waits until the session would take a new task.
func (f *fallen) idle() {
	f.t.Helper()
	f.wait(func() bool {
		st, err := f.client.Status(f.t.Context(), f.sid)
		return err == nil && st.State == protocol.StateIdle
	}, because("the session is not idle"))
}

func (f *fallen) approve(d protocol.Decision) {
	f.t.Helper()
	require.NoError(f.t, f.client.Approve(f.t.Context(), f.sid, "step-1", d, ""))
}

// decide is approve at the owner, who may die of it.
func (f *fallen) decide(d protocol.Decision) {
	f.t.Helper()
	f.until(f.sid, "+approval_request(step-1)")
	err := f.node.Approve(f.alive(), f.sid, "step-1", d, "")
	require.True(f.t, f.died(err), err)
}

func ask(r *client.RunRequest) { r.Options.Approve = "ask" }

// reply is the rest of a task whose last request answers.
func reply(text string, session int) []string {
	return []string{
		fmt.Sprintf("text[assistant]%q", text), fmt.Sprintf("token_usage(request 15, session %d)", session),
		"request_end(completed)", "+task_end(completed)",
	}
}

func then(lines []string, more ...string) []string {
	return append(slices.Clip(lines), more...)
}
