package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"rookery/client"
	"rookery/internal/bus"
	"rookery/internal/config"
	"rookery/internal/host"
	"rookery/protocol"
)

// leaveGrace is how long calls may outlive a run that is left before its end.
const leaveGrace = 2 * time.Second

// A runner is one run.
type runner struct {
	*app
	flags   runFlags
	cfg     *config.Config
	own     bool   // the worker is this process's, and the orchestrator unless remote
	dir     string // the workspace, absolute; empty = a fresh one
	request client.RunRequest
	client  *client.Client
	box     *host.Sandbox
	node    protocol.ID // this process's orchestrator, if it has one
	ask     bool        // a person at this terminal decides on calls
	nobody  bool        // nobody can be asked, and no policy was chosen
}

// configure reads the configuration and everything that can be wrong without
// asking anybody.
func (r *runner) configure(settings map[string]string) error {
	base, err := r.load("", settings)
	if err != nil {
		return err
	}
	r.cfg = base
	r.own = r.flags.here || !host.Configured(base)
	if err := r.findDir(); err != nil {
		return err
	}
	if r.own && (r.flags.pool != "" || len(r.flags.labels) > 0) {
		return usagef("--pool and --label choose among a broker's workers; this run brings its own")
	}
	if _, named := settings["sandbox"]; named && !r.own {
		return usagef("--sandbox is what the worker was started with, where a broker is configured; --here brings a worker of your own")
	}
	if r.own {
		if r.cfg, err = r.load(r.dir, settings); err != nil {
			return err
		}
		if _, err := r.cfg.FindModel(""); err != nil && !r.remote() && r.flags.session == "" && !r.flags.last {
			return err
		}
		r.request.Options.Sandbox = r.cfg.Sandbox
		r.cfg.Worker.Grace = min(r.cfg.Worker.Grace, leaveGrace)
	}
	r.request.New.Model = r.cfg.Model
	r.request.New.Workspace = r.dir
	r.request.New.Pool, r.request.New.Labels = r.flags.pool, r.flags.labels
	r.request.New.Tools = r.cfg.Agent.Tools.Enabled
	r.taskOptions()
	return nil
}

// remote reports that the orchestrator is one behind a configured broker.
func (r *runner) remote() bool { return host.Configured(r.cfg) }

func (r *runner) findDir() error {
	dir := r.flags.workspace
	switch {
	case dir == "" && !r.own, dir == "" && r.flags.session != "":
		return nil
	case !r.own && !filepath.IsAbs(dir):
		return usagef("workspace %s: with a broker, -C names a directory of a worker's host: give an absolute path, or add --here", dir)
	case !r.own:
		r.dir = dir
		return nil
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return usagef("workspace %s: %v", dir, err)
	}
	info, err := os.Stat(abs)
	switch {
	case err != nil:
		return usagef("workspace %s: %v; make it first", abs, errors.Unwrap(err))
	case !info.IsDir():
		return usagef("workspace %s: not a directory", abs)
	}
	r.dir = abs
	return nil
}

func (r *runner) taskOptions() {
	o := &r.request.Options
	chosen := func(key string) bool { return r.cfg.Origin(key).Layer != config.LayerDefault }
	if chosen("max_turns") {
		o.MaxTurns = r.cfg.MaxTurns
	}
	if chosen("thinking") {
		o.Thinking = r.cfg.Thinking
	}
	if d := r.cfg.Agent.Tools.ApprovalTimeout; d > 0 {
		o.ApproveTimeoutMS = d.Milliseconds()
	}
	terminal := isTerminal(r.stdin) && isTerminal(r.out) && !r.flags.json && !r.flags.plain
	switch o.Approve = r.cfg.Approve; {
	case o.Approve != "":
	case terminal:
		o.Approve = "ask"
	default:
		o.Approve, r.nobody = "deny-all", true
	}
	r.ask = o.Approve == "ask" && terminal
}

// do joins, starts what is needed, and works the task to its end.
func (r *runner) do(ctx context.Context) error {
	c := newControl(ctx, r.cfg.Timeout)
	defer c.stop()
	task, err := r.start(c.ctx)
	if err != nil {
		return c.cause(err)
	}
	r.announce(task)
	w := &taskWatch{app: r.app, client: r.client, task: task, control: c, print: r.printer()}
	if r.ask {
		lines, err := openTerminal()
		if err != nil {
			r.notice("calls can't be asked about here: %v; use rookery attach %s", err, task.Session)
		} else {
			w.lines = lines
		}
	}
	err = w.run(&client.WatchOptions{NoPartials: r.flags.noPartial && (r.flags.json || r.flags.plain)})
	r.background(ctx, task.Session)
	return err
}

// background tells what the session's tools left running.
func (r *runner) background(ctx context.Context, sid protocol.ID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	st, err := r.client.Status(ctx, sid)
	if err != nil {
		return
	}
	fate := "it ends with its session"
	if r.own {
		fate = "it ends with this run"
	}
	for _, b := range st.Background {
		r.notice("still running in the background, %s: %s", fate, visibleLine(backgroundLine(b)))
	}
}

