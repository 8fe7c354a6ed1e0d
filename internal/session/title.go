package session

import (
	"context"
	"strings"
	"time"

	"rookery/internal/engine"
	"rookery/protocol"
)

// A Titler asks the session's model for a title of its first task that had user text
// (L148, L149). The title is "" when there is none; asked says whether a request was
// sent, the outcome what it cost. It ends soon after ctx.
type Titler func(ctx context.Context, m Model, task []protocol.Message) (title string, o engine.Outcome, asked bool)

// maxMaterial bounds what is kept of a task to make a title of, in bytes.
const maxMaterial = 16 << 10

// material gathers the texts of the first task that has user text. It sees every
// record of the trace, those of other owners, too.
type material struct {
	texts []protocol.Message
	size  int
	user  bool // it has user text
	over  bool // it is complete
	aside bool // a compaction speaks
}

func (t *material) see(m protocol.Message) {
	switch p := m.Payload.(type) {
	case protocol.TaskBegin:
		if !t.user {
			*t = material{over: p.Of != "run"}
		}
	case protocol.CompactionBegin:
		t.aside = true
	case protocol.CompactionEnd:
		t.aside = false
	case protocol.Text:
		text := strings.TrimSpace(p.Text)
		if t.over || t.aside || text == "" || t.size > maxMaterial {
			return
		}
		if len(text) > maxMaterial {
			text = strings.ToValidUTF8(text[:maxMaterial], "")
		}
		t.size += len(text)
		t.user = t.user || p.Role == protocol.User
		t.texts = append(t.texts, protocol.New(protocol.Text{Role: p.Role, Text: text}))
	case protocol.TaskEnd:
		t.over = true
	default:
	}
}

// entitle asks for the session's title after its first task, while nobody waits. Until
// it comes the title is the first line of the prompt, which it stays if none comes
// (L150). A session that is closed meanwhile is asked for after its next task.
func (s *session) entitle() {
	if !s.untitled || s.naming || !s.material.user {
		return
	}
	if s.h.cfg.Titler == nil {
		s.untitled = false
		return
	}
	s.naming = true
	ctx, cancel := context.WithCancel(context.Background())
	s.working.Go(func() {
		select {
		case <-s.closed:
			cancel()
		case <-ctx.Done():
		}
	})
	task := s.material.texts
	s.working.Go(func() {
		defer cancel()
		title, o, asked := s.h.cfg.Titler(ctx, s.model, task)
		_ = s.tell(ctx, func() { s.named(protocol.Clean(title), o, asked) })
	})
}

// named takes the model's title, unless a person was faster.
func (s *session) named(title string, o engine.Outcome, asked bool) {
	s.naming, s.material.texts = false, nil
	if asked {
		s.bookTitle(o)
	}
	if !s.untitled {
		return
	}
	if s.untitled = false; title != "" {
		s.title = title
	}
	s.enter()
}

// bookTitle writes the ledger's row of the request for a title (L152).
func (s *session) bookTitle(o engine.Outcome) {
	row := protocol.UsageRow{
		Session: s.id, Request: "title", Model: s.model.Name, Kind: "title",
		At: time.Now().UTC().Format(time.RFC3339Nano), Status: o.Status,
	}
	if o.Usage != nil && o.Status == protocol.Completed {
		row.Usage, row.Reasoning, row.Estimated = *o.Usage, o.Reasoning, o.Estimated
	}
	s.write(row)
}

// rename is the command title: a person's word, which counts when it is in the
// directory.
func (s *session) rename(o order) {
	s.title, s.untitled = strings.TrimSpace(protocol.Clean(o.cmd.Text)), false
	s.changed = time.Now()
	s.list(s.h.cfg.Node, s.stateNow(), func() { o.respond(protocol.Reply{Code: protocol.ReplyAccepted, Seq: s.seen}) })
}
