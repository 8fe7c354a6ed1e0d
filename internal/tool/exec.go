package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rookery/internal/sandbox"
	"rookery/protocol"
)

// maxCommand is the longest command line; the kernel refuses longer arguments.
const maxCommand = 128<<10 - 1

type execCommand struct{}

// Spec implements Tool.
func (execCommand) Spec() protocol.Tool {
	return spec("exec_command", "Run a shell command in the workspace and return what it prints (stdout and stderr together). "+
		"It has no input. A non-zero exit status is noted at the end. When the command ends, processes it left behind are killed.", `{
		"type": "object",
		"properties": {
			"cmd": {"type": "string", "minLength": 1, "description": "Command for bash -c (sh where there is no bash)"},
			"cwd": {"type": "string", "description": "Working directory, in the workspace; default its root"},
			"timeout_ms": {"type": "integer", "minimum": 1, "description": "Kill the command after this time; the limit of the tool still holds"}
		},
		"required": ["cmd"],
		"additionalProperties": false
	}`)
}

type execArgs struct {
	Cmd       string `json:"cmd"`
	Cwd       string `json:"cwd"`
	TimeoutMS int64  `json:"timeout_ms"`
}

// Run implements Tool.
func (execCommand) Run(ctx context.Context, c *Call, w io.Writer) (Report, error) {
	var args execArgs
	if err := json.Unmarshal(c.Arguments, &args); err != nil {
		return Report{}, fmt.Errorf("read the arguments: %w", err)
	}
	if len(args.Cmd) > maxCommand {
		return Report{}, fmt.Errorf("cmd has %d bytes, at most %d are possible: write it to a file first and run that", len(args.Cmd), maxCommand)
	}
	if args.TimeoutMS > 0 && args.TimeoutMS < int64(1<<40) {
		limit := time.Duration(args.TimeoutMS) * time.Millisecond
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, timeoutError{limit})
		defer cancel()
	}
	call, err := shell(ctx, c, args)
	if err != nil {
		return Report{}, fmt.Errorf("the command was not run: %w", err)
	}
	return c.Session.follow(call, w).await(ctx)
}

// shell starts the command under bash, or sh where there is none.
func shell(ctx context.Context, c *Call, args execArgs) (sandbox.Call, error) {
	spec := sandbox.CallSpec{Env: []string{"ROOKERY_CALL_ID=" + c.Key}, Dir: args.Cwd, Merge: true}
	for _, sh := range []string{"bash", "sh"} {
		spec.Argv = []string{sh, "-c", args.Cmd}
		call, err := c.Session.Start(ctx, spec)
		if !errors.Is(err, sandbox.ErrNotFound) {
			return call, err
		}
	}
	return nil, fmt.Errorf("%w: neither bash nor sh", sandbox.ErrNotFound)
}

// A command is a process tree whose output is being read. The session owns it,
// not the tool call that started it, which may return before the command ends.
type command struct {
	call sandbox.Call
	done chan struct{} // closed by the reader, when all below is final

	result sandbox.Result
	err    error
	limit  int64 // bytes it may print
	over   bool  // it printed as much
}

// follow reads what call prints into w until it ends.
func (s *Session) follow(call sandbox.Call, w io.Writer) *command {
	c := &command{call: call, limit: s.printed, done: make(chan struct{})}
	s.commands.Go(func() {
		defer close(c.done)
		c.read(w)
		c.result, c.err = call.Wait()
	})
	return c
}

func (c *command) read(w io.Writer) {
	stdout, _ := c.call.Output()
	buf := make([]byte, 32<<10)
	for left := c.limit; ; {
		n, err := stdout.Read(buf)
		if !c.over {
			kept := min(int64(n), left)
			_, _ = w.Write(buf[:kept]) // a sink does not fail
			left -= kept
		}
		if err != nil {
			return
		}
		if left == 0 && !c.over {
			c.over = true
			c.call.Kill(sandbox.OutputLimit)
		}
	}
}

// await returns when the command has ended; it kills it when ctx is done.
func (c *command) await(ctx context.Context) (Report, error) {
	select {
	case <-c.done:
	case <-ctx.Done():
		c.call.Kill(killReason(context.Cause(ctx)))
		<-c.done
	}
	rep := Report{Reason: c.result.Reason, Usage: c.result.Usage}
	switch r := c.result; {
	case c.err != nil:
		return rep, c.err
	case r.Reason == sandbox.Exited:
		rep.Notes = exitNotes(r)
	case c.over:
		rep.Failed, rep.Notes = true, []string{fmt.Sprintf("[output limit: killed after %d bytes]", c.limit)}
	case context.Cause(ctx) != nil:
		return rep, context.Cause(ctx)
	default:
		rep.Failed, rep.Notes = true, []string{"[killed: " + string(r.Reason) + "]"}
	}
	return rep, nil
}

func killReason(cause error) sandbox.Reason {
	var late timeoutError
	switch {
	case errors.As(cause, &late):
		return sandbox.TimedOut
	case errors.Is(cause, ErrStopped):
		return sandbox.WorkerStopped
	default:
		return sandbox.Killed
	}
}

func exitNotes(r sandbox.Result) []string {
	switch {
	case r.Signal != 0:
		return []string{fmt.Sprintf("[killed by signal: %s]", unix.SignalName(syscall.Signal(r.Signal)))}
	case r.Exit != 0:
		return []string{fmt.Sprintf("[exit code: %d]", r.Exit)}
	}
	return nil
}
