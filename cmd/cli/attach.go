package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"rookery/client"
	"rookery/protocol"
)

func (a *app) attachCommand() *cobra.Command {
	var f viewFlags
	cmd := &cobra.Command{
		Use:   "attach ID",
		Short: "Watch a session, and steer, approve or abort its task",
		Long: `attach shows a session from its beginning and goes on with what happens.

What is typed is sent to the running task. /approve CALL and /deny CALL REASON
decide on a call, /abort interrupts the task, /quit leaves it alone. Without a
terminal attach only shows, until the task ends, and exits with its status.`,
		Args: args(1, 1, "the ID of a session"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.attach(cmd.Context(), args[0], f)
		},
	}
	f.register(cmd)
	return cmd
}

// A viewFlags says how a session is shown.
type viewFlags struct {
	json, plain, noPartials bool
	from                    string
}

func (f *viewFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.BoolVar(&f.json, "json", false, "write one message a line, as JSON")
	fs.BoolVar(&f.plain, "plain", false, "write the notation of the scenarios")
	fs.BoolVar(&f.noPartials, "no-partials", false, "leave streamed fragments out (--json, --plain)")
	fs.StringVar(&f.from, "from", "", "begin behind this `cursor`")
}

func (f viewFlags) open(l *link) (printer, *client.WatchOptions, error) {
	o := &client.WatchOptions{NoPartials: f.noPartials && (f.json || f.plain)}
	var err error
	if o.From, err = protocol.ParseCursor(f.from); err != nil {
		return nil, nil, usagef("--from: %v", err)
	}
	switch {
	case f.json && f.plain:
		return nil, nil, usagef("--json and --plain exclude each other")
	case f.json:
		return jsonPrinter{l.app.stdout}, o, nil
	case f.plain:
		return plainPrinter{l.app.stdout}, o, nil
	}
	p := l.app.human(l.cfg)
	p.asked = true
	return p, o, nil
}

// An attachment is a watch whose person may act.
type attachment struct {
	*link
	session protocol.ID
	print   printer
	lines   *terminal // nil: a pure viewer
	live    bool      // what was stored before is shown
	running bool      // a task, as far as was shown
	pending []protocol.ApprovalRequest
	end     *protocol.TaskEnd
	results chan func() // of commands, for the loop to run; capacity 8, commands wait
}

func (a *app) attach(ctx context.Context, id string, f viewFlags) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	l, err := a.dial(ctx)
	if err != nil {
		return err
	}
	sid, err := l.session(ctx, id)
	if err != nil {
		return err
	}
	p, o, err := f.open(l)
	if err != nil {
		return err
	}
	t := &attachment{link: l, session: sid, print: p, results: make(chan func(), 8)}
	if isTerminal(a.stdin) {
		if t.lines, err = openTerminal(); err != nil {
			a.notice("only watching: %v", err)
		} else {
			defer t.lines.close()
		}
	}
	return t.run(ctx, o)
}

func (t *attachment) run(ctx context.Context, o *client.WatchOptions) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := pump(ctx, &wg, t.Watch(ctx, t.session, o))
	for {
		select {
		case <-ctx.Done():
			return nil // the task goes on
		case e, ok := <-events:
			switch {
			case ctx.Err() != nil:
				return nil
			case !ok:
				return fmt.Errorf("watch of session %s ended", t.session)
			case e.err != nil:
				return fmt.Errorf("watch session %s: %w", t.session, e.err)
			}
			if t.event(e.event) {
				return nil
			}
			if e.event.Kind == client.CaughtUp && t.running {
				if err := t.abandoned(ctx); err != nil {
					return err
				}
			}
		case line := <-t.lines.read():
			if t.typed(ctx, &wg, line) {
				return nil
			}
		case f := <-t.results:
			f()
		}
	}
}

// event shows one; done reports that a pure viewer has seen the end.
func (t *attachment) event(e client.Event) (done bool) {
	t.print.show(e)
	switch p := e.Message.Payload.(type) {
	case protocol.TaskBegin:
		t.running = true
	case protocol.ApprovalRequest:
		t.pending = append(t.pending, p)
		if t.live {
			t.asked(p)
		}
	case protocol.ApprovalDecision:
		t.decided(p.ToolCallID)
	case protocol.ApprovalClosed:
		t.decided(p.ToolCallID)
	case protocol.TaskEnd:
		t.running, t.pending, t.end = false, nil, &p
	default:
	}
	if e.Kind == client.CaughtUp {
		t.live = true
		for _, p := range t.pending {
			t.asked(p)
		}
	}
	if t.lines != nil || !t.live || t.running {
		return false
	}
	if t.end != nil {
		t.app.status = protocol.ExitCode(t.end.Status, t.end.Code)
	}
	return true
}

