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

// Waiting of the tools that look after background commands.
const (
	defaultWait = time.Second
	signalWait  = time.Second
	// lastMoment is kept of a call's time, so that waiting is no failure.
	lastMoment = 500 * time.Millisecond
)

type inputCommand struct{}

// Spec implements Tool.
func (inputCommand) Spec() protocol.Tool {
	return spec("input_command", "Type to a background command and return what it has printed since it was last read. "+
		"Without input it only reads. It returns when the command has ended, at the latest after wait_ms. "+
		"When too much was printed meanwhile, its middle is left out.", `{
		"type": "object",
		"properties": {
			"id": {"type": "string", "minLength": 1, "description": "The command's id, as exec_command told it"},
			"input": {"type": "string", "description": "Text to type, with its line ends; \\u0003 is Ctrl-C on a terminal"},
			"eof": {"type": "boolean", "description": "End the input after that"},
			"wait_ms": {"type": "integer", "minimum": 0, "maximum": 604800000, "description": "How long to wait for the command; default 1000"},
			"rows": {"type": "integer", "minimum": 1, "maximum": 1000, "description": "Rows of the terminal from now on; default 24"},
			"cols": {"type": "integer", "minimum": 1, "maximum": 1000, "description": "Its columns; default 80"}
		},
		"required": ["id"],
		"additionalProperties": false
	}`)
}

type inputArgs struct {
	ID     string `json:"id"`
	Input  string `json:"input"`
	EOF    bool   `json:"eof"`
	WaitMS *int64 `json:"wait_ms"`
	Rows   uint16 `json:"rows"`
	Cols   uint16 `json:"cols"`
}

// Run implements Tool. An interrupt ends the waiting, not the command.
func (inputCommand) Run(ctx context.Context, c *Call, w io.Writer) (Report, error) {
	var args inputArgs
	if err := json.Unmarshal(c.Arguments, &args); err != nil {
		return Report{}, fmt.Errorf("read the arguments: %w", err)
	}
	cmd, err := take(c, args.ID, w)
	if err != nil {
		return Report{}, err
	}
	defer cmd.out.detach()
	if args.Rows > 0 || args.Cols > 0 {
		if err := cmd.call.Resize(sizeOf(args.Rows, args.Cols)); err != nil {
			return Report{}, fmt.Errorf("command %s: %w", args.ID, err)
		}
	}
	wait := args.wait(ctx)
	if args.Input != "" || args.EOF {
		if err := c.Session.typeTo(ctx, cmd, args, wait); err != nil {
			return Report{}, err
		}
	}
	if wait > 0 {
		cmd.await(ctx, wait)
	}
	return tell(ctx, c.Session, cmd)
}

// noteRoom is what of a call's output is left for notes, in characters.
const noteRoom = 500

// take makes w the reader of a background command.
func take(c *Call, id string, w io.Writer) (*command, error) {
	cmd, err := c.Session.command(id)
	if err != nil {
		return nil, err
	}
	if !cmd.out.attach(w, max(c.MaxOutput-noteRoom, noteRoom)) {
		return nil, fmt.Errorf("another call waits for command %s", id)
	}
	return cmd, nil
}

// wait is how long to wait, but not beyond the call's own end.
func (a inputArgs) wait(ctx context.Context) time.Duration {
	wait := defaultWait
	if a.WaitMS != nil {
		wait = time.Duration(*a.WaitMS) * time.Millisecond
	}
	if end, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(end)-lastMoment)
	}
	return max(wait, 0)
}

// tell says how it stands with a background command, and forgets one that has ended.
func tell(ctx context.Context, s *Session, cmd *command) (Report, error) {
	if cmd.ended() {
		s.forget(cmd)
		rep, err := cmd.report(nil)
		rep.Notes = append([]string{fmt.Sprintf("[command %s has ended]", cmd.id)}, rep.Notes...)
		return rep, err
	}
	if ctx.Err() != nil {
		return Report{}, context.Cause(ctx)
	}
	return Report{Notes: []string{fmt.Sprintf("[command %s is still running]", cmd.id)}}, nil
}

