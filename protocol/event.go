package protocol

import (
	"encoding/json"
	"time"
)

// A Decision is the verdict on a call.
type Decision string

// The two decisions.
const (
	Allow Decision = "allow"
	Deny  Decision = "deny"
)

// A TaskStatus says how a task ended.
type TaskStatus string

// The statuses of task_end.
const (
	TaskCompleted TaskStatus = "completed"
	TaskFailed    TaskStatus = "failed"
	TaskAborted   TaskStatus = "aborted"
	TaskMaxTurns  TaskStatus = "max_turns"
)

// A Code refines a TaskStatus; the command line maps both to its exit status.
type Code string

// The codes of task_end.
const (
	CodeUsage     Code = "usage"
	CodeBroker    Code = "broker"
	CodeModel     Code = "model"
	CodeRefused   Code = "refused"
	CodeAuth      Code = "auth"
	CodeLength    Code = "length"
	CodeDenied    Code = "denied"
	CodeTimeout   Code = "timeout"
	CodeTrace     Code = "trace"
	CodeLostOwner Code = "lost_owner"
)

// Usage counts tokens: CacheRead the cached and CacheWrite the uncached ones of
// the prompt, Output thinking and answer, Total their sum (L026).
type Usage struct {
	CacheRead  int64 `json:"cache_read"`
	CacheWrite int64 `json:"cache_write"`
	Output     int64 `json:"output"`
	Total      int64 `json:"total"`
}

// Add returns the sum of both.
func (u Usage) Add(v Usage) Usage {
	return Usage{u.CacheRead + v.CacheRead, u.CacheWrite + v.CacheWrite, u.Output + v.Output, u.Total + v.Total}
}

// TaskOptions are what a task was started with; a successor needs no more (see TaskBegin).
type TaskOptions struct {
	// Approve is a policy: allow-all, deny-all, read-only, ask or none.
	Approve string `json:"approve,omitempty"`
	// MaxTurns caps the task; 0 is the configured default, negative no cap.
	MaxTurns int `json:"max_turns,omitempty"`
	// Thinking is none, low, medium, high or xhigh; empty = the session's default.
	Thinking string `json:"thinking,omitempty"`
	// ApproveTimeoutMS bounds a person's decision, in milliseconds; 0 = none.
	ApproveTimeoutMS int64 `json:"approve_timeout_ms,omitempty"`
	// Sandbox is the confinement of the session's worker, shown to viewers.
	Sandbox string `json:"sandbox,omitempty"`
}

type (
	// RequestBegin opens a request (L025).
	RequestBegin struct{}

	// RequestEnd closes it with its status (L025).
	RequestEnd struct {
		Status StopReason `json:"status"`
	}

	// TokenUsage follows a completed request (L026, L027). Estimated marks
	// figures that the provider did not report.
	TokenUsage struct {
		Session   Usage `json:"session"`
		Request   Usage `json:"request"`
		Estimated bool  `json:"estimated,omitempty"`
		// Reasoning is the part of Request.Output that was thinking, when known.
		Reasoning int64 `json:"reasoning,omitempty"`
	}

	// ApprovalDecision says who allowed or denied a call (L028). By is user,
	// policy or timeout.
	ApprovalDecision struct {
		Decision   Decision `json:"decision"`
		ToolCallID string   `json:"tool_call_id"`
		By         string   `json:"by,omitempty"`
		Reason     string   `json:"reason,omitempty"`
	}

	// CompactionBegin opens a compaction with the figures at trigger time (L029, L114).
	CompactionBegin struct {
		Reason  string `json:"reason"` // context, turns, manual
		Mode    string `json:"mode"`   // summarize, discard
		Context int64  `json:"context"`
		Turns   int    `json:"turns"`
	}

	// CompactionEnd closes it (L029).
	CompactionEnd struct {
		Reason string     `json:"reason"`
		Mode   string     `json:"mode"`
		Status StopReason `json:"status"`
	}

	// Abort is the last word of a run that was cut (L030). Reason nil is null.
	Abort struct {
		Reason *string `json:"reason"`
	}

	// Subagent points to a child session (L031); trace only.
	Subagent struct {
		SessionID string `json:"session_id"`
	}

	// TaskBegin opens a task or a manual compaction. TaskID is the command's id.
	TaskBegin struct {
		TaskID  string      `json:"task_id"`
		Of      string      `json:"kind"` // run, compact
		Options TaskOptions `json:"options"`
		By      string      `json:"by,omitempty"`
	}

	// TaskEnd closes it: exactly one for each TaskBegin.
	TaskEnd struct {
		TaskID string     `json:"task_id"`
		Status TaskStatus `json:"status"`
		Code   Code       `json:"code,omitempty"`
		Reason string     `json:"reason,omitempty"`
		// UndeliveredSteering holds accepted texts that no request got (L092).
		UndeliveredSteering []string `json:"undelivered_steering,omitempty"`
	}

	// ApprovalRequest asks a person; repeated with the same id after a takeover.
	ApprovalRequest struct {
		ToolCallID string     `json:"tool_call_id"`
		Name       string     `json:"name"`
		Arguments  string     `json:"arguments"`
		Permission string     `json:"permission"` // r, rw
		Deadline   *time.Time `json:"deadline,omitempty"`
	}

	// ApprovalClosed says that a pending request will get no decision.
	ApprovalClosed struct {
		ToolCallID string `json:"tool_call_id"`
		Reason     string `json:"reason"`
	}

	// AbortRequested says that an abort was accepted; an Abort follows.
	AbortRequested struct {
		By string `json:"by,omitempty"`
	}

	// SteeringQueued says that a steering text was accepted. SteerID is the command's id.
	SteeringQueued struct {
		SteerID string `json:"steer_id"`
		Text    string `json:"text"`
	}

	// CallDispatched is stored before a call is published to Destination
	// (w.<worker> or p.<pool>).
	CallDispatched struct {
		ToolCallID  string `json:"tool_call_id"`
		Attempt     int    `json:"attempt"`
		Destination string `json:"destination"`
	}

	// Waiting says that no worker took the call yet, or that its worker is unreachable.
	Waiting struct {
		ToolCallID string `json:"tool_call_id"`
		For        string `json:"for"`
	}

	// CallFate says what became of a dispatch that gave no result.
	CallFate struct {
		ToolCallID string `json:"tool_call_id"`
		Fate       string `json:"fate"` // lost, unknown, unreachable, retried
		Worker     string `json:"worker,omitempty"`
	}

	// ReplyReceived keeps what is left of a model reply while a person decides:
	// the rest of its messages, its usage and its status. Private.
	ReplyReceived struct {
		Rest      Payloads   `json:"rest"`
		Usage     *Usage     `json:"usage,omitempty"`
		Estimated bool       `json:"estimated,omitempty"`
		Reasoning int64      `json:"reasoning,omitempty"`
		Status    StopReason `json:"status"`
		Message   string     `json:"message,omitempty"`
		Finish    string     `json:"finish,omitempty"`
	}

	// Takeover says that another orchestrator goes on with this task.
	Takeover struct {
		From  string `json:"from"`
		To    string `json:"to"`
		Epoch uint64 `json:"epoch"`
	}

	// Retry follows a failed RequestEnd and announces the wait before the next attempt.
	Retry struct {
		Attempt int        `json:"attempt"`
		WaitMS  int64      `json:"wait_ms"`
		Status  StopReason `json:"status"`
		Message string     `json:"message,omitempty"`
	}
)

