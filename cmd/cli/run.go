package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"rookery/client"
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
	pool      string
	labels    map[string]string
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
	fs.StringVar(&f.pool, "pool", "", "with a broker: `name` of the pool of workers that a new session is given to")
	fs.StringToStringVar(&f.labels, "label", nil, "with a broker: `key=value` that the worker of a new session must have (repeatable)")
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
	say(a.stdout, "%s\n", m.Encode())
}
