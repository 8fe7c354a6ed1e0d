package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rookery/client"
	"rookery/internal/bus"
	"rookery/internal/config"
	"rookery/internal/host"
	"rookery/protocol"
)

// A runFlags holds the flags of run as they were given.
type runFlags struct {
	session   string
	last      bool
	workspace string
	here      bool
	json      bool
	noPartial bool
	plain     bool
	quiet     bool
	images    []string
	settings  map[string]*string // by key of the configuration
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] [PROMPT]",
		Short: "Run one task and show it",
		Long: `run gives a prompt to an agent and shows what it does, to the end.

The prompt is the argument, or standard input when that is not a terminal; a
single - forces standard input. The exit status tells how the task ended:
0 completed, 1 failed, 2 usage, 3 turn limit, 4 a call was denied because nobody
could be asked, 5 no broker or orchestrator, 6 model or key missing, 124 timeout,
130 aborted. Ctrl-C aborts the task, a second one leaves at once.`,
		Example: `  rookery run -m demo --approve allow-all "count the words in README.md"
  git diff | rookery run - -q
  rookery run -c "and now the tests"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.run(cmd.Context(), f, given(cmd, f.settings), args)
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.session, "session", "s", "", "go on with session `ID`")
	fs.BoolVarP(&f.last, "continue", "c", false, "go on with the newest session of this workspace")
	fs.StringVarP(&f.workspace, "workspace", "C", "", "`directory` the tools work in (default: the current one, or with a broker a fresh one)")
	fs.BoolVar(&f.here, "here", false, "with a broker: bring a worker for the workspace on this machine")
	fs.BoolVar(&f.json, "json", false, "write one message a line, as JSON; the last is task_end")
	fs.BoolVar(&f.noPartial, "no-partials", false, "leave streamed fragments out (--json, --plain)")
	fs.BoolVar(&f.plain, "plain", false, "write the notation of the scenarios")
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "write only what the assistant says")
	fs.StringArrayVar(&f.images, "image", nil, "send an image `file` with the prompt (repeatable)")
	f.settings = map[string]*string{}
	setting := func(key, short, usage string) {
		f.settings[key] = fs.StringP(flagName(key), short, "", usage)
	}
	setting("model", "m", "`name` of the model; demo needs no key")
	setting("approve", "", "allow-all, deny-all, read-only or ask (default: ask on a terminal, else deny-all)")
	setting("max_turns", "", "most turns of the task, or off")
	setting("timeout", "", "abort the task after this `duration`")
	setting("thinking", "", "none, low, medium, high or xhigh")
	setting("sandbox", "", "native, landlock or none")
	return cmd
}

func flagName(key string) string { return strings.ReplaceAll(key, "_", "-") }

// given returns the settings that flags were given for.
func given(cmd *cobra.Command, settings map[string]*string) map[string]string {
	out := map[string]string{}
	for key, v := range settings {
		if cmd.Flags().Changed(flagName(key)) {
			out[key] = *v
		}
	}
	return out
}

// run is the command from its flags to its exit status.
func (a *app) run(ctx context.Context, f runFlags, settings map[string]string, args []string) error {
	if err := f.check(); err != nil {
		return err
	}
	text, err := a.prompt(args)
	if err != nil {
		return err
	}
	images, err := readImages(f.images)
	if err != nil {
		return err
	}
	if err := checkPrompt(text, images); err != nil {
		return err
	}
	r := &runner{app: a, flags: f, request: client.RunRequest{Prompt: text, Images: images, By: "user"}}
	if err := r.configure(settings); err != nil {
		return err
	}
	return r.do(ctx)
}

func (f runFlags) check() error {
	switch {
	case f.session != "" && f.last:
		return usagef("--session and --continue exclude each other")
	case f.json && f.plain, f.json && f.quiet, f.plain && f.quiet:
		return usagef("--json, --plain and --quiet exclude each other")
	}
	if _, err := protocol.ParseID(f.session); f.session != "" && err != nil {
		return usagef("--session: %v", err)
	}
	return nil
}

// A runner is one run.
type runner struct {
	*app
	flags   runFlags
	cfg     *config.Config
	own     bool   // orchestrator and worker are this process's
	dir     string // the workspace, absolute; empty = a fresh one
	request client.RunRequest
	client  *client.Client
	ask     bool // a person at this terminal decides on calls
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
	if r.own {
		if r.cfg, err = r.load(r.dir, settings); err != nil {
			return err
		}
		if _, err := r.cfg.FindModel(""); err != nil && r.flags.session == "" && !r.flags.last {
			return err
		}
		r.request.Options.Sandbox = r.cfg.Sandbox
	}
	r.request.New.Model = r.cfg.Model
	r.request.New.Workspace = r.dir
	r.request.New.Tools = r.cfg.Agent.Tools.Enabled
	r.taskOptions()
	return nil
}

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
		o.Approve = "deny-all"
		r.notice("no terminal to ask on, so every tool call is denied; --approve allow-all or read-only changes that")
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
	return w.run(&client.WatchOptions{NoPartials: r.flags.noPartial && (r.flags.json || r.flags.plain)})
}

// start makes the task exist.
func (r *runner) start(ctx context.Context) (client.Task, error) {
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
	return r.client.Run(ctx, r.request)
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
	roles := host.Roles{Orchestrator: true, Worker: true, Private: true, Allow: []string{r.dir}, Sandbox: r.cfg.Sandbox}
	if r.flags.here && host.Configured(r.cfg) {
		roles.Orchestrator = false
	}
	s, err := host.Start(ctx, b, r.cfg, roles, r.log(r.cfg))
	if err != nil {
		return err
	}
	r.closers = append(r.closers, s.Stop)
	r.request.New.Worker = s.Worker
	if roles.Orchestrator {
		r.client = r.client.At(s.Node)
	}
	return nil
}

// announce tells what a person needs to come back to the session.
func (r *runner) announce(t client.Task) {
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
		return &quietPrinter{out: r.stdout}
	}
	return r.human(r.cfg)
}

func (a *app) human(cfg *config.Config) *humanPrinter {
	colour := isTerminal(a.out) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	switch cfg.Color {
	case "always":
		colour = true
	case "never":
		colour = false
	}
	return &humanPrinter{out: a.stdout, tell: a.notice, colour: colour}
}

// json reports that stdout is for programs, also when the flags can't be read.
func (a *app) json(args []string) bool {
	return slices.Contains(args, "run") && (slices.Contains(args, "--json") || slices.Contains(args, "--json=true"))
}

// lastLine writes the task_end that a --json run owes when no other was written.
func (a *app) lastLine(f *fault) {
	if a.ended {
		return
	}
	status := f.status
	if status == "" {
		status = protocol.TaskFailed
	}
	m := protocol.New(protocol.TaskEnd{Status: status, Code: f.code, Reason: f.text})
	fmt.Fprintf(a.stdout, "%s\n", m.Encode())
}

// forever is how long a task without --timeout may take.
const forever = time.Duration(math.MaxInt64)
