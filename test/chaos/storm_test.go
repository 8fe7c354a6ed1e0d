package chaos_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/client"
	"rookery/internal/crash"
	"rookery/internal/trace"
	"rookery/protocol"
)

const (
	stormSteps    = 30
	stormSessions = 2
	killsARound   = 12
)

// TestStorm strikes at random: it kills, stops and ends processes, kills the broker, or
// everything at once, and cuts links.
// CHAOS_SEED plays a failure again, CHAOS_KILLS sets how many kills there are.
func TestStorm(t *testing.T) {
	t.Parallel()
	seed, kills := number(t, "CHAOS_SEED", 1), number(t, "CHAOS_KILLS", killsARound)
	for ; kills > 0; kills -= killsARound {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { newStorm(t, seed, min(kills, killsARound)).run() })
		seed++
	}
}

func number(t *testing.T, name string, or int64) int64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return or
	}
	n, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err, name)
	return n
}

// A storm is a fleet that is being killed while tasks run on it.
type storm struct {
	*rig
	seed, kills int64
	dice        *rand.Rand
	members     map[string]*member
	server      *proc
	tasks       []*stormTask
	// heads is how far each task was when an owner last fell, and the time before.
	heads [2]map[protocol.ID]int
	done  []string // what was done, for the failure's reader
	dead  int      // workers that were killed
}

// A member is a process that is started again when it died.
type member struct {
	name string
	proc *proc
	wire *wire
}

func (m *member) orchestrates() bool { return strings.HasPrefix(m.name, "o") }

type stormTask struct {
	request client.RunRequest
	calm    bool // it ran before the storm
}

func newStorm(t *testing.T, seed, kills int64) *storm {
	t.Helper()
	s := &storm{rig: bareRig(t), seed: seed, kills: kills, dice: rand.New(rand.NewPCG(uint64(seed), 0)), members: map[string]*member{}}
	t.Logf("seed %d, %d kills: CHAOS_SEED=%d plays this again", seed, kills, seed)
	s.server = s.broker()
	s.connect()
	for _, name := range []string{"o1", "o2", "w1", "w2"} {
		m := &member{name: name, wire: s.wire()}
		s.members[name] = m
		s.launch(m)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("what was done:\n%s", strings.Join(s.done, "\n"))
		}
	})
	return s
}

// launch starts a member and waits until it is there, so that the storm hits a fleet
// and not the starting of one.
func (s *storm) launch(m *member) {
	s.t.Helper()
	env := s.with("NATS_URL", m.wire.url(), crash.Variable, "")
	if m.orchestrates() {
		m.proc = s.start("orchestrator", env, "--node", m.name)
		m.proc.says("orchestrator serves")
		return
	}
	m.proc = s.start("toolworker", env, s.workerArgs(m.name)...)
	m.proc.says("worker starts") // before that a signal ends it, not gracefully
}

func (s *storm) run() {
	s.t.Helper()
	s.begin(true)
	s.verify(s.tasks[0].request.Session) // the reference: nothing was killed yet
	for range stormSessions {
		s.begin(false)
	}
	for range s.kills {
		s.pause(100, 700)
		s.strike()
		s.refill()
	}
	s.calm()
	for _, task := range s.tasks {
		s.check(task)
	}
	s.stop()
}

// begin starts a task.
func (s *storm) begin(calm bool) {
	s.t.Helper()
	task := &stormTask{request: s.request(s.brain.teach(paced(stormSteps))), calm: calm}
	s.tasks = append(s.tasks, task)
	s.wait(func() bool {
		ctx, cancel := context.WithTimeout(s.t.Context(), patience)
		defer cancel()
		_, err := s.client.Run(ctx, task.request) // the same id: no task begins twice
		return err == nil
	}, because("a task is not accepted"))
}

// refill keeps tasks running while the storm lasts.
func (s *storm) refill() {
	s.t.Helper()
	for len(s.progress()) < stormSessions {
		s.begin(false)
	}
}

// progress maps the tasks that run to the requests that they have completed.
func (s *storm) progress() map[protocol.ID]int {
	s.t.Helper()
	heads := map[protocol.ID]int{}
	for _, task := range s.tasks {
		lines := s.lines(task.request.Session)
		if count(lines, "+task_end") == 0 {
			heads[task.request.Session] = count(lines, "request_end(completed)")
		}
	}
	return heads
}

func (s *storm) pause(least, most int) {
	<-time.After(time.Duration(least+s.dice.IntN(most-least)) * time.Millisecond)
}

// strike does one thing that the fleet must survive.
func (s *storm) strike() {
	s.t.Helper()
	names := slices.Sorted(maps.Keys(s.members))
	m := s.members[names[s.dice.IntN(len(names))]]
	kinds := []string{"kill", "kill", "kill", "stop", "cut", "end", "broker", "everything"}
	kind := kinds[s.dice.IntN(len(kinds))]
	if m.orchestrates() || kind == "everything" {
		s.mayFall()
	}
	s.note(kind + " " + m.name)
	switch kind {
	case "broker":
		s.server.kill()
		s.pause(0, 300)
		s.server = s.broker()
	case "everything":
		s.killAll(names)
	case "end":
		m.proc.stop()
		s.launch(m)
	case "kill":
		if !m.orchestrates() {
			s.dead++
		}
		m.proc.kill()
		s.pause(0, 500)
		s.launch(m)
	case "stop":
		m.proc.signal(syscall.SIGSTOP)
		s.pause(200, 1500)
		m.proc.signal(syscall.SIGCONT)
	case "cut":
		m.wire.sever()
		s.pause(50, 1500)
		m.wire.mend()
	}
}

