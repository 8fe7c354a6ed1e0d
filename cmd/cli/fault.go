package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"rookery/client"
	"rookery/internal/bus"
	"rookery/internal/config"
	"rookery/internal/host"
	"rookery/internal/trace"
	"rookery/protocol"
)

// A fault is why a command ends without doing what it should: one line for a
// person, and what the exit status and a last task_end say.
type fault struct {
	status protocol.TaskStatus
	code   protocol.Code
	text   string // empty: it was said already
	err    error
}

func (f *fault) Error() string { return f.text }
func (f *fault) Unwrap() error { return f.err }

func (f *fault) exit() int {
	status := f.status
	if status == "" {
		status = protocol.TaskFailed
	}
	return protocol.ExitCode(status, f.code)
}

// usagef is a fault of who typed the command.
func usagef(format string, args ...any) error {
	return &fault{code: protocol.CodeUsage, text: fmt.Sprintf(format, args...)}
}

// Causes of ending a run from outside.
var (
	errInterrupted = errors.New("interrupted")
	errTimeout     = errors.New("timeout")
)

// faultOf finds what an error means for the exit status.
func faultOf(err error) *fault {
	var f *fault
	if errors.As(err, &f) {
		return f
	}
	f = &fault{text: joined(err), err: err, code: codeOf(err)}
	if errors.Is(err, errInterrupted) || errors.Is(err, errTimeout) {
		f.status = protocol.TaskAborted
	}
	if errors.Is(err, errTimeout) {
		f.code = protocol.CodeTimeout
	}
	f.text += advice(err)
	return f
}

func codeOf(err error) protocol.Code {
	var refused *client.RefusedError
	var broker *host.BrokerError
	switch {
	case errors.As(err, &refused):
		return replyCode(refused.Reply.Code)
	case errors.Is(err, config.ErrNoModel):
		return protocol.CodeModel
	case errors.Is(err, config.ErrNoKey):
		return protocol.CodeAuth
	case errors.Is(err, client.ErrNoSession), errors.Is(err, client.ErrTooLarge), errors.Is(err, host.ErrSandbox), errors.Is(err, trace.ErrNoTrace):
		return protocol.CodeUsage
	case errors.As(err, &broker), errors.Is(err, bus.ErrUnreachable), errors.Is(err, bus.ErrAuth),
		errors.Is(err, client.ErrNoOrchestrator), errors.Is(err, bus.ErrClosed), errors.Is(err, bus.ErrGone),
		errors.Is(err, context.DeadlineExceeded):
		return protocol.CodeBroker
	}
	return ""
}

// replyCode maps a refusal.
func replyCode(c protocol.ReplyCode) protocol.Code {
	switch c {
	case protocol.ReplyBadRequest, protocol.ReplyWorkspace, protocol.ReplyNotFound:
		return protocol.CodeUsage
	case protocol.ReplyModel:
		return protocol.CodeModel
	case protocol.ReplyNoOrchestrator, protocol.ReplyUse:
		return protocol.CodeBroker
	case protocol.ReplyTrace:
		return protocol.CodeTrace
	default: // a failure like any other
		return ""
	}
}

// advice says what to do about errors whose text does not.
func advice(err error) string {
	switch {
	case isNoOrchestrator(err):
		return "; start one: rookery serve, or the command orchestrator"
	case errors.Is(err, client.ErrNoSession):
		return "; rookery ls lists them"
	case errors.Is(err, bus.ErrUnreachable):
		return "; is the address right (--server, NATS_URL)?"
	case errors.Is(err, bus.ErrAuth):
		return "; check --creds, --context or the URL's user"
	}
	return ""
}

func isNoOrchestrator(err error) bool { return errors.Is(err, client.ErrNoOrchestrator) }

// joined makes one line of an error that joins several.
func joined(err error) string {
	return strings.Join(strings.Split(strings.TrimSpace(err.Error()), "\n"), "; ")
}
