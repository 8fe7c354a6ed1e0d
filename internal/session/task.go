package session

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"rookery/internal/engine"
	"rookery/internal/resume"
	"rookery/protocol"
)

// ended is an event: an engine's loop is over. The next task's may run already.
type ended struct {
	engine *engine.Engine
	stop   func()
}

// prepare makes sure that somebody holds the workspace, and learns its tools.
func (s *session) prepare(ctx context.Context, o protocol.SessionOptions) error {
	want := s.place
	if o.Worker != "" {
		s.state.Worker = o.Worker
	}
	if o.Workspace != "" && want.Path == "" {
		want.Path = o.Workspace
	}
	h, err := s.h.fleet.hold(ctx, s.id, s.state, want)
	if err != nil {
		return err
	}
	if h.ref != s.place {
		s.place = h.ref
		if err := s.assign(ctx); err != nil {
			return err
		}
	}
	if h.lost != "" {
		s.lost = h.lost
		s.log.WarnContext(ctx, "workspace lost with its worker, a new one was made", "worker", h.lost)
	}
	s.state.Sandbox = h.worker.Sandbox
	all, pooled := s.h.fleet.tools(s.state, h)
	s.tools, s.pooled = s.offered(all), pooled
	return nil
}

// offered are the tools that the configuration lets the session have, with the
// limits that it sets.
func (s *session) offered(all []protocol.Tool) []protocol.Tool {
	cfg := s.h.cfg
	var tools []protocol.Tool
	for _, t := range all {
		if len(cfg.Enabled) > 0 && !slices.Contains(cfg.Enabled, t.Name) {
			continue
		}
		limit := cmp.Or(cfg.Policy(s.state.Pool, t.Name).Timeout, time.Duration(t.TimeoutMS)*time.Millisecond, cfg.ToolTimeout)
		t.TimeoutMS = max(-1, limit.Milliseconds())
		t.MaxOutput = cmp.Or(t.MaxOutput, cfg.MaxOutput)
		tools = append(tools, t)
	}
	return tools
}

// assign stores where the workspace is now.
func (s *session) assign(ctx context.Context) error {
	old, revision, ok, err := s.h.bus.Workspace(ctx, s.id)
	if err != nil {
		return fmt.Errorf("read the workspace of %s: %w", s.id, err)
	}
	s.place.Epoch = 1
	if ok {
		s.place.Epoch = old.Epoch + 1
	}
	if _, err := s.h.bus.PutWorkspace(ctx, s.id, s.place, revision); err != nil {
		return fmt.Errorf("assign the workspace of %s: %w", s.id, err)
	}
	return nil
}

// begin starts the engine on a task.
func (s *session) begin(ctx context.Context, of string, cmd protocol.Command) error {
	cmd.Options.Sandbox = s.state.Sandbox
	if cmd.Options.ApproveTimeoutMS == 0 {
		cmd.Options.ApproveTimeoutMS = max(0, s.h.cfg.ApprovalTimeout.Milliseconds())
	}
	in := engine.Input{TaskID: cmd.ID, By: cmd.By, Options: cmd.Options, Prompt: cleaned(cmd.Prompt)}
	if of == "run" && s.lost != "" {
		in.Prompt = append(in.Prompt, protocol.UserText(protocol.NoteReplaced(s.lost)))
		s.lost = ""
	}
	s.prompt = len(in.Prompt)
	s.abortStored = false
	if s.title == "" {
		s.title, s.untitled = firstLine(in.Prompt), true
	}
	return s.start(ctx, of, resume.Of(s.fold), in)
}

// start runs the engine in its own goroutine.
func (s *session) start(ctx context.Context, of string, from engine.Resume, in engine.Input) error {
	s.hearCalls()
	eng, err := s.newEngine(ctx, in.Options)
	if err != nil {
		return err
	}
	tctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	seq := eng.Run
	if of == "compact" {
		seq = eng.Compact
	}
	s.engine, s.stop = eng, stop
	messages := seq(tctx, from, in)
	s.working.Go(func() {
		for m := range messages {
			if s.tell(tctx, m) != nil {
				break
			}
		}
		_ = s.tell(context.Background(), ended{eng, stop})
	})
	s.announce()
	return nil
}

func (s *session) newEngine(ctx context.Context, o protocol.TaskOptions) (*engine.Engine, error) {
	set := s.h.cfg.Settings
	if set.Thinking == "" {
		set.Thinking = s.model.Thinking
	}
	if set.MaxTokens == 0 {
		set.MaxTokens = s.model.MaxTokens
	}
	// A context is compacted while the model can still read it.
	if w := int64(s.model.ContextWindow); w > 0 && set.MaxContext > 0 {
		set.MaxContext = min(set.MaxContext, w*4/5)
	}
	reply := &reply{session: s, model: s.model.Model}
	return engine.New(engine.Config{
		Model:    reply,
		Executor: executor{s, s.news, 1 + s.requests.attempts},
		Approver: &approver{session: s, reply: reply, options: o},
		Meta:     s.meta(ctx),
		Settings: set,
	})
}

