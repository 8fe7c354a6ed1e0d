package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"rookery/client"
	"rookery/internal/config"
	"rookery/protocol"
)

// A printer shows what a session says. Notices go through tell.
type printer interface{ show(e client.Event) }

// jsonPrinter writes one message a line.
type jsonPrinter struct{ out io.Writer }

func (p jsonPrinter) show(e client.Event) {
	if e.Kind == client.Message {
		say(p.out, "%s\n", e.Message.Encode())
	}
}

// plainPrinter writes the notation of the protocol.
type plainPrinter struct{ out io.Writer }

func (p plainPrinter) show(e client.Event) {
	if e.Kind == client.Message {
		say(p.out, "%s\n", e.Message.String())
	}
}

// quietPrinter writes what the assistant says and nothing else; why a task did not
// complete goes to tell.
type quietPrinter struct {
	out  io.Writer
	tell func(format string, args ...any)
	open bool
}

func (p *quietPrinter) show(e client.Event) {
	if end, ok := e.Message.Payload.(protocol.TaskEnd); ok && end.Status != protocol.TaskCompleted {
		p.tell("%s", taskEnd(end))
	}
	m, ok := e.Message.Payload.(protocol.PartialText)
	switch {
	case !ok || len(e.Message.Origin) > 0:
	case m.EventType == protocol.Delta:
		_, _ = io.WriteString(p.out, visible(m.Text))
		p.open = !strings.HasSuffix(m.Text, "\n")
	case m.EventType == protocol.Stop && p.open:
		_, _ = io.WriteString(p.out, "\n")
		p.open = false
	}
}

// Bounds of what a person is shown of one output.
const (
	outputLines = 12
	outputWidth = 160
	callWidth   = 200
)

// humanPrinter writes what a person reads: streamed text and thinking, calls as
// one line, outputs indented and shortened. Notices go to tell.
type humanPrinter struct {
	out    io.Writer
	tell   func(format string, args ...any)
	colour bool
	asked  bool // show what users said, too
	// sandbox: nobody has told yet how the task's commands are confined.
	sandbox bool
	open    string
	middle  bool // of a line
}

func (p *humanPrinter) show(e client.Event) {
	switch e.Kind {
	case client.Message:
		p.message(e.Message)
	case client.Reconnecting:
		p.line()
		p.tell("connection lost, reconnecting")
	case client.Reconnected:
		p.tell("connected again")
	case client.CaughtUp, client.Owned:
	}
}

func (p *humanPrinter) message(m protocol.Message) {
	switch v := m.Payload.(type) {
	case protocol.PartialText:
		p.stream("text", v.EventType, v.Text, v.StopReason)
	case protocol.PartialThinking:
		p.stream("thinking", v.EventType, v.Thinking, v.StopReason)
	case protocol.Text:
		if v.Role == protocol.User && p.asked {
			p.said(v.Text)
		}
	case protocol.ToolCall:
		p.line()
		p.write(p.paint("1", "→ "+callLine(v.Name, v.Arguments)) + "\n")
	case protocol.ToolCallOutput:
		p.output(v)
	default:
		p.event(m.Payload)
	}
}

// stream writes a fragment; another stream begins a new line.
func (p *humanPrinter) stream(kind string, e protocol.EventType, text string, stop protocol.StopReason) {
	if e == protocol.Delta {
		if p.open != kind {
			p.line()
		}
		p.open = kind
		s := visible(text)
		if kind == "thinking" {
			s = p.paint("2", s)
		}
		p.write(s)
		p.middle = !strings.HasSuffix(text, "\n")
		return
	}
	if e == protocol.Stop {
		p.line()
		if stop != protocol.Completed && stop != "" {
			p.tell("%s cut short: %s", kind, stop)
		}
	}
}

func (p *humanPrinter) said(text string) {
	p.line()
	for line := range strings.SplitSeq(strings.TrimRight(visible(text), "\n"), "\n") {
		p.write(p.paint("1", "» ") + line + "\n")
	}
}

