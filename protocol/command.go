package protocol

import "encoding/json"

// MaxBody is the largest command, call or result, encoded, in bytes.
const MaxBody = 768 << 10

// A Verb is what a client asks of a session; it is a token of the subject.
type Verb string

// The verbs.
const (
	VerbRun     Verb = "run"
	VerbSteer   Verb = "steer"
	VerbAbort   Verb = "abort"
	VerbApprove Verb = "approve"
	VerbCompact Verb = "compact"
	VerbTitle   Verb = "title"
	VerbStatus  Verb = "status"
	VerbSnap    Verb = "snap"
	// VerbTakeover has an orchestrator own the session and go on with its task.
	VerbTakeover Verb = "takeover"
)

// A Command asks a session for something. A repeated ID gets the first answer
// again; it becomes the task_id or steer_id.
type Command struct {
	ID string `json:"id"`
	By string `json:"by,omitempty"`

	// Prompt is the input of a run: user texts and images.
	Prompt  Payloads    `json:"prompt,omitempty"`
	Options TaskOptions `json:"options,omitzero"`
	// Session holds what a new session is made with; ignored by an existing one.
	Session SessionOptions `json:"session,omitzero"`

	Text       string   `json:"text,omitempty"`         // steer, title
	ToolCallID string   `json:"tool_call_id,omitempty"` // approve
	Decision   Decision `json:"decision,omitempty"`     // approve
	Reason     string   `json:"reason,omitempty"`       // approve
	Page       int      `json:"page,omitempty"`         // snap
}

// SessionOptions say how a session is made.
type SessionOptions struct {
	Model string `json:"model,omitempty"`
	// Pool names the workers that may serve it; empty = default.
	Pool string `json:"pool,omitempty"`
	// Labels are those a worker must have, each with its value.
	Labels map[string]string `json:"labels,omitempty"`
	// Worker pins the session to one worker.
	Worker ID `json:"worker,omitempty"`
	// Workspace is a directory on that worker's host; empty = a fresh one.
	Workspace string `json:"workspace,omitempty"`
	// Tools is a subset of tool names; empty = all.
	Tools  []string `json:"tools,omitempty"`
	Source string   `json:"source,omitempty"`
}

// A ReplyCode says what became of a command.
type ReplyCode string

// The reply codes.
const (
	ReplyAccepted       ReplyCode = "accepted"
	ReplyAborting       ReplyCode = "aborting"
	ReplyIdle           ReplyCode = "idle"
	ReplyTaskInProgress ReplyCode = "task_in_progress"
	ReplyCompacting     ReplyCode = "compacting"
	ReplyNothing        ReplyCode = "nothing_to_compact"
	ReplyNotRunning     ReplyCode = "not_running"
	ReplyBadRequest     ReplyCode = "bad_request"
	ReplyUnknownCall    ReplyCode = "unknown_call"
	ReplyDecided        ReplyCode = "decided"
	ReplyNotFound       ReplyCode = "not_found"
	ReplyNoOrchestrator ReplyCode = "no_orchestrator"
	ReplyUse            ReplyCode = "use" // ask orchestrator Use instead
	ReplyModel          ReplyCode = "model"
	ReplyTrace          ReplyCode = "trace"
	ReplyWorkspace      ReplyCode = "workspace"
	ReplyFailed         ReplyCode = "failed"
)

// Accepted reports a code that means: stored, and under way (or nothing to do).
func (c ReplyCode) Accepted() bool {
	return c == ReplyAccepted || c == ReplyAborting || c == ReplyIdle
}

// A Reply answers a Command at once. Reason is for people.
type Reply struct {
	Code   ReplyCode `json:"code"`
	Reason string    `json:"reason,omitempty"`
	// Use is the orchestrator to ask, with code use.
	Use ID `json:"use,omitempty"`
	// Seq is the trace position up to which the answer is true.
	Seq    uint64  `json:"seq,omitempty"`
	Status *Status `json:"status,omitempty"`
	Snap   *Snap   `json:"snap,omitempty"`
}

// A State is what a session does.
type State string

// The states.
const (
	StateIdle       State = "idle"
	StateRunning    State = "running"
	StateCompacting State = "compacting"
)

