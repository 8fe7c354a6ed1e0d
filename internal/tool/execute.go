package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"rookery/internal/sandbox"
	"rookery/protocol"
)

// Execute runs one call to its end and never fails otherwise than by its Result,
// whose Worker and Boot are left to the caller. emit gets the output in pieces, in
// order, from one goroutine at a time, and not after Execute has returned; it
// must not block for long. Cancel ctx with cause ErrInterrupted or ErrStopped.
func (r *Registry) Execute(ctx context.Context, s *Session, call protocol.Call, emit func(piece string)) protocol.Result {
	began := time.Now()
	e, ok := r.tools[call.Tool]
	if !ok {
		return refused(emit, protocol.NoteUnknownTool(call.Tool))
	}
	if err := e.schema.check(call.Arguments); err != nil {
		return refused(emit, fmt.Sprintf("The arguments of %s are not valid, nothing was run: %v", call.Tool, err))
	}
	if e.spec.Workspace && s == nil {
		return refused(emit, protocol.NoteError("the tool needs a workspace"))
	}
	if limit := timeout(call.TimeoutMS, e.spec.TimeoutMS); limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, timeoutError{limit})
		defer cancel()
	}
	files := s
	if r.Sandbox(call.Tool) { // what it leaves there goes with the call
		files = nil
	}
	out := newSink(ctx, files, call.Dispatch, maxOutput(call.MaxOutput, e.spec.MaxOutput), emit)
	c := &Call{Key: call.Key, Arguments: json.RawMessage(call.Arguments), MaxOutput: out.text.Max, Session: s}
	report, err := run(ctx, e, c, out)
	res := out.finish(report, err)
	res.Resources.Wall = time.Since(began)
	return res
}

// run shields the worker from a tool that breaks (L050).
func run(ctx context.Context, t Tool, c *Call, out *sink) (rep Report, err error) {
	defer func() {
		if p := recover(); p != nil {
			rep, err = Report{}, brokenError{p}
		}
	}()
	if err := context.Cause(ctx); err != nil {
		return Report{}, err
	}
	return t.Run(ctx, c, out)
}

type brokenError struct{ cause any }

func (e brokenError) Error() string { return protocol.NoteError(fmt.Sprint(e.cause)) }

// refused is the result of a call that was not run.
func refused(emit func(string), text string) protocol.Result {
	text = protocol.Clean(text)
	emit(text)
	return protocol.Result{Output: text, StopReason: protocol.Failed}
}

// NotRun is the result of a call that could not be run because of err, or because
// ctx is done. emit gets its text.
func NotRun(ctx context.Context, err error, emit func(piece string)) protocol.Result {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	} else {
		err = errors.New(protocol.NoteError(err.Error()))
	}
	return newSink(ctx, nil, "", DefaultMaxOutput, emit).finish(Report{}, err)
}

// verdict tells how a call ended: interrupt, then timeout, then the tool's own
// error, then its report (L055).
func verdict(rep Report, err error) (stop protocol.StopReason, reason sandbox.Reason, notes []string) {
	var late timeoutError
	switch {
	case err == nil && rep.Failed:
		return protocol.Failed, rep.Reason, rep.Notes
	case err == nil:
		return protocol.Completed, rep.Reason, rep.Notes
	case errors.Is(err, ErrInterrupted):
		return protocol.Aborted, sandbox.Killed, []string{protocol.NoteInterrupted}
	case errors.Is(err, ErrStopped):
		return protocol.Failed, sandbox.WorkerStopped, []string{protocol.NoteError("the worker was stopped before the tool finished")}
	case errors.As(err, &late):
		return protocol.Failed, sandbox.TimedOut, append(rep.Notes, late.Error())
	case errors.Is(err, context.Canceled), errors.Is(err, sandbox.ErrClosed):
		return protocol.Failed, sandbox.Killed, []string{protocol.NoteError("the session was closed before the tool finished")}
	default:
		return protocol.Failed, rep.Reason, append(rep.Notes, protocol.Clean(err.Error()))
	}
}

// timeout picks a call's limit: its own, else the tool's, else the default; 0 is none.
func timeout(call, tool int64) time.Duration {
	for _, ms := range []int64{call, tool} {
		switch {
		case ms < 0:
			return 0
		case ms > 0:
			return time.Duration(ms) * time.Millisecond
		}
	}
	return DefaultTimeout
}

// maxOutput picks a call's cap in characters, never above what a result can carry.
func maxOutput(call, tool int) int {
	for _, n := range []int{call, tool} {
		switch {
		case n < 0:
			return hardMaxOutput
		case n > 0:
			return min(n, hardMaxOutput)
		}
	}
	return DefaultMaxOutput
}
