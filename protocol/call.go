package protocol

import (
	"encoding/json"
	"errors"
	"time"
)

// A Permission says what a tool may do to the workspace.
type Permission string

// The permissions.
const (
	ReadOnly  Permission = "r"
	ReadWrite Permission = "rw"
)

// A Tool is what a worker offers: the model sees the ToolSpec, the rest are limits.
type Tool struct {
	ToolSpec
	// TimeoutMS bounds one call; 0 is the default (120000), negative none.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// MaxOutput caps the output in characters; 0 is the default (16000), negative none.
	MaxOutput int `json:"max_output_length,omitempty"`
	// Workspace reports that calls go to the worker that holds the workspace.
	Workspace bool `json:"workspace,omitempty"`
}

// A WorkspaceRef names the directory tree of a session's tools.
type WorkspaceRef struct {
	Host string `json:"host,omitempty"`
	// Path is absolute on Host; empty for one that the worker makes for the session.
	Path   string `json:"path,omitempty"`
	Worker ID     `json:"worker,omitempty"`
	Epoch  uint64 `json:"epoch,omitempty"`
	// Made reports one that Worker made: it exists there alone.
	Made bool `json:"made,omitempty"`
}

// A Call asks a worker to run a tool once. It is one dispatch.
type Call struct {
	Session ID `json:"session"`
	// Dispatch is "<request>-<position>-<attempt>", unique in the session.
	Dispatch string `json:"dispatch"`
	// Key is the same over all attempts; tools see it as ROOKERY_CALL_ID.
	Key        string       `json:"key"`
	ToolCallID string       `json:"tool_call_id"`
	Tool       string       `json:"tool"`
	Arguments  string       `json:"arguments"`
	Workspace  WorkspaceRef `json:"workspace,omitzero"`
	TimeoutMS  int64        `json:"timeout_ms,omitempty"`
	MaxOutput  int          `json:"max_output_length,omitempty"`
	Epoch      uint64       `json:"epoch"`
}

// A Claim takes a dispatch: a worker's, or with Revoked the owner's, so that no
// worker may take it any more. The first one stored wins.
type Claim struct {
	Worker  ID        `json:"worker,omitempty"`
	Boot    string    `json:"boot"`
	At      time.Time `json:"at"`
	Revoked bool      `json:"revoked,omitempty"`
	Reason  string    `json:"reason,omitempty"`
}

// A Result is the terminal record of a dispatch, written by its claimant.
type Result struct {
	Worker     ID         `json:"worker"`
	Boot       string     `json:"boot"`
	Output     string     `json:"output"`
	Images     []string   `json:"images,omitempty"`
	StopReason StopReason `json:"stop_reason"`
	// Reason is exited, timeout, killed, oom, output_limit, disk_limit or worker_stopped.
	Reason    string    `json:"reason,omitempty"`
	Resources Resources `json:"resources,omitzero"`
	Sandbox   string    `json:"sandbox,omitempty"`
}

// Resources are what a call used.
type Resources struct {
	CPU     time.Duration `json:"cpu_ns,omitempty"`
	Wall    time.Duration `json:"wall_ns,omitempty"`
	PeakMem int64         `json:"peak_mem_bytes,omitempty"`
}

// A ToolDelta is a piece of a running call's output. Offset is its place in the
// output, in bytes.
type ToolDelta struct {
	Boot   string `json:"boot"`
	Offset int    `json:"offset"`
	Text   string `json:"text"`
}

// A Heartbeat tells of a worker every 2 s.
type Heartbeat struct {
	Worker   ID       `json:"worker"`
	Boot     string   `json:"boot"`
	Slots    int      `json:"slots"`
	Free     int      `json:"free"`
	Running  []string `json:"running,omitempty"` // "<session>/<dispatch>"
	Draining bool     `json:"draining,omitempty"`
	// Sessions is how many are open.
	Sessions int `json:"sessions,omitempty"`
	// Background lists commands that outlive their calls.
	Background []Background `json:"background,omitempty"`
}

// A Background is a command that goes on after its call has returned. It ends with
// its session.
type Background struct {
	Session ID        `json:"session"`
	ID      string    `json:"id"`
	Command string    `json:"command"` // its beginning
	Since   time.Time `json:"since"`
}

// A WorkerInfo is how a worker signs on.
type WorkerInfo struct {
	Worker  ID                `json:"worker"`
	Boot    string            `json:"boot"`
	Host    string            `json:"host"`
	User    string            `json:"user,omitempty"`
	Version string            `json:"version,omitempty"`
	Pools   []ID              `json:"pools"`
	Labels  map[string]string `json:"labels,omitempty"`
	Slots   int               `json:"slots"`
	Sandbox string            `json:"sandbox"`
	// Allow lists directories whose subdirectories may be named as workspaces.
	Allow []string `json:"allow,omitempty"`
	Tools []Tool   `json:"tools"`
	// Private keeps workspaces of other sessions away: the worker of a run.
	Private bool `json:"private,omitempty"`
	// Refused says why no session gets this worker: set by the orchestrator.
	Refused string `json:"refused,omitempty"`
}

// A Control asks one worker (rk.ctl.<wid>.<verb>).
type Control struct {
	Session  ID       `json:"session,omitempty"`
	Dispatch []string `json:"dispatch,omitempty"`
	// Workspace is what to adopt.
	Workspace WorkspaceRef `json:"workspace,omitzero"`
	Reason    string       `json:"reason,omitempty"`
	// Path is a file of the workspace to read (read).
	Path string `json:"path,omitempty"`
}

// A ControlReply answers it. Calls maps each dispatch to running, held (a result
// waits in the journal) or unknown.
type ControlReply struct {
	OK        bool              `json:"ok"`
	Error     string            `json:"error,omitempty"`
	Boot      string            `json:"boot,omitempty"`
	Calls     map[string]string `json:"calls,omitempty"`
	Workspace WorkspaceRef      `json:"workspace,omitzero"`
	// Gone reports that a workspace which the worker made is not there any more (adopt).
	Gone bool `json:"gone,omitempty"`
	// Content is the file's text (read); empty when there is none.
	Content string     `json:"content,omitempty"`
	Info    *Heartbeat `json:"info,omitempty"`
}

// Arguments reads a call's arguments, which have to be one JSON object (L052).
func Arguments(s string) (map[string]json.RawMessage, error) {
	var m map[string]json.RawMessage
	if err := json.Unmarshal([]byte(s), &m); err != nil {
		return nil, err
	}
	if m == nil {
		return nil, errors.New("null is not an object")
	}
	return m, nil
}
