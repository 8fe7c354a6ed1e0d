package protocol

import (
	"fmt"
	"strings"
)

// The markers the loop writes into user text (L168). Each is written as
// [tag]..[/tag]; the first four are also read in their old angle form.
const (
	TagTurnAborted    = "turn_aborted"
	TagTurnRetried    = "turn_retried"
	TagSummary        = "summary"
	TagContextSummary = "context_summary"
	TagUserSteering   = "user_steering"
)

// Words of the loop that tests and readers rely on, to the byte.
const (
	NoteInterrupted  = "[interrupted: tool aborted by user]"                    // L056, L069
	NoteExited       = "[interrupted: process exited before the tool finished]" // L159
	NoteDenied       = "Tool call denied by user."                              // L048
	NoteNoOutput     = "[no output]"                                            // L051
	NoteUnknown      = "[tool error] outcome unknown: the worker stopped while this call may have run; check before repeating it"
	NoteTooLarge     = "[tool error] arguments exceed 768 KiB"
	AbortedByUser    = "aborted by user"
	AbortedInBackoff = "aborted during reconnect backoff"
	AbortedInCompact = "aborted during compaction"
)

// NoteLost is the output of a call that no worker took within sec seconds.
func NoteLost(sec int) string {
	return fmt.Sprintf("[tool error] no worker took the call within %d s", sec)
}

// NoteReplaced tells the model, as a user text, that the files it worked on are gone.
func NoteReplaced(worker ID) string {
	return fmt.Sprintf("[workspace replaced: worker %s is gone, and the files with it; the workspace is new and empty]", worker)
}

// NoteError is the output of a call whose tool layer broke (L050).
func NoteError(msg string) string { return "[tool error] " + msg }

// NoteUnknownTool is the output of a call of a tool that is not there (L052).
func NoteUnknownTool(name string) string { return "Unknown tool: " + name }

// NoteTimeout is the end note of a call that ran longer than ms milliseconds (L053).
func NoteTimeout(ms int64) string { return fmt.Sprintf("[tool timeout: exceeded %dms]", ms) }

// NoteTruncated is the end note of an output cut at n characters (L054).
func NoteTruncated(n int) string { return fmt.Sprintf("[output truncated: exceeded %d chars]", n) }

// NoteMaxTurns is the text a task ends with at its cap (L063).
func NoteMaxTurns(n int) string { return fmt.Sprintf("[reached max turns (%d); stopping]", n) }

// Steering wraps a text that was sent while a task ran (L085).
func Steering(text string) string { return wrap(TagUserSteering, text) }

// ParseSteering returns the text of a user text that is exactly one steering
// block; text that merely mentions the tag is not one (L095).
func ParseSteering(s string) (string, bool) {
	inner, ok := unwrap(TagUserSteering, s, false)
	if !ok || strings.Contains("\n"+inner, "\n[/"+TagUserSteering+"]") { // more than one block
		return "", false
	}
	return inner, true
}

// ContextSummary wraps a summary as the first input of a new context (L118).
func ContextSummary(s string) string { return wrap(TagContextSummary, s) }

// ParseContextSummary is the inverse of ContextSummary; it reads the angle form, too.
func ParseContextSummary(s string) (string, bool) { return unwrap(TagContextSummary, s, true) }

// ExtractSummary returns the summary in a compaction answer: the first
// [summary] pair, else the first <summary> pair, else all of it, trimmed (L117).
func ExtractSummary(s string) string {
	for _, f := range []string{"[%s]", "<%s>"} {
		open, end := fmt.Sprintf(f, TagSummary), fmt.Sprintf(f, "/"+TagSummary)
		if _, rest, ok := strings.Cut(s, open); ok {
			if body, _, ok := strings.Cut(rest, end); ok {
				return strings.TrimSpace(body)
			}
		}
	}
	return strings.TrimSpace(s)
}

// IsBlock reports that s is one whole block of the tag, in either form.
func IsBlock(tag, s string) bool {
	_, ok := unwrap(tag, s, tag != TagUserSteering)
	return ok
}

