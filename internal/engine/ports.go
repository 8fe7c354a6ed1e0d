package engine

import (
	"context"
	"errors"
	"time"

	"rookery/protocol"
)

// Causes with which the engine cancels what it started.
var (
	// ErrInterrupted is the cause after an abort.
	ErrInterrupted = errors.New("interrupted")
	// ErrAbandoned is the cause when the consumer left the loop: nothing more is
	// emitted and nothing is said about it.
	ErrAbandoned = errors.New("run abandoned")
)

// A Model answers one request. It is stateless: the whole history comes with
// every call.
type Model interface {
	// Stream makes one attempt and never retries. It calls emit for each
	// partial and each complete payload in generation order (L034), from one
	// goroutine at a time; emit may block, and a non-nil error from it ends the
	// attempt. Before it returns, every segment it started has its stop and its
	// complete payload (L082). It does not panic and does not fail otherwise
	// than by its Outcome (L013). After ctx is done it returns soon, with
	// aborted, or completed when the finish reason had arrived (L080).
	Stream(ctx context.Context, req Request, emit func(protocol.Payload) error) Outcome
}

// A Request is what one attempt asks.
type Request struct {
	System string
	Tools  []protocol.ToolSpec
	// History holds the inputs and replies of committed turns, Input the
	// user-side messages that are new.
	History []protocol.Message
	Input   []protocol.Message
	// Thinking is none, low, medium, high or xhigh; empty = the model's default.
	Thinking string
	// MaxTokens caps the answer; 0 = the model's default.
	MaxTokens int
	// IDs makes the ids of new calls unique in the session (L033).
	IDs *protocol.CallIDs
	// Session and Number name the request in logs and headers.
	Session string
	Number  int
}

// An Outcome says how an attempt ended.
type Outcome struct {
	Status protocol.StopReason
	// Message says why, for people, when Status is not completed.
	Message string
	// Code refines a failure: auth or model; else empty.
	Code protocol.Code
	// RetryAfter is what the provider asked for; 0 when it did not.
	RetryAfter time.Duration
	// Usage is nil when the provider reported none and nothing was estimated.
	Usage     *protocol.Usage
	Reasoning int64
	Estimated bool
	// Finish is the provider's finish reason; "length" matters to the loop (L057).
	Finish string
	// ContextOverflow reports that the provider found the request too long.
	ContextOverflow bool
}

// A Call is a complete tool call that was allowed.
type Call struct {
	protocol.ToolCall
	// Request is the number of the request in the session and Position the
	// call's place in its reply, from 0; together they name the call.
	Request, Position int
	// Prior is the dispatch that another process recorded for the call; the
	// executor learns its fate before it makes another attempt. nil for a new call.
	Prior *protocol.CallDispatched
}

// An Output is what a call returned, notes included.
type Output struct {
	Text   string
	Images []string
	Stop   protocol.StopReason
}

// An Executor runs tool calls.
type Executor interface {
	// Execute runs the call to its end. emit streams a piece of the output; the
	// pieces joined are a prefix of Output.Text. emit may block; it must not be
	// called after Execute returned. When ctx is done with cause ErrInterrupted
	// it stops the call and returns what there is; the engine waits for its
	// grace and then goes on without it (L067). A panic becomes a failed output
	// (L050).
	Execute(ctx context.Context, call Call, emit func(piece string)) Output
}

// A Verdict is the decision on a call. By is user, policy or timeout.
type Verdict struct {
	Decision protocol.Decision
	By       string
	Reason   string
}

// An Approver decides on calls.
type Approver interface {
	// Approve decides on one call. When a person must decide it calls ask, once,
	// and the engine emits the approval_request before ask returns; then it waits. An
	// error or a panic counts as deny (L010). When ctx is done the answer is
	// not used.
	Approve(ctx context.Context, call Call, ask func(Ask)) (Verdict, error)
}

// An Ask is what an approval_request tells beside the call.
type Ask struct {
	Permission protocol.Permission
	Deadline   *time.Time
}
