package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"rookery/protocol"
)

// maxAsked is how much of a call's arguments an approver is shown at once.
const maxAsked = 8000

// readLines reads what a person types, until close.
func readLines(f *os.File) *terminal {
	t := &terminal{file: f, lines: make(chan string), done: make(chan struct{}), quit: make(chan struct{})}
	go func() { // close waits for it
		defer close(t.done)
		in := bufio.NewScanner(f)
		for in.Scan() {
			select {
			case t.lines <- in.Text():
			case <-t.quit:
				return
			}
		}
	}()
	return t
}

// question shows all that will run, or says how much of it is not shown.
func question(p protocol.ApprovalRequest) string {
	args := argumentLines(p.Arguments)
	note := ""
	if n := utf8.RuneCountInString(args); n > maxAsked {
		args = string([]rune(args)[:maxAsked])
		note = fmt.Sprintf("\n  CUT: %d of %d characters are shown", maxAsked, n)
	}
	may := "read only"
	if p.Permission != string(protocol.ReadOnly) {
		may = "may change things"
	}
	return fmt.Sprintf("call %s: %s (%s)\n%s%s\n", visibleLine(p.ToolCallID), visibleLine(p.Name), may, args, note)
}

// argumentLines writes arguments for a person: one line a key, as often as it is
// there, texts as they are, their further lines indented more than any key.
func argumentLines(arguments string) string {
	raw := "  " + indent(visible(arguments))
	d := json.NewDecoder(strings.NewReader(arguments))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return raw
	}
	var lines []string
	for d.More() {
		key, err := d.Token()
		var value json.RawMessage
		if err != nil || d.Decode(&value) != nil {
			return raw
		}
		text := string(value)
		if len(text) > 0 && text[0] == '"' && json.Unmarshal(value, &text) != nil {
			return raw
		}
		lines = append(lines, "  "+visibleLine(fmt.Sprint(key))+": "+indent(visible(text)))
	}
	if _, err := d.Token(); err != nil || d.More() || len(lines) == 0 {
		return raw
	}
	return strings.Join(lines, "\n")
}

func indent(s string) string { return strings.ReplaceAll(s, "\n", "\n      ") }

// ask queues a request; a repeated one is the same.
func (w *taskWatch) ask(p protocol.ApprovalRequest) {
	for _, q := range w.asked {
		if q.ToolCallID == p.ToolCallID {
			return
		}
	}
	w.asked = append(w.asked, p)
	if len(w.asked) == 1 {
		w.askNext()
	}
}

func (w *taskWatch) askNext() {
	if w.lines == nil || len(w.asked) == 0 {
		return
	}
	w.askedAt, w.answered = time.Now(), false
	say(w.stderr, "%s", question(w.asked[0])+"  allow? [y]es, [n]o, or why not: ")
}

// decided takes a request off the list, whoever decided.
func (w *taskWatch) decided(call string) {
	for i, q := range w.asked {
		if q.ToolCallID != call {
			continue
		}
		w.asked = append(w.asked[:i], w.asked[i+1:]...)
		if i == 0 {
			w.withdrawn = !w.answered
			w.askNext()
		}
		return
	}
}

// tooSoon is when a line can't be about a question that has just replaced one
// that somebody else answered.
const tooSoon = time.Second

// answer takes a line that the person typed: for the call that is shown, once.
func (w *taskWatch) answer(ctx context.Context, wg *sync.WaitGroup, line string) {
	if len(w.asked) == 0 || w.answered {
		return
	}
	d, reason, ok := verdict(line)
	if !ok || w.withdrawn && time.Since(w.askedAt) < tooSoon {
		w.askNext()
		return
	}
	w.answered = true
	call := w.asked[0].ToolCallID
	w.command(ctx, wg, func(ctx context.Context) error {
		return w.client.Approve(ctx, w.task.Session, call, d, reason)
	})
}

// verdict reads y, n, or a reason for no.
func verdict(line string) (d protocol.Decision, reason string, ok bool) {
	line = strings.TrimSpace(strings.ToValidUTF8(line, "\ufffd"))
	switch strings.ToLower(line) {
	case "":
		return "", "", false
	case "y", "yes":
		return protocol.Allow, "", true
	case "n", "no":
		return protocol.Deny, "", true
	}
	return protocol.Deny, strings.TrimSpace(strings.TrimPrefix(line, "n ")), true
}
