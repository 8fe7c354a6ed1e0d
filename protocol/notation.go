package protocol

import (
	"fmt"
	"strconv"
	"strings"
)

// String returns the message in the one-line notation of scenarios, --plain and
// show --trace. It is for people and tests; nothing parses it back.
func (m Message) String() string {
	var b strings.Builder
	for _, o := range m.Origin {
		b.WriteString(o)
		b.WriteByte('/')
	}
	b.WriteString(Notation(m.Payload, false))
	return b.String()
}

// Notation writes a payload in the notation; full adds the name and arguments of
// a tool call. Text of other people's making is Go-quoted, so no control
// character passes through.
func Notation(p Payload, full bool) string {
	switch p := p.(type) {
	case nil:
		return "?"
	case SessionMeta:
		return "session_meta"
	case Text:
		return fmt.Sprintf("text[%s]%s", marks(string(p.Role), unlessCompleted(p.StopReason)), quote(p.Text))
	case Thinking:
		return "thinking" + bracket(unlessCompleted(p.StopReason)) + quote(p.Thinking)
	case ToolCall:
		s := "tool_call" + bracket(p.ToolCallID, string(p.StopReason))
		if full {
			s += " " + plain(p.Name) + " " + plain(p.Arguments)
		}
		return s
	case ToolCallOutput:
		return "tool_call_output" + bracket(p.ToolCallID, string(p.StopReason)) + quote(p.Output)
	case ImageURL, InlineData, InlineThinking:
		return p.Kind()
	case PartialText:
		return "partial_text" + fragment(p.EventType, p.Text, p.StopReason)
	case PartialThinking:
		return "partial_thinking" + fragment(p.EventType, p.Thinking, p.StopReason)
	case PartialToolCall:
		return "partial_tool_call" + bracket(p.ToolCallID) + fragment(p.EventType, p.Arguments, p.StopReason)
	case PartialToolCallOutput:
		return "partial_tool_call_output" + bracket(p.ToolCallID) + fragment(p.EventType, p.Output, p.StopReason)
	case RequestBegin:
		return "request_begin"
	case RequestEnd:
		return fmt.Sprintf("request_end(%s)", p.Status)
	case TokenUsage:
		return fmt.Sprintf("token_usage(request %d, session %d)", p.Request.Total, p.Session.Total)
	case ApprovalDecision:
		return fmt.Sprintf("approval_decision(%s,%s)", p.Decision, plain(p.ToolCallID))
	case CompactionBegin:
		return fmt.Sprintf("compaction_begin(%s,%s,context %d,turns %d)", p.Reason, p.Mode, p.Context, p.Turns)
	case CompactionEnd:
		return fmt.Sprintf("compaction_end(%s,%s,%s)", p.Reason, p.Mode, p.Status)
	case Abort:
		if p.Reason == nil {
			return "abort(null)"
		}
		return "abort(" + quote(*p.Reason) + ")"
	case Subagent:
		return "subagent(" + plain(p.SessionID) + ")"
	case Unknown:
		return "?" + plain(p.Name)
	default:
	}
	return "+" + p.Kind() + ownNotation(p)
}

func ownNotation(p Payload) string {
	switch p := p.(type) {
	case TaskBegin:
		return "(" + p.Of + ")"
	case TaskEnd:
		return "(" + string(p.Status) + ")"
	case ApprovalRequest:
		return "(" + plain(p.ToolCallID) + ")"
	case ApprovalClosed:
		return "(" + plain(p.ToolCallID) + ")"
	case CallDispatched:
		return "(" + plain(p.ToolCallID) + ")"
	case Waiting:
		return "(" + plain(p.ToolCallID) + ")"
	case CallFate:
		return "(" + plain(p.ToolCallID) + "," + p.Fate + ")"
	case Retry:
		return fmt.Sprintf("(%d,%dms)", p.Attempt, p.WaitMS)
	default:
	}
	return ""
}

// IsPartial reports a streamed fragment, which is never recorded.
func IsPartial(p Payload) bool {
	switch p.(type) {
	case PartialText, PartialThinking, PartialToolCall, PartialToolCallOutput:
		return true
	default:
	}
	return false
}

// IsOwn reports one of rookery's own events (a "+" line in the notation).
func IsOwn(p Payload) bool { return strings.HasPrefix(Notation(p, false), "+") }

func fragment(e EventType, delta string, stop StopReason) string {
	switch {
	case e == Delta:
		return "(delta:" + quote(delta) + ")"
	case e == Stop && unlessCompleted(stop) != "":
		return "(stop," + string(stop) + ")"
	}
	return "(" + string(e) + ")"
}

func marks(parts ...string) string {
	var kept []string
	for _, p := range parts {
		if p != "" {
			kept = append(kept, plain(p))
		}
	}
	return strings.Join(kept, ",")
}

func bracket(parts ...string) string {
	if s := marks(parts...); s != "" {
		return "[" + s + "]"
	}
	return ""
}

func unlessCompleted(s StopReason) string {
	if s == Completed {
		return ""
	}
	return string(s)
}

func quote(s string) string { return strconv.Quote(s) }

// plain keeps harmless text as it is and quotes the rest without the quotes.
func plain(s string) string {
	q := strconv.Quote(s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}