// meta is the session_meta of a context that opens now. A resumed session keeps its
// system prompt; tools are those of today (L153).
func (s *session) meta(ctx context.Context) protocol.SessionMeta {
	specs := make([]protocol.ToolSpec, len(s.tools))
	for i, t := range s.tools {
		specs[i] = t.ToolSpec
	}
	m := protocol.SessionMeta{
		SessionID: string(s.id), Provider: s.model.Provider, ModelID: s.model.ID,
		ModelContextWindow: protocol.ContextWindow(s.model.ContextWindow),
		Tools:              specs, AgentState: s.state.raw(), Workspace: s.place.Path, Source: s.state.Source,
	}
	if old := s.fold.State().Meta; old != nil {
		m.SystemPrompt = old.SystemPrompt
	} else {
		m.SystemPrompt = s.h.cfg.System(s.h.fleet.instructions(ctx, s.id, s.place))
	}
	return m
}

// observe looks at each message before it is placed.
func (s *session) observe(m protocol.Message) {
	s.requests.see(m)
	s.material.see(m)
	switch p := m.Payload.(type) {
	case protocol.RequestBegin:
		s.live.request(s.requests.number)
	case protocol.RequestEnd:
		s.book()
	case protocol.ApprovalDecision:
		delete(s.pending, p.ToolCallID)
	case protocol.ApprovalClosed:
		delete(s.pending, p.ToolCallID)
	case protocol.TaskEnd:
		s.ending = true
	default:
	}
}

// confirmed acts on a message that is stored now.
func (s *session) confirmed(ctx context.Context, m protocol.Message) {
	switch p := m.Payload.(type) {
	case protocol.TaskBegin:
		if p.Of == "compact" {
			s.fireBegun("task:" + p.TaskID)
		}
		s.task = p.TaskID
	case protocol.Text, protocol.ImageURL:
		if s.prompt > 0 {
			if s.prompt--; s.prompt == 0 {
				s.fireBegun("task:" + s.task)
			}
		}
	case protocol.SteeringQueued:
		s.fire("steer:" + p.SteerID)
	case protocol.AbortRequested:
		s.abortStored = true
		s.fire("abort")
	case protocol.ApprovalDecision:
		s.fire("decision:" + p.ToolCallID)
	case protocol.TaskEnd:
		s.taskStored(ctx)
	default:
	}
}

// taskOver notes that an engine has returned.
func (s *session) taskOver(e ended) {
	e.stop()
	if s.engine == nil || s.engine == e.engine {
		s.engine, s.stop = nil, nil
	}
}

// taskStored makes the session idle: whoever still waits is answered, and what came
// while the end was in flight is looked at now.
func (s *session) taskStored(ctx context.Context) {
	s.engine, s.ending, s.prompt = nil, false, 0
	s.hearNoCalls()
	s.tools, s.pooled = nil, nil // the next task learns them anew
	for key := range s.waits {
		if strings.HasPrefix(key, "decision:") {
			s.refuseWaiters(key)
			continue
		}
		s.fire(key)
	}
	clear(s.pending)
	s.live.reset()
	s.beat()
	s.entitle()
	s.enter()
	deferred := s.deferred
	s.deferred = nil
	for _, o := range deferred {
		s.command(ctx, o)
	}
}

// refuseWaiters tells those whose decision came too late for an abort.
func (s *session) refuseWaiters(key string) {
	ws := s.waits[key]
	delete(s.waits, key)
	for _, w := range ws {
		w.respond(refuse(protocol.ReplyNotRunning, "the task ended before the decision counted"))
	}
}

func cleaned(ps protocol.Payloads) protocol.Payloads {
	out := make(protocol.Payloads, len(ps))
	for i, p := range ps {
		if t, ok := p.(protocol.Text); ok {
			t.Text, t.StopReason = protocol.Clean(t.Text), protocol.Completed
			p = t
		}
		if u, ok := p.(protocol.ImageURL); ok {
			u.Role, u.StopReason = protocol.User, protocol.Completed
			p = u
		}
		out[i] = p
	}
	return out
}

// firstLine is the title of a session that has no other: up to 60 characters.
func firstLine(ps protocol.Payloads) string {
	for _, p := range ps {
		if t, ok := p.(protocol.Text); ok {
			line, _, _ := strings.Cut(strings.TrimSpace(t.Text), "\n")
			if utf8.RuneCountInString(line) > 60 {
				line = string([]rune(line)[:59]) + "…"
			}
			if line != "" {
				return line
			}
		}
	}
	return ""
}

// reply decorates the model: a request is sent after everything before it is stored
// (barrier 3), and a reply is read to its outcome even while the engine waits for a
// person.
type reply struct {
	session *session
	model   engine.Model

	current *reading // of the running request; set before its first message
}

// Stream implements engine.Model.
func (r *reply) Stream(ctx context.Context, req engine.Request, emit func(protocol.Payload) error) engine.Outcome {
	if err := r.session.sync(ctx); err != nil {
		if interruptedBy(ctx) {
			return engine.Outcome{Status: protocol.Aborted}
		}
		return engine.Outcome{Status: protocol.Failed, Message: err.Error()}
	}
	rd := newReading()
	r.current = rd
	return rd.run(ctx, r.model, req, emit)
}
