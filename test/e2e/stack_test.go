package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"rookery/client"
	"rookery/internal/bus"
	"rookery/internal/engine/enginetest"
	"rookery/internal/llm/llmtest"
	"rookery/internal/trace"
	"rookery/protocol"
)

// longest is how long, in fake time, a script waits for what does not come.
const longest = 3 * time.Hour

// A stack plays a scenario as a client of a stage. The script's goroutine and the
// watch, which does the hooks' actions, share it.
type stack struct {
	*stage
	bus      *bus.Bus
	client   *client.Client
	ctx      context.Context //nolint:containedctx // as long as the scenario
	watching sync.WaitGroup

	mu      sync.Mutex
	output  []protocol.Message
	hooks   []*stackHook
	watched bool
	tasks   map[string]bool // accepted and not ended
	ended   map[string]bool
	changed chan struct{} // closed and replaced at every end of a task
	dropped bool          // a task was left without an end
}

type stackHook struct {
	*enginetest.Hook
	left int
}

// playStack plays a scenario at full stack in fake time. The endpoint refuses what a
// strict provider would; the records have to pass trace.Verify and what the viewer
// saw the discipline of fragments.
func playStack(t *testing.T, s *enginetest.Scenario) *enginetest.Result {
	t.Helper()
	return playStackWith(t, s, nil)
}

// playStackWith is playStack with an endpoint that picks its replies by the request.
func playStackWith(t *testing.T, s *enginetest.Scenario, pick func(llmtest.Request) int) *enginetest.Result {
	t.Helper()
	var result *enginetest.Result
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		p := &stack{
			stage: newStage(t, s, pick), ctx: ctx, tasks: map[string]bool{}, ended: map[string]bool{}, changed: make(chan struct{}),
		}
		defer p.stage.close()
		defer p.watching.Wait()
		defer cancel()
		p.bus = p.broker.Connect(t, bus.Options{})
		p.client = client.New(p.bus)
		p.play()
		result = p.result()
		if t.Failed() || len(p.endpoint.Faults()) > 0 {
			t.Logf("the viewer saw:\n%s", strings.Join(lines(result.Output), "\n"))
			for i := range result.Inputs {
				t.Logf("request %d has the history\n%s\nand the input\n%s", i+1,
					strings.Join(lines(result.Histories[i]), "\n"), strings.Join(lines(result.Inputs[i]), "\n"))
			}
		}
	})
	return result
}

func (p *stack) play() {
	started := false
	for _, st := range p.s.Script {
		switch st.Verb {
		case enginetest.VerbConfig, enginetest.VerbModel, enginetest.VerbTool, enginetest.VerbAt:
		default:
			if !started {
				p.start()
				started = true
			}
		}
		p.step(st)
		time.Sleep(settling)
	}
	if !p.idle() {
		p.dropped = true
	}
	synctest.Wait()
}

func (p *stack) fault(line int, format string, args ...any) {
	p.t.Errorf("%s:%d: %s", p.s.File, line, fmt.Sprintf(format, args...))
}

// step does one statement of the script.
func (p *stack) step(st enginetest.Statement) {
	switch st.Verb {
	case enginetest.VerbModel:
	case enginetest.VerbTool:
		p.tools.set(*st.Tool)
	case enginetest.VerbConfig:
		p.configure(st)
	case enginetest.VerbAt:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.hooks = append(p.hooks, &stackHook{st.At, st.At.Nth})
	case enginetest.VerbWait:
		time.Sleep(st.For)
	case enginetest.VerbWaitIdle:
		if !p.idle() {
			p.fault(st.Line, "the session does not become idle")
		}
	case enginetest.VerbExpect:
		if got := p.compactability(); got != st.Text {
			p.fault(st.Line, "compactability is %s, not %s", got, st.Text)
		}
	default:
		accepted := p.act(st)
		if accepted && (st.Verb == enginetest.VerbRun || st.Verb == enginetest.VerbCompact) && !p.idle() {
			p.fault(st.Line, "%s does not end", st.Verb)
		}
	}
}

// act does a client's action, checks its reply and reports whether it was accepted.
func (p *stack) act(st enginetest.Statement) bool {
	reply, err := p.send(st)
	var refused *client.RefusedError
	switch {
	case errors.Is(err, client.ErrNoSession):
		reply = nobody(st.Verb)
	case errors.As(err, &refused):
		reply = refused.Reply
	case err != nil:
		p.fault(st.Line, "%s: %v", st.Verb, err)
		return false
	}
	if st.Want == nil && !reply.Code.Accepted() {
		p.t.Logf("%s:%d: %s is refused: %s %s", p.s.File, st.Line, st.Verb, reply.Code, reply.Reason)
	}
	if st.Want != nil && !st.Want.Match(reply.Code, reply.Reason) {
		p.fault(st.Line, "%s: the reply is %s %q, wanted %s %s", st.Verb, reply.Code, reply.Reason, st.Want.Word, st.Want.Reason)
	}
	return reply.Code.Accepted()
}

// nobody is what the scripts call a session that does not exist yet: an idle one.
func nobody(verb enginetest.Verb) protocol.Reply {
	switch verb {
	case enginetest.VerbAbort:
		return protocol.Reply{Code: protocol.ReplyIdle}
	case enginetest.VerbCompact:
		return protocol.Reply{Code: protocol.ReplyNothing, Reason: "empty"}
	case enginetest.VerbApprove:
		return protocol.Reply{Code: protocol.ReplyUnknownCall}
	default:
		return protocol.Reply{Code: protocol.ReplyNotRunning}
	}
}