// abandoned tells of a running task that nobody works on; a pure viewer does not
// wait for its end.
func (t *attachment) abandoned(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	_, err := t.Status(ctx, t.session)
	if !isNoOrchestrator(err) {
		return nil // who can't answer now may be about to
	}
	text := fmt.Sprintf("session %s: its task is unfinished and nobody works on it; rookery run -s %s goes on, rookery abort %s ends it", t.session, t.session, t.session)
	if t.lines == nil {
		return &fault{code: protocol.CodeBroker, text: text, err: err}
	}
	t.app.notice("%s", text)
	return nil
}

func (t *attachment) asked(p protocol.ApprovalRequest) {
	if t.lines == nil {
		t.app.notice("call %s waits for a decision: rookery approve %s %s", p.ToolCallID, t.session, p.ToolCallID)
		return
	}
	say(t.app.stderr, "%s  /approve %s, or /deny %s REASON\n", question(p), visibleLine(p.ToolCallID), visibleLine(p.ToolCallID))
}

func (t *attachment) decided(call string) {
	for i, p := range t.pending {
		if p.ToolCallID == call {
			t.pending = append(t.pending[:i], t.pending[i+1:]...)
			return
		}
	}
}

// typed acts on a line; done reports /quit.
func (t *attachment) typed(ctx context.Context, wg *sync.WaitGroup, line string) (done bool) {
	line = strings.TrimSpace(strings.ToValidUTF8(line, "\ufffd"))
	word, rest, _ := strings.Cut(line, " ")
	rest = strings.TrimSpace(rest)
	switch {
	case line == "":
	case word == "/quit":
		return true
	case word == "/abort":
		t.do(ctx, wg, func(ctx context.Context, c *client.Client) error {
			_, err := c.Abort(ctx, t.session, "user")
			return err
		})
	case word == "/approve" || word == "/deny":
		call, reason, _ := strings.Cut(rest, " ")
		if call == "" && len(t.pending) == 1 {
			call = t.pending[0].ToolCallID
		}
		d := protocol.Allow
		if word == "/deny" {
			d = protocol.Deny
		}
		t.do(ctx, wg, func(ctx context.Context, c *client.Client) error {
			return c.Approve(ctx, t.session, call, d, strings.TrimSpace(reason))
		})
	case strings.HasPrefix(word, "/"):
		t.app.notice("%s is none of /approve CALL, /deny CALL REASON, /abort, /quit", word)
	default:
		t.do(ctx, wg, func(ctx context.Context, c *client.Client) error { return c.Steer(ctx, t.session, line) })
	}
	return false
}

// do runs a command in the background; its error is told by the loop.
func (t *attachment) do(ctx context.Context, wg *sync.WaitGroup, f func(context.Context, *client.Client) error) {
	c := t.Client
	wg.Go(func() {
		cctx, cancel := context.WithTimeout(ctx, commandTimeout)
		defer cancel()
		if err := f(cctx, c); err != nil {
			select {
			case t.results <- func() { t.app.notice("%v", err) }:
			case <-ctx.Done():
			}
		}
	})
}

func (a *app) logsCommand() *cobra.Command {
	var f viewFlags
	follow := false
	cmd := &cobra.Command{
		Use:   "logs ID",
		Short: "Show what a session said",
		Args:  args(1, 1, "the ID of a session"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.logs(cmd.Context(), args[0], f, follow)
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what happens")
	return cmd
}

func (a *app) logs(ctx context.Context, id string, f viewFlags, follow bool) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	l, err := a.dial(ctx)
	if err != nil {
		return err
	}
	sid, err := l.session(ctx, id)
	if err != nil {
		return err
	}
	p, o, err := f.open(l)
	if err != nil {
		return err
	}
	o.NoFollow = !follow
	at := o.From
	for e, err := range l.Watch(ctx, sid, o) {
		switch {
		case ctx.Err() != nil && follow:
			err = nil
		case err == nil:
			at = e.Cursor
			p.show(e)
			continue
		}
		if err != nil {
			return fmt.Errorf("show session %s: %w", sid, err)
		}
	}
	a.notice("what comes next: rookery logs %s --from %s", sid, at)
	return nil
}