// A Status tells of one session (L138).
type Status struct {
	Session     ID        `json:"session"`
	State       State     `json:"state"`
	TaskID      string    `json:"task_id,omitempty"`
	Owner       ID        `json:"owner,omitempty"`
	Epoch       uint64    `json:"epoch,omitempty"`
	Title       string    `json:"title,omitempty"`
	Model       string    `json:"model,omitempty"`
	Workspace   string    `json:"workspace,omitempty"`
	Worker      ID        `json:"worker,omitempty"`
	Sandbox     string    `json:"sandbox,omitempty"`
	At          string    `json:"at,omitempty"` // last change, as in Message
	Compactable string    `json:"compactable,omitempty"`
	Pending     []Pending `json:"pending,omitempty"`
	// Background lists commands that go on after their calls.
	Background []Background `json:"background,omitempty"`
}

// Pending is a call that a person must decide on.
type Pending struct {
	ToolCallID string `json:"tool_call_id"`
	Name       string `json:"name"`
	Arguments  string `json:"arguments"`
}

// A Snap is one page of the segments that are open now. Page counts from 0.
type Snap struct {
	Epoch    uint64    `json:"epoch"`
	Segments []Segment `json:"segments,omitempty"`
	More     bool      `json:"more,omitempty"`
}

// A Segment is a streamed item that has started and not stopped: Start is its
// start fragment, Text all increments so far.
type Segment struct {
	ID    string  `json:"id"`
	After uint64  `json:"after"`
	Start Message `json:"start"`
	Text  string  `json:"text"`
	// Offset is where Text begins in the segment, in bytes; a long segment
	// comes in several pages.
	Offset int `json:"offset,omitempty"`
}

// A Live is one core message of rk.out.<sid>.d: a delta of a segment, a message
// that is not recorded (waiting), or a beat.
type Live struct {
	Epoch uint64 `json:"epoch"`
	// After is the dense number of the last visible record before it.
	After uint64 `json:"after"`
	// Segment and Offset (bytes) place a delta; empty for others.
	Segment string   `json:"segment,omitempty"`
	Offset  int      `json:"offset,omitempty"`
	Message *Message `json:"message,omitempty"`
	// Beat is set on a beat.
	Beat *Beat `json:"beat,omitempty"`
}

// A Beat tells a viewer how far the trace is, every 5 s and after a task's end.
type Beat struct {
	Seq   uint64 `json:"seq"` // stream sequence of the last visible frame
	State State  `json:"state"`
}

// A Cursor is a place in a session's trace: "<stream seq>.<position in frame>".
type Cursor struct {
	Seq uint64
	Pos int
}

// An Entry is one line of a listing of sessions.
type Entry struct {
	Session ID     `json:"session"`
	State   State  `json:"state"`
	Node    ID     `json:"node,omitempty"`
	Epoch   uint64 `json:"epoch,omitempty"`
	Title   string `json:"title,omitempty"`
	// Untitled says that the title is the first line of a prompt, because the model
	// was not asked yet.
	Untitled bool   `json:"untitled,omitempty"`
	At       string `json:"at,omitempty"`
	Model    string `json:"model,omitempty"`
	// Workspace is where its tools work, as {host, path, worker}.
	Workspace WorkspaceRef `json:"workspace,omitzero"`
}

// A UsageRow is one row of the ledger: one model request (L151).
type UsageRow struct {
	Session   ID         `json:"session"`
	Request   string     `json:"request"` // number of the request, or "title"
	Model     string     `json:"model"`
	At        string     `json:"at"`
	Status    StopReason `json:"status"`
	Usage     Usage      `json:"usage"`
	Reasoning int64      `json:"reasoning,omitempty"`
	Estimated bool       `json:"estimated,omitempty"`
	Kind      string     `json:"kind,omitempty"` // turn, compaction, title
}

// An Own is the record of an ownership in the trace.
type Own struct {
	Epoch uint64 `json:"epoch"`
	Node  ID     `json:"node"`
	Boot  string `json:"boot"`
}

// Encode returns v as compact JSON without HTML escapes, for bodies of this package.
func Encode(v any) []byte {
	if l, ok := v.(Live); ok {
		return l.encode()
	}
	return mustEncode(v)
}

// Unmarshal reads a body of this package; unknown fields are ignored. What it reads
// may refer to b, which must not change afterwards.
func Unmarshal(b []byte, v any) error {
	if l, ok := v.(*Live); ok && l.decodePlain(b) {
		return nil
	}
	return json.Unmarshal(b, v)
}