func (p *stack) send(st enginetest.Statement) (protocol.Reply, error) {
	ctx, cancel := context.WithTimeout(p.ctx, 5*time.Minute)
	defer cancel()
	reply := protocol.Reply{Code: protocol.ReplyAccepted}
	var err error
	switch st.Verb {
	case enginetest.VerbRun, enginetest.VerbStart:
		err = p.run(ctx, st)
	case enginetest.VerbCompact:
		var t client.Task
		if t, err = p.client.Compact(ctx, stackSession); err == nil {
			p.began(t.ID)
		}
	case enginetest.VerbSteer:
		err = p.client.Steer(ctx, stackSession, st.Text)
	case enginetest.VerbAbort:
		var running bool
		reply.Code = protocol.ReplyIdle
		if running, err = p.client.Abort(ctx, stackSession, "user"); running {
			reply.Code = protocol.ReplyAborting
		}
	case enginetest.VerbApprove:
		err = p.client.Approve(ctx, stackSession, st.Call, st.Decision, "")
	case enginetest.VerbRelease:
		p.gates.Release(st.Gate)
	case enginetest.VerbResume, enginetest.VerbKill:
		p.replace(ctx, p.bus, st.Verb == enginetest.VerbKill)
	case enginetest.VerbWait: // behind at: a slow viewer
		time.Sleep(st.For)
	default:
		err = fmt.Errorf("%s: %w", st.Verb, errNoSuchAction)
	}
	return reply, err
}

func (p *stack) run(ctx context.Context, st enginetest.Statement) error {
	r := client.RunRequest{Session: stackSession, Prompt: st.Text, ID: protocol.Token(8)}
	p.stage.mu.Lock()
	r.Options = protocol.TaskOptions{Approve: p.cfg.Approve, Thinking: st.Thinking}
	p.stage.mu.Unlock()
	if _, err := p.client.Run(ctx, r); err != nil {
		return err
	}
	p.began(r.ID)
	return nil
}

// began notes an accepted task, and starts the watch with the first one.
func (p *stack) began(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended[id] {
		p.tasks[id] = true
	}
	if !p.watched {
		p.watched = true
		p.watching.Go(p.watch)
	}
}

// watch is the viewer: it keeps what it sees and does what hooks say.
func (p *stack) watch() {
	for e, err := range p.client.Watch(p.ctx, stackSession, nil) {
		if err != nil {
			if p.ctx.Err() == nil {
				p.t.Errorf("%s: watch: %v", p.s.File, err)
			}
			return
		}
		if e.Kind == client.Message {
			for _, h := range p.see(e.Message) {
				p.act(h.Do)
			}
		}
	}
}

func (p *stack) see(m protocol.Message) []*stackHook {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.output = append(p.output, m)
	if end, ok := m.Payload.(protocol.TaskEnd); ok {
		p.ended[end.TaskID] = true
		delete(p.tasks, end.TaskID)
		close(p.changed)
		p.changed = make(chan struct{})
	}
	var due []*stackHook
	line := protocol.Notation(m.Payload, true)
	for _, h := range p.hooks {
		if h.left > 0 && strings.HasPrefix(line, h.Message) {
			if h.left--; h.left == 0 {
				due = append(due, h)
			}
		}
	}
	return due
}

func lines(ms []protocol.Message) []string {
	out := make([]string, len(ms))
	for i, m := range ms {
		out[i] = m.String()
	}
	return out
}

// idle waits until every accepted task has ended.
func (p *stack) idle() bool {
	timer := time.NewTimer(longest)
	defer timer.Stop()
	for {
		p.mu.Lock()
		busy, changed := len(p.tasks) > 0, p.changed
		p.mu.Unlock()
		if !busy {
			return true
		}
		select {
		case <-changed:
		case <-timer.C:
			return false
		}
	}
}

func (p *stack) compactability() string {
	st, err := p.client.Status(p.ctx, stackSession)
	switch {
	case errors.Is(err, client.ErrNoSession):
		p.stage.mu.Lock()
		defer p.stage.mu.Unlock()
		if p.cfg.Settings.NoCompaction {
			return "unsupported"
		}
		return "empty"
	case err != nil:
		p.t.Errorf("%s: status: %v", p.s.File, err)
	}
	return st.Compactable
}

func (p *stack) result() *enginetest.Result {
	res := &enginetest.Result{Traces: map[int][]protocol.Message{}, Runs: p.tools.ran(), Compactability: p.compactability()}
	p.mu.Lock()
	res.Output = p.output
	p.mu.Unlock()
	var records []trace.Record
	for r, err := range p.client.Records(p.ctx, stackSession) {
		if err != nil {
			if !errors.Is(err, client.ErrNoSession) {
				p.t.Errorf("%s: records: %v", p.s.File, err)
			}
			break
		}
		if r.Own == nil {
			records = append(records, trace.Record{Context: r.Context, Private: r.Private, Message: r.Message})
			res.Traces[r.Context] = append(res.Traces[r.Context], r.Message)
		}
	}
	for _, req := range p.model.asked() {
		res.Inputs = append(res.Inputs, req.Input)
		res.Histories = append(res.Histories, req.History)
	}
	for _, err := range enginetest.CheckFragments(res.Output) {
		p.t.Errorf("%s: %v", p.s.File, err)
	}
	if p.dropped {
		return res
	}
	for _, f := range trace.Verify(records, nil) {
		p.t.Errorf("%s: trace: %s", p.s.File, f)
	}
	return res
}
