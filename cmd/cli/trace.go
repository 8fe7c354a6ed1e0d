package main

import (
	"context"
	"fmt"
	"iter"

	"github.com/spf13/cobra"

	"rookery/client"
	"rookery/internal/trace"
	"rookery/protocol"
)

func (a *app) exportCommand() *cobra.Command {
	dir, strict := ".", false
	cmd := &cobra.Command{
		Use: "export ID", Short: "Write a session's trace as JSONL files", Args: args(1, 1, "the ID of a session"),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := a.dial(cmd.Context())
			if err != nil {
				return err
			}
			sid, err := l.session(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if !isDir(dir) {
				return usagef("--output %s: no such directory; make it first", dir)
			}
			files, err := trace.Export(dir, string(sid), records(l.Records(cmd.Context(), sid)), &trace.ExportOptions{Strict: strict})
			if err != nil {
				return fmt.Errorf("export session %s: %w", sid, err)
			}
			for _, f := range files {
				say(a.stdout, "%s\n", f)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&dir, "output", "o", dir, "`directory` to write to")
	cmd.Flags().BoolVar(&strict, "strict", false, "leave rookery's own events out, for programs that don't know them")
	return cmd
}

// records turns what a client reads into what package trace takes.
func records(seq iter.Seq2[client.Record, error]) iter.Seq2[trace.Record, error] {
	return func(yield func(trace.Record, error) bool) {
		for r, err := range seq {
			if r.Own == nil && !yield(trace.Record{Context: r.Context, Private: r.Private, Message: r.Message}, err) {
				return
			}
		}
	}
}

func (a *app) importCommand() *cobra.Command {
	as := ""
	cmd := &cobra.Command{
		Use: "import FILE", Short: "Make a session of a trace in JSONL files", Args: args(1, 1, "the first FILE of a trace"),
		Long: `import reads <session>_001.jsonl and the further contexts beside it. The session
must not exist. Its workspace is not trusted: run -s ID asks for -C.`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.importFile(cmd.Context(), args[0], as) },
	}
	cmd.Flags().StringVar(&as, "as", "", "`ID` of the new session (default: the file's)")
	return cmd
}

func (a *app) importFile(ctx context.Context, file, as string) error {
	name, recs, warnings, err := trace.Import(file)
	if err != nil {
		return usagef("import %s: %v", file, err)
	}
	if as != "" {
		name = as
	}
	sid, err := protocol.ParseID(name)
	if err != nil {
		return usagef("import %s: session %v; --as gives another id", file, err)
	}
	for _, w := range warnings {
		a.notice("left out: %s", w)
	}
	l, err := a.dial(ctx)
	if err != nil {
		return err
	}
	if _, err := l.End(ctx, sid); err == nil {
		return usagef("session %s exists already; --as gives another id", sid)
	}
	err = l.act(ctx, sid, func(ctx context.Context, c *client.Client) error {
		return c.Import(ctx, sid, messages(recs))
	})
	if err == nil {
		_, err = fmt.Fprintln(a.stdout, sid)
	}
	return err
}

func messages(recs []trace.Record) iter.Seq2[protocol.Message, error] {
	return func(yield func(protocol.Message, error) bool) {
		for _, r := range recs {
			if !yield(r.Message, nil) {
				return
			}
		}
	}
}

func (a *app) verifyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "verify ID", Short: "Hold a session's trace against the rules of the loop", Args: args(1, 1, "the ID of a session"),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := a.dial(cmd.Context())
			if err != nil {
				return err
			}
			sid, err := l.session(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return l.verify(cmd.Context(), sid)
		},
	}
}

func (l *link) verify(ctx context.Context, sid protocol.ID) error {
	var recs []trace.Record
	running := false
	for r, err := range records(l.Records(ctx, sid)) {
		if err != nil {
			return err
		}
		recs = append(recs, r)
		switch r.Message.Payload.(type) {
		case protocol.TaskBegin:
			running = true
		case protocol.TaskEnd:
			running = false
		default:
		}
	}
	faults := trace.Verify(recs, &trace.VerifyOptions{Open: running})
	for _, f := range faults {
		say(l.app.stdout, "%s\n", visibleLine(f.String()))
	}
	if len(faults) > 0 {
		return fmt.Errorf("session %s: %d of %d records break a rule; rookery show %s --trace shows them", sid, len(faults), len(recs), sid)
	}
	_, err := fmt.Fprintf(l.app.stdout, "session %s: %d records, all rules kept\n", sid, len(recs))
	return err
}