// typeTo writes to a command's input. A command that does not read can't hold the
// call: what it has not read then goes on being offered to it.
func (s *Session) typeTo(ctx context.Context, cmd *command, args inputArgs, wait time.Duration) error {
	stdin := cmd.call.Stdin()
	if stdin == nil {
		return fmt.Errorf("command %s has no input: start it with stdin or tty", cmd.id)
	}
	select {
	case cmd.typing <- struct{}{}:
	default:
		return fmt.Errorf("command %s has not read its earlier input yet", cmd.id)
	}
	typed := s.write(cmd, stdin, args.Input, args.EOF)
	timer := time.NewTimer(max(wait, signalWait))
	defer timer.Stop()
	select {
	case err := <-typed:
		if err != nil && !cmd.await(ctx, signalWait) {
			return fmt.Errorf("type to command %s: %w", cmd.id, err)
		}
	case <-timer.C:
	case <-cmd.done:
	case <-ctx.Done():
	}
	return nil
}

// write writes to a command's input, and returns at once; the answer tells how that
// ended. The caller has filled cmd.typing.
func (s *Session) write(cmd *command, stdin io.WriteCloser, text string, eof bool) <-chan error {
	typed := make(chan error, 1)
	if err := s.enter(); err != nil {
		<-cmd.typing
		typed <- err
		return typed
	}
	go func() { // ends with the command, at the latest: its input is closed then
		defer s.running.Done()
		_, err := io.WriteString(stdin, text)
		if eof {
			err = errors.Join(err, stdin.Close())
		}
		<-cmd.typing
		typed <- err
	}()
	return typed
}

type killCommand struct{}

// Spec implements Tool.
func (killCommand) Spec() protocol.Tool {
	return spec("kill_command", "End a background command with all its processes, or send it a signal. "+
		"Returns what it has printed since it was last read.", `{
		"type": "object",
		"properties": {
			"id": {"type": "string", "minLength": 1, "description": "The command's id, as exec_command told it"},
			"signal": {"type": "string", "enum": ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "STOP", "CONT", "KILL"], "description": "Send this instead of ending it"}
		},
		"required": ["id"],
		"additionalProperties": false
	}`)
}

// Run implements Tool.
func (killCommand) Run(ctx context.Context, c *Call, w io.Writer) (Report, error) {
	var args struct {
		ID     string `json:"id"`
		Signal string `json:"signal"`
	}
	if err := json.Unmarshal(c.Arguments, &args); err != nil {
		return Report{}, fmt.Errorf("read the arguments: %w", err)
	}
	cmd, err := take(c, args.ID, w)
	if err != nil {
		return Report{}, err
	}
	defer cmd.out.detach()
	if args.Signal == "" {
		return kill(c.Session, cmd)
	}
	if err := cmd.call.Signal(signalOf(args.Signal)); err != nil && !cmd.await(ctx, signalWait) {
		return Report{}, fmt.Errorf("command %s: %w", args.ID, err)
	}
	cmd.await(ctx, signalWait)
	return tell(ctx, c.Session, cmd)
}

// kill ends a command, which takes a second or so at most.
func kill(s *Session, cmd *command) (Report, error) {
	if cmd.ended() {
		return tell(context.Background(), s, cmd)
	}
	cmd.call.Kill(sandbox.Killed)
	<-cmd.done
	s.forget(cmd)
	s.changed()
	if cmd.err != nil {
		return Report{}, cmd.err
	}
	return Report{Notes: []string{fmt.Sprintf("[command %s was killed]", cmd.id)}, Reason: cmd.result.Reason, Usage: cmd.result.Usage}, nil
}

func signalOf(name string) syscall.Signal { return unix.SignalNum("SIG" + name) }
