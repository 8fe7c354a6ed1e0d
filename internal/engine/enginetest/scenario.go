package enginetest

import (
	"time"

	"golang.org/x/tools/txtar"

	"rookery/protocol"
)

// A Level says which runner takes a file.
type Level string

// The levels.
const (
	LevelEngine Level = "engine"
	LevelStack  Level = "stack"
	LevelBoth   Level = "both"
)

// A Scenario is one parsed file.
type Scenario struct {
	// File is the name that errors carry.
	File string
	// Title is the first line of the file.
	Title string
	// Covers lists the behaviours it pins down, as L036.
	Covers []string
	Level  Level
	// Script is in file order; model and tool statements stand where they were written.
	Script []Statement
	// Sections holds the expectations, in file order.
	Sections []Section

	archive *txtar.Archive
}

// For reports whether a runner of that level takes the file.
func (s *Scenario) For(level Level) bool { return s.Level == LevelBoth || s.Level == level }

// Replies returns the scripted model replies in order.
func (s *Scenario) Replies() []Reply {
	var rs []Reply
	for _, st := range s.Script {
		if st.Reply != nil {
			rs = append(rs, *st.Reply)
		}
	}
	return rs
}

// Tools returns what the tool statements say by call id; the first one for an id counts.
func (s *Scenario) Tools() map[string]Tool {
	tools := map[string]Tool{}
	for _, st := range s.Script {
		if st.Tool == nil {
			continue
		}
		if _, ok := tools[st.Tool.ID]; !ok {
			tools[st.Tool.ID] = *st.Tool
		}
	}
	return tools
}

// A Verb is the first word of a statement.
type Verb string

// The verbs.
const (
	VerbConfig   Verb = "config"
	VerbModel    Verb = "model"
	VerbTool     Verb = "tool"
	VerbRun      Verb = "run"
	VerbStart    Verb = "run!"
	VerbCompact  Verb = "compact"
	VerbSteer    Verb = "steer"
	VerbAbort    Verb = "abort"
	VerbApprove  Verb = "approve"
	VerbWait     Verb = "wait"
	VerbWaitIdle Verb = "wait idle"
	VerbRelease  Verb = "release"
	VerbAt       Verb = "at"
	VerbResume   Verb = "resume"
	VerbKill     Verb = "kill"
	VerbExpect   Verb = "expect"
)

// A Statement is one line of the script. Verb says which of the other fields count.
type Statement struct {
	Line int
	Verb Verb

	Config []Setting // config
	Reply  *Reply    // model
	Tool   *Tool     // tool

	Text     string            // run, run!, steer: the text; expect: the value
	Thinking string            // run, run!
	Call     string            // approve
	Decision protocol.Decision // approve
	For      time.Duration     // wait
	Gate     string            // release
	At       *Hook             // at
	Bare     bool              // resume

	// Want is the expected reply; nil when it is not checked.
	Want *Want
}

// A Hook does an action when the Nth message from here on, counted from 1, whose
// notation begins with Message passes the output.
type Hook struct {
	Message string
	Nth     int
	Do      Statement
}

// A Setting is one KEY=VALUE of a config statement.
type Setting struct{ Key, Value string }

// A Want is what stands behind "->": accepted, refused, true, false, aborting or
// idle, and for refused a code or reason.
type Want struct{ Word, Reason string }

// Match reports whether a reply with that code and reason is what was wanted.
func (w Want) Match(code protocol.ReplyCode, reason string) bool {
	switch w.Word {
	case "accepted", "true":
		return code.Accepted()
	case "false":
		return !code.Accepted()
	case "refused":
		return !code.Accepted() && (w.Reason == "" || w.Reason == string(code) || mentions(reason, w.Reason))
	}
	return w.Word == string(code)
}

// An ItemKind is what a reply item is.
type ItemKind string

// The kinds of items.
const (
	ItemThink ItemKind = "think"
	ItemText  ItemKind = "text"
	ItemCall  ItemKind = "call"
	ItemWait  ItemKind = "wait"
	ItemHold  ItemKind = "hold"
)

// An Item is one indented line of a model statement.
type Item struct {
	Line int
	Kind ItemKind
	// Half marks an item that is still open when the reply ends.
	Half bool
	// Pieces are the deltas of a think, text or call; joined they are its text or
	// arguments.
	Pieces []string
	// ID and Name are those of a call, as the provider writes them.
	ID, Name string
	For      time.Duration // wait
	Gate     string        // hold
}

// A Reply is one scripted answer of the model.
type Reply struct {
	Line  int
	Items []Item
	// Usages are the reported usages in order; the last counts (L027).
	Usages []protocol.Usage
	// End is nil for a reply that just ends: completed, unless an item is half.
	End *End
}

// Half reports whether the reply leaves an item open.
func (r Reply) Half() bool {
	for _, it := range r.Items {
		if it.Half {
			return true
		}
	}
	return false
}

// An End is the outcome of a reply.
type End struct {
	Line   int
	Status protocol.StopReason
	// Length is the provider's length limit: completed, half items failed (L057).
	Length     bool
	Message    string
	Code       protocol.Code
	RetryAfter time.Duration
}

// A Tool is what the call with that id does.
type Tool struct {
	Line int
	ID   string
	// Deltas go out at once, then Pauses pass one after the other.
	Deltas []string
	Pauses []Pause
	// Output replaces the joined deltas; nil when there is none of its own.
	Output *string
	Stop   protocol.StopReason
	// None ends without an output, Twice with two, Die loses the worker.
	None, Twice, Die bool
}

// A Pause is a time, or a gate that is opened by a release.
type Pause struct {
	For  time.Duration
	Gate string
}

// A SectionKind is the first word of a section's name.
type SectionKind string

// The kinds of sections that state an expectation.
const (
	SectionOutput         SectionKind = "output"
	SectionInput          SectionKind = "input"
	SectionTrace          SectionKind = "trace"
	SectionRequests       SectionKind = "requests"
	SectionHistory        SectionKind = "history"
	SectionRuns           SectionKind = "runs"
	SectionCompactability SectionKind = "compactability"
)

// A Section is one expectation.
type Section struct {
	// Name is as in the file, Line that of its marker.
	Name string
	Line int
	Kind SectionKind
	// N is the request of input and history, the context of trace.
	N int
	// Full shows calls with name and arguments.
	Full bool
	// Want holds the lines without the empty ones.
	Want []string

	file int // index in the archive
}