func (p *humanPrinter) output(o protocol.ToolCallOutput) {
	p.line()
	lines := strings.Split(strings.TrimRight(visible(o.Output), "\n"), "\n")
	for i, line := range lines {
		if i == outputLines {
			p.write(p.paint("2", fmt.Sprintf("  … %d more lines", len(lines)-i)) + "\n")
			break
		}
		p.write(p.paint("2", "  "+cut(line, outputWidth)) + "\n")
	}
	if n := len(o.Images); n > 0 {
		p.write(p.paint("2", fmt.Sprintf("  [%d images]", n)) + "\n")
	}
}

// event tells of what happened beside the conversation.
func (p *humanPrinter) event(payload protocol.Payload) {
	text := ""
	switch v := payload.(type) {
	case protocol.TaskBegin:
		switch {
		case v.Options.Sandbox == "none" && (p.asked || p.sandbox): // else who ran it was told
			text = "sandbox none: commands of this task run UNCONFINED"
		case v.Options.Sandbox != "" && p.sandbox:
			text = "sandbox " + v.Options.Sandbox
		}
	case protocol.ApprovalDecision:
		if v.Decision == protocol.Deny {
			text = fmt.Sprintf("call %s denied by %s", v.ToolCallID, v.By) + because(v.Reason)
		}
	case protocol.ApprovalClosed:
		text = fmt.Sprintf("call %s needs no decision any more", v.ToolCallID) + because(v.Reason)
	case protocol.Retry:
		text = fmt.Sprintf("request %s, trying again in %d ms", v.Status, v.WaitMS) + because(v.Message)
	case protocol.Waiting:
		text = fmt.Sprintf("call %s waits: %s", v.ToolCallID, v.For)
	case protocol.CallFate:
		text = fmt.Sprintf("call %s: %s", v.ToolCallID, v.Fate) + because(v.Worker)
	case protocol.Takeover:
		text = fmt.Sprintf("orchestrator %s goes on with the task of %s", v.To, v.From)
	case protocol.CompactionBegin:
		text = fmt.Sprintf("compacting (%s), %d tokens, %d turns", v.Reason, v.Context, v.Turns)
	case protocol.CompactionEnd:
		text = fmt.Sprintf("compaction %s", v.Status)
	case protocol.AbortRequested:
		text = "aborting"
	case protocol.SteeringQueued:
		text = "steering accepted"
	case protocol.TaskEnd:
		text = taskEnd(v)
	default: // shown otherwise, or of no interest to a person
	}
	if text != "" {
		p.line()
		p.tell("%s", text)
	}
}

func taskEnd(v protocol.TaskEnd) string {
	text := ""
	if v.Status != protocol.TaskCompleted || v.Code != "" {
		text = "task " + string(v.Status)
		if v.Code != "" {
			text += " (" + string(v.Code) + ")"
		}
		text += because(v.Reason)
	}
	for _, s := range v.UndeliveredSteering {
		text += fmt.Sprintf("; not delivered: %q", cut(s, 80))
	}
	return strings.TrimPrefix(text, "; ")
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

// line ends the present line.
func (p *humanPrinter) line() {
	p.open = ""
	if p.middle {
		p.write("\n")
		p.middle = false
	}
}

func (p *humanPrinter) write(s string) { _, _ = io.WriteString(p.out, s) }

// paint wraps s in a colour, by its number.
func (p *humanPrinter) paint(code, s string) string {
	if !p.colour || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// callLine is a call on one line: the one argument that says most, or all.
func callLine(name, arguments string) string {
	return cut(visibleLine(name+" "+callSubject(arguments)), callWidth)
}

func callSubject(arguments string) string {
	args, err := protocol.Arguments(arguments)
	if err != nil {
		return arguments
	}
	for _, key := range []string{"command", "cmd", "path", "pattern"} {
		var s string
		if json.Unmarshal(args[key], &s) == nil && s != "" {
			return s
		}
	}
	return arguments
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