// Kind implements Payload.
func (RequestBegin) Kind() string { return "request_begin" }

// Kind implements Payload.
func (RequestEnd) Kind() string { return "request_end" }

// Kind implements Payload.
func (TokenUsage) Kind() string { return "token_usage" }

// Kind implements Payload.
func (ApprovalDecision) Kind() string { return "approval_decision" }

// Kind implements Payload.
func (CompactionBegin) Kind() string { return "compaction_begin" }

// Kind implements Payload.
func (CompactionEnd) Kind() string { return "compaction_end" }

// Kind implements Payload.
func (Abort) Kind() string { return "abort" }

// Kind implements Payload.
func (Subagent) Kind() string { return "subagent" }

// Kind implements Payload.
func (TaskBegin) Kind() string { return "task_begin" }

// Kind implements Payload.
func (TaskEnd) Kind() string { return "task_end" }

// Kind implements Payload.
func (ApprovalRequest) Kind() string { return "approval_request" }

// Kind implements Payload.
func (ApprovalClosed) Kind() string { return "approval_closed" }

// Kind implements Payload.
func (AbortRequested) Kind() string { return "abort_requested" }

// Kind implements Payload.
func (SteeringQueued) Kind() string { return "steering_queued" }

// Kind implements Payload.
func (CallDispatched) Kind() string { return "call_dispatched" }

// Kind implements Payload.
func (Waiting) Kind() string { return "waiting" }

// Kind implements Payload.
func (CallFate) Kind() string { return "call_fate" }

// Kind implements Payload.
func (ReplyReceived) Kind() string { return "reply_received" }

// Kind implements Payload.
func (Takeover) Kind() string { return "takeover" }

// Kind implements Payload.
func (Retry) Kind() string { return "retry" }

func (RequestBegin) class() string     { return TypeEvent }
func (RequestEnd) class() string       { return TypeEvent }
func (TokenUsage) class() string       { return TypeEvent }
func (ApprovalDecision) class() string { return TypeEvent }
func (CompactionBegin) class() string  { return TypeEvent }
func (CompactionEnd) class() string    { return TypeEvent }
func (Abort) class() string            { return TypeEvent }
func (Subagent) class() string         { return TypeEvent }
func (TaskBegin) class() string        { return TypeEvent }
func (TaskEnd) class() string          { return TypeEvent }
func (ApprovalRequest) class() string  { return TypeEvent }
func (ApprovalClosed) class() string   { return TypeEvent }
func (AbortRequested) class() string   { return TypeEvent }
func (SteeringQueued) class() string   { return TypeEvent }
func (CallDispatched) class() string   { return TypeEvent }
func (Waiting) class() string          { return TypeEvent }
func (CallFate) class() string         { return TypeEvent }
func (ReplyReceived) class() string    { return TypeEvent }
func (Takeover) class() string         { return TypeEvent }
func (Retry) class() string            { return TypeEvent }

// AbortOf returns an Abort with that reason.
func AbortOf(reason string) Abort { return Abort{Reason: &reason} }

// UserText returns a completed user text.
func UserText(s string) Text { return Text{Role: User, Text: s, StopReason: Completed} }

var _ json.Unmarshaler = (*Payloads)(nil)
