package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"rookery/client"
	"rookery/protocol"
)

func (a *app) showCommand() *cobra.Command {
	whole, asJSON := false, false
	cmd := &cobra.Command{
		Use: "show ID", Short: "Show a session: its settings, tasks and usage", Args: args(1, 1, "the ID of a session"),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := a.dial(cmd.Context())
			if err != nil {
				return err
			}
			sid, err := l.session(cmd.Context(), args[0])
			switch {
			case err != nil:
				return err
			case whole:
				return l.showTrace(cmd.Context(), sid, asJSON)
			}
			return l.show(cmd.Context(), sid, asJSON)
		},
	}
	cmd.Flags().BoolVar(&whole, "trace", false, "show every record, private ones included, by context")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return cmd
}

// A summary is what the records of a session add up to.
type summary struct {
	Session  protocol.ID        `json:"session"`
	Entry    protocol.Entry     `json:"entry"`
	Provider string             `json:"provider,omitempty"`
	Model    string             `json:"model,omitempty"`
	Contexts int                `json:"contexts"`
	Records  int                `json:"records"`
	Owners   int                `json:"owners"`
	Usage    protocol.Usage     `json:"usage"`
	Tasks    []taskSummary      `json:"tasks"`
	Open     []string           `json:"open,omitempty"` // calls without an output
	Pending  []protocol.Pending `json:"pending,omitempty"`
	// Background lists commands that go on after their calls.
	Background []protocol.Background `json:"background,omitempty"`
	calls      map[string]string     // open calls: id to name
}

// A taskSummary is one task on a line.
type taskSummary struct {
	ID     string              `json:"id"`
	Kind   string              `json:"kind"`
	At     string              `json:"at"`
	Prompt string              `json:"prompt,omitempty"`
	Turns  int                 `json:"turns"`
	Calls  int                 `json:"calls"`
	Status protocol.TaskStatus `json:"status,omitempty"` // empty while it runs
	Code   protocol.Code       `json:"code,omitempty"`
	Usage  protocol.Usage      `json:"usage"`
}

func (s *summary) add(r client.Record) {
	if r.Own != nil {
		s.Owners++
		return
	}
	s.Records++
	s.Contexts = max(s.Contexts, r.Context)
	if m, ok := r.Message.Payload.(protocol.SessionMeta); ok {
		s.Provider, s.Model = m.Provider, m.ModelID
	}
	if m, ok := r.Message.Payload.(protocol.TaskBegin); ok {
		s.Tasks = append(s.Tasks, taskSummary{ID: m.TaskID, Kind: m.Of, At: r.Message.Timestamp.Format("2006-01-02T15:04:05Z")})
	}
	if len(s.Tasks) > 0 {
		s.task(&s.Tasks[len(s.Tasks)-1], r)
	}
}

// task adds a record to the task it belongs to.
func (s *summary) task(t *taskSummary, r client.Record) {
	switch m := r.Message.Payload.(type) {
	case protocol.Text:
		if m.Role == protocol.User && t.Prompt == "" && t.Turns == 0 {
			t.Prompt = m.Text
		}
	case protocol.RequestBegin:
		t.Turns++
	case protocol.ToolCall:
		t.Calls++
		s.calls[m.ToolCallID] = m.Name
	case protocol.ToolCallOutput:
		delete(s.calls, m.ToolCallID)
	case protocol.TokenUsage:
		t.Usage = t.Usage.Add(m.Request)
		s.Usage = m.Session
	case protocol.TaskEnd:
		t.Status, t.Code = m.Status, m.Code
	default:
	}
}

func (l *link) summary(ctx context.Context, sid protocol.ID) (*summary, error) {
	s := &summary{Session: sid, calls: map[string]string{}}
	for r, err := range l.Records(ctx, sid) {
		if err != nil {
			return nil, err
		}
		s.add(r)
	}
	var err error
	if s.Entry, err = l.Entry(ctx, sid); err != nil && !errors.Is(err, client.ErrNoSession) {
		return nil, err
	}
	if n := len(s.Tasks); n > 0 && s.Tasks[n-1].Status == "" {
		for id, name := range s.calls {
			s.Open = append(s.Open, id+" "+name)
		}
	}
	if st, err := l.Status(ctx, sid); err == nil {
		s.Pending, s.Background = st.Pending, st.Background
	}
	return s, nil
}

func (l *link) show(ctx context.Context, sid protocol.ID, asJSON bool) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	s, err := l.summary(ctx, sid)
	if err != nil {
		return err
	}
	out := l.app.stdout
	if asJSON {
		_, err := fmt.Fprintf(out, "%s\n", protocol.Encode(s))
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name string, value any) { say(table, "%s\t%s\n", name, visibleLine(fmt.Sprint(value))) }
	row("session", s.Session)
	row("title", s.Entry.Title)
	row("state", s.Entry.State)
	row("model", s.Model+" ("+s.Provider+")")
	row("workspace", s.Entry.Workspace.Path)
	row("worker", string(s.Entry.Workspace.Worker)+" on "+s.Entry.Workspace.Host)
	row("trace", fmt.Sprintf("%d records in %d contexts, %d owners", s.Records, s.Contexts, s.Owners))
	row("usage", usageLine(s.Usage))
	for _, t := range s.Tasks {
		status := string(t.Status)
		if t.Code != "" {
			status += " (" + string(t.Code) + ")"
		}
		if status == "" {
			status = "running"
		}
		row(t.Kind, fmt.Sprintf("%s  %s, %d turns, %d calls, %d tokens  %s", t.At, status, t.Turns, t.Calls, t.Usage.Total, cut(t.Prompt, 60)))
	}
	for _, c := range s.Open {
		row("open call", c)
	}
	for _, b := range s.Background {
		row("background", backgroundLine(b))
	}
	for _, p := range s.Pending {
		row("undecided", p.ToolCallID+" "+callLine(p.Name, p.Arguments))
	}
	return table.Flush()
}

func backgroundLine(b protocol.Background) string {
	return fmt.Sprintf("command %s, for %s: %s", b.ID, time.Since(b.Since).Round(time.Second), cut(b.Command, 60))
}

func usageLine(u protocol.Usage) string {
	return fmt.Sprintf("%d tokens: %d cached, %d uncached, %d output", u.Total, u.CacheRead, u.CacheWrite, u.Output)
}

// showTrace shows every record in the notation, private ones marked.
func (l *link) showTrace(ctx context.Context, sid protocol.ID, asJSON bool) error {
	context := 0
	for r, err := range l.Records(ctx, sid) {
		switch {
		case err != nil:
			return err
		case r.Own != nil && !asJSON:
			say(l.app.stdout, "  # owner %s, epoch %d\n", r.Own.Node, r.Own.Epoch)
			continue
		case r.Own != nil:
			continue
		case asJSON:
			say(l.app.stdout, "%s\n", r.Message.Encode())
			continue
		case r.Context != context:
			context = r.Context
			say(l.app.stdout, "-- context %03d --\n", context)
		}
		mark := "  "
		if r.Private {
			mark = "x "
		}
		say(l.app.stdout, "%s\n", mark+r.Message.String())
	}
	return nil
}