// killAll kills every process, the broker in the middle, and starts all again.
func (s *storm) killAll(names []string) {
	s.t.Helper()
	for _, name := range names[:len(names)/2] {
		s.members[name].proc.kill()
	}
	s.server.kill()
	for _, name := range names[len(names)/2:] {
		s.members[name].proc.kill()
		s.dead++
	}
	s.server = s.broker()
	for _, name := range names {
		s.launch(s.members[name])
	}
}

// mayFall waits until an owner may fall once more: at most two may within one model
// request, since the third ends the task, as it should.
func (s *storm) mayFall() {
	s.t.Helper()
	s.wait(func() bool {
		for sid, n := range s.progress() {
			if before, ran := s.heads[1][sid]; ran && n <= before {
				return false
			}
		}
		return true
	}, because("a task does not go on"))
	s.heads[0], s.heads[1] = s.progress(), s.heads[0]
}

func (s *storm) note(what string) {
	s.done = append(s.done, time.Now().UTC().Format("15:04:05.000")+" "+what)
}

// calm waits until every task has ended.
func (s *storm) calm() {
	s.t.Helper()
	s.note("calm")
	for _, task := range s.tasks {
		s.until(task.request.Session, "+task_end")
	}
}

// check holds one task against what is promised.
func (s *storm) check(task *stormTask) {
	s.t.Helper()
	sid := task.request.Session
	lines := s.verify(sid)
	whole := strings.Join(lines, "\n")
	require.Contains(s.t, lines, "+task_end(completed)", whole)
	done := s.outputs(sid)
	var missing []string
	for n := 1; n <= stormSteps; n++ {
		if !done[n] {
			missing = append(missing, strconv.Itoa(n))
		}
	}
	answer := fmt.Sprintf("all %d done", stormSteps)
	if len(missing) > 0 {
		require.NotZero(s.t, s.dead, "no worker was killed:\n%s", whole)
		answer = "done but for " + strings.Join(missing, ", ")
	}
	require.Equal(s.t, len(missing), strings.Count(whole, protocol.NoteUnknown), "a call got another fate:\n%s", whole)
	require.Contains(s.t, lines, fmt.Sprintf("text[assistant]%q", answer), whole)
	s.effects(sid, done, whole)
	s.requests(task, lines)
	s.same(task, missing)
	s.booked(sid, lines)
	s.wait(func() bool {
		st, err := s.client.Status(s.t.Context(), sid)
		return err == nil && st.State == protocol.StateIdle
	}, because("the session is stuck"))
}

// outputs maps each step to whether an output calls it done.
func (s *storm) outputs(sid protocol.ID) map[int]bool {
	s.t.Helper()
	steps := map[int]bool{}
	for _, rec := range s.records(sid) {
		out, ok := rec.Message.Payload.(protocol.ToolCallOutput)
		if !ok {
			continue
		}
		for n := 1; n <= stormSteps; n++ {
			if done(n, out.Output) {
				require.Equal(s.t, protocol.Completed, out.StopReason)
				steps[n] = true
			}
		}
	}
	return steps
}

// effects holds the ledger: once where an output says so, else at most once.
func (s *storm) effects(sid protocol.ID, done map[int]bool, whole string) {
	s.t.Helper()
	steps := map[string]int{}
	for line, times := range s.ledger() {
		call, name, _ := strings.Cut(line, " ")
		if strings.HasPrefix(call, string(sid)+"/") {
			require.Equal(s.t, 1, times, "%s\n%s", line, whole)
			steps[name]++
		}
	}
	for n := 1; n <= stormSteps; n++ {
		times := steps[fmt.Sprintf("step-%d", n)]
		if done[n] {
			require.Equal(s.t, 1, times, "step %d\n%s", n, whole)
		}
		require.LessOrEqual(s.t, times, 1, "step %d\n%s", n, whole)
	}
}

// requests explains what the endpoint was asked: each request has its record, and a
// record without one was written by an owner that fell right behind it.
func (s *storm) requests(task *stormTask, lines []string) {
	s.t.Helper()
	begun, asked := count(lines, "request_begin"), s.brain.requests(task.request.Prompt)
	require.LessOrEqual(s.t, asked, begun, "requests without a record")
	require.GreaterOrEqual(s.t, asked, begun-count(lines, "+takeover"), "records without a request")
	require.Equal(s.t, begun, count(lines, "request_end"), "open requests")
}

// same holds the folded history against that of the task that nothing befell, where
// no request was repeated and no call was cut.
func (s *storm) same(task *stormTask, missing []string) {
	s.t.Helper()
	history := s.history(task.request)
	if len(missing) > 0 || strings.Contains(strings.Join(history, "\n"), "[turn_retried]") {
		return
	}
	require.Equal(s.t, s.history(s.tasks[0].request), history)
}

// history is what the next request would say, in the notation, without the prompt.
func (s *storm) history(req client.RunRequest) []string {
	s.t.Helper()
	f := trace.NewFold()
	for _, rec := range s.records(req.Session) {
		f.Add(rec.Context, rec.Message)
	}
	st := f.State()
	var out []string
	for _, m := range append(slices.Clone(st.History), st.Pending...) {
		out = append(out, strings.ReplaceAll(m.String(), req.Prompt, "the prompt"))
	}
	require.NotEmpty(s.t, out)
	return out
}

// stop ends everything gracefully: nothing hangs, nothing is left.
func (s *storm) stop() {
	s.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(s.members)) {
		s.members[name].proc.stop()
	}
}
