package trace

import "rookery/protocol"

// A State is what a fold knows of a session. Its first part is what the next task
// starts from, Task what a takeover of a running one needs besides.
type State struct {
	// Meta is the session_meta of the current context; nil for a session that
	// never ran.
	Meta *protocol.SessionMeta
	// Context is the number of the current context; Rotate says that the next
	// write opens a new one (L130).
	Context int
	Rotate  bool
	// Summary is held for the first input of the next context (L119).
	Summary string
	// History holds inputs and replies of the committed turns of this context.
	History []protocol.Message
	// Pending is what goes out ahead of the next prompt when no task runs (L069-L077, L159, L160).
	Pending []protocol.Message
	// IDs are the call ids that the session has seen (L033).
	IDs *protocol.CallIDs
	// Usage is the running total of the session, ContextTokens the context
	// figure (L112), Turns the committed requests of this context (L113),
	// Requests how many request_begin the session has had.
	Usage         protocol.Usage
	ContextTokens int64
	Turns         int
	Requests      int
	// Task is the task that has begun and not ended; nil when idle.
	Task *Task
}

// A Task is a running task as its records show it.
type Task struct {
	protocol.TaskBegin
	// Turns is how many turns it has begun.
	Turns int
	// Steering holds accepted texts that no request got, in order (L092).
	Steering []protocol.SteeringQueued
	// AbortRequested and Aborted tell of an accepted abort and of its last word.
	AbortRequested *protocol.AbortRequested
	Aborted        *protocol.Abort
	// Prompted says that the prompt was stored, Denied that a call was denied
	// because nobody could be asked.
	Prompted, Denied bool
	// Open says that a turn has begun which no other has followed; Requested that
	// its request has not ended. Last is the status of its last ended request,
	// Lost that this one ended with its orchestrator.
	Open, Requested, Lost bool
	Last                  protocol.StopReason
	// Input is the open turn's original input; Attempts its failed attempts;
	// Reply and Calls the running or committed one.
	Input    []protocol.Message
	Attempts []Attempt
	Reply    []protocol.Message
	Calls    []*Call
	// Next is user-side input that no request got yet (prompt, steering).
	Next []protocol.Message
	// Received is what was left of the reply when a person began to be asked.
	Received *protocol.ReplyReceived
	// Compaction is one that has begun and not ended; CompactionRequest says that
	// its request has not, either. Compacted is one that has ended with no turn
	// since, Final that the turn before it made no call.
	Compaction        *protocol.CompactionBegin
	CompactionRequest bool
	Compacted, Final  bool
	// FailedCompactions counts those of this task.
	FailedCompactions int
	// Takeovers counts those of the running request.
	Takeovers int
	// CapNote is true when the note of L063 is the last thing said.
	CapNote bool
}

// An Attempt is one that failed and is told in [turn_retried].
type Attempt struct {
	Reply []protocol.Message
	Calls []*Call
	// Lost marks one that ended with its orchestrator and does not count (L099).
	Lost bool
}

// Outputs returns the recorded outputs, in call order.
func (a Attempt) Outputs() []protocol.Message {
	var ms []protocol.Message
	for _, c := range a.Calls {
		if c.Output != nil {
			ms = append(ms, *c.Output)
		}
	}
	return ms
}

// A Call is a completed tool call and what is known of it.
type Call struct {
	protocol.ToolCall
	// Request and Position name the call: number of its request in the session,
	// place among the calls of the reply.
	Request, Position int
	Asked             bool
	Decision          *protocol.ApprovalDecision
	Dispatched        *protocol.CallDispatched
	Fate              *protocol.CallFate
	Output            *protocol.Message
}