// start makes the task exist.
func (r *runner) start(ctx context.Context) (client.Task, error) {
	if r.own { // its self-test takes as long as all the rest
		var err error
		if r.box, err = host.NewSandbox(ctx, r.cfg.Sandbox); err != nil {
			return client.Task{}, err
		}
		r.closers = append(r.closers, func() { _ = r.box.Close() })
	}
	b, err := r.join(ctx, r.cfg)
	if err != nil {
		return client.Task{}, err
	}
	r.client = client.New(b)
	if err := r.findSession(ctx); err != nil {
		return client.Task{}, err
	}
	if r.own {
		if err := r.startRoles(ctx, b); err != nil {
			return client.Task{}, err
		}
	}
	t, err := r.client.Run(ctx, r.request)
	if refused := (*client.RefusedError)(nil); errors.As(err, &refused) && refused.Reply.Code == protocol.ReplyTaskInProgress {
		if err := r.finishFirst(ctx, err); err != nil {
			return t, err
		}
		return r.client.Run(ctx, r.request)
	}
	return t, err
}

// finishFirst works an unfinished task to its end that this process has just taken
// over, because who ran it is gone. The task of somebody who lives is a refusal.
func (r *runner) finishFirst(ctx context.Context, refusal error) error {
	st, err := r.client.Status(ctx, r.request.Session)
	if err != nil || st.Owner == "" || st.Owner != r.node {
		return refusal
	}
	from, err := r.client.End(ctx, r.request.Session)
	if err != nil {
		return err
	}
	r.notice("session %s has an unfinished task, which comes first", r.request.Session)
	p := r.printer()
	for e, err := range r.client.Watch(ctx, r.request.Session, &client.WatchOptions{From: from, NoPartials: r.flags.noPartial}) {
		if err != nil {
			return err
		}
		p.show(e)
		if _, ended := e.Message.Payload.(protocol.TaskEnd); ended {
			return nil
		}
	}
	return refusal
}

// findSession resolves --session and --continue.
func (r *runner) findSession(ctx context.Context) error {
	switch {
	case r.flags.session != "":
		r.request.Session = protocol.ID(r.flags.session)
		if _, err := r.client.End(ctx, r.request.Session); err != nil {
			return err
		}
	case r.flags.last:
		e, err := newest(ctx, r.client, r.dir)
		if err != nil {
			return err
		}
		r.request.Session = e.Session
	default:
		return nil
	}
	return r.resume(ctx)
}

// resume takes what a session has over, unless flags say otherwise.
func (r *runner) resume(ctx context.Context) error {
	e, err := r.client.Entry(ctx, r.request.Session)
	switch {
	case errors.Is(err, client.ErrNoSession): // it has a trace, and no line in the directory yet
	case err != nil:
		return err
	}
	if r.dir == "" && r.own {
		r.dir = e.Workspace.Path
	}
	if r.own && r.dir == "" {
		return usagef("session %s has no workspace: it was imported, or was never given one; name one with -C", r.request.Session)
	}
	if r.own && !isDir(r.dir) {
		return usagef("workspace %s of session %s is not here; name one with -C", r.dir, r.request.Session)
	}
	r.request.New.Workspace = r.dir
	return nil
}

// newest is the session of a workspace that changed last.
func newest(ctx context.Context, c *client.Client, dir string) (protocol.Entry, error) {
	found := protocol.Entry{}
	for e, err := range c.List(ctx) {
		if err != nil {
			return found, err
		}
		if (dir == "" || e.Workspace.Path == dir) && e.At >= found.At {
			found = e
		}
	}
	if found.Session == "" {
		return found, usagef("no session of workspace %s to go on with; run without --continue, or name one with --session", dir)
	}
	return found, nil
}

// startRoles makes this process the orchestrator and the worker of the session.
func (r *runner) startRoles(ctx context.Context, b *bus.Bus) error {
	roles := host.Roles{Orchestrator: true, Worker: true, Private: true, Allow: []string{r.dir}, Sandbox: r.box}
	roles.Orchestrator = !r.remote()
	s, err := host.Start(ctx, b, r.cfg, roles, r.log(r.cfg))
	if err != nil {
		return err
	}
	r.closers = append(r.closers, s.Stop)
	r.request.New.Worker, r.node = s.Worker, s.Node
	if roles.Orchestrator {
		r.client = r.client.At(s.Node)
	}
	return nil
}

// announce tells what a person needs to come back to the session.
func (r *runner) announce(t client.Task) {
	if r.nobody {
		r.notice("no terminal to ask on, so every tool call is denied; --approve allow-all or read-only changes that")
	}
	if r.flags.json || r.flags.plain || r.flags.quiet {
		return
	}
	text := "session " + string(t.Session)
	if r.own {
		text += ", workspace " + r.dir + ", sandbox " + r.cfg.Sandbox
		if r.cfg.Sandbox == "none" {
			text += ": commands run UNCONFINED"
		}
	}
	r.notice("%s", text)
	if r.request.Options.Approve == "ask" && !r.ask {
		r.notice("calls wait for rookery approve %s CALL, or rookery attach %s", t.Session, t.Session)
	}
}

func (r *runner) printer() printer {
	switch {
	case r.flags.json:
		return jsonPrinter{r.stdout}
	case r.flags.plain:
		return plainPrinter{r.stdout}
	case r.flags.quiet:
		return &quietPrinter{out: r.stdout, tell: r.notice}
	}
	p := r.human(r.cfg)
	p.sandbox = !r.own
	return p
}