func wrap(tag, body string) string { return "[" + tag + "]\n" + body + "\n[/" + tag + "]" }

func unwrap(tag, s string, angle bool) (string, bool) {
	s = strings.TrimRight(s, " \t\r\n")
	forms := [][2]string{{"[" + tag + "]\n", "\n[/" + tag + "]"}}
	if angle {
		forms = append(forms, [2]string{"<" + tag + ">\n", "\n</" + tag + ">"})
	}
	for _, f := range forms {
		if rest, ok := strings.CutPrefix(s, f[0]); ok {
			if body, ok := strings.CutSuffix("\n"+rest, f[1]); ok {
				return strings.TrimPrefix(body, "\n"), true
			}
		}
	}
	return "", false
}

// A Block builds the text that tells the model of an attempt that did not count:
// [turn_aborted] (L071) or [turn_retried] (L101). Items are added in production
// order; calls and outputs are written behind the texts of their attempt.
type Block struct {
	lines []string
	calls []string
	outs  []string
}

// Input adds a text of the interrupted turn's input. One that is itself a block is
// unwrapped, one level (L073).
func (b *Block) Input(text string) {
	for _, tag := range []string{TagTurnAborted, TagTurnRetried} {
		if inner, ok := unwrap(tag, text, true); ok {
			b.EndAttempt()
			b.lines = append(b.lines, inner)
			return
		}
	}
	b.lines = append(b.lines, "  [user_input]"+text+"[/user_input]")
}

// Reply adds an assistant message of the attempt, whole or half. Calls that are
// not completed leave no line.
func (b *Block) Reply(p Payload) {
	switch p := p.(type) {
	case Thinking:
		b.body("thinking", p.Thinking)
	case Text:
		b.body("text", p.Text)
	case ToolCall:
		if p.StopReason == Completed || p.StopReason == "" {
			b.calls = append(b.calls, fmt.Sprintf("  [tool_call name=%q id=%q]%s[/tool_call]", p.Name, p.ToolCallID, p.Arguments))
		}
	default:
	}
}

// Output adds what a call of the attempt returned. Call it in call order.
func (b *Block) Output(o ToolCallOutput) {
	b.outs = append(b.outs, fmt.Sprintf("  [tool_call_output id=%q status=%q]%s[/tool_call_output]", o.ToolCallID, string(o.StopReason), disarm(o.Output)))
}

// Attempt adds a whole failed attempt: its assistant messages in production order
// and the outputs of its calls in call order.
func (b *Block) Attempt(reply, outputs []Message) {
	for _, m := range reply {
		b.Reply(m.Payload)
	}
	for _, m := range outputs {
		if o, ok := m.Payload.(ToolCallOutput); ok {
			b.Output(o)
		}
	}
	b.EndAttempt()
}

// EndAttempt writes the calls and outputs gathered so far behind the texts.
func (b *Block) EndAttempt() {
	b.lines = append(append(b.lines, b.calls...), b.outs...)
	b.calls, b.outs = nil, nil
}

// String returns the block under tag, or "" when nothing was added.
func (b *Block) String(tag string) string {
	b.EndAttempt()
	if len(b.lines) == 0 {
		return ""
	}
	return wrap(tag, strings.Join(b.lines, "\n"))
}

func (b *Block) body(tag, s string) {
	if s != "" {
		b.lines = append(b.lines, "  ["+tag+"]"+disarm(s)+"[/"+tag+"]")
	}
}

// disarm puts a zero-width space into lines that are one of our closing tags, so
// that hostile output can't close a block (L072).
func disarm(s string) string {
	if !strings.Contains(s, "[/") {
		return s
	}
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		switch strings.TrimSpace(l) {
		case "[/turn_aborted]", "[/turn_retried]", "[/summary]", "[/context_summary]", "[/user_steering]",
			"[/user_input]", "[/thinking]", "[/text]", "[/tool_call]", "[/tool_call_output]":
			lines[i] = strings.Replace(l, "[", "[\u200b", 1)
		}
	}
	return strings.Join(lines, "\n")
}
