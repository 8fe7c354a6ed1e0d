package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"time"
	"unicode/utf8"

	"rookery/internal/sandbox"
	"rookery/protocol"
)

// maxCommand is the longest command line; the kernel refuses longer arguments.
const maxCommand = 128<<10 - 1

// yieldAfter is when a command that can be given input returns, unless it was told.
const yieldAfter = 10 * time.Second

type execCommand struct{}

// Spec implements Tool.
func (execCommand) Spec() protocol.Tool {
	return spec("exec_command", "Run a shell command in the workspace and return what it prints (stdout and stderr together). "+
		"A non-zero exit status is noted at the end. Its standard input is empty, unless stdin or tty is set. "+
		"When the command ends, processes it left behind are killed: what is meant to stay, like a server, must be a command of its own "+
		"that goes to the background by yield_time_ms. A background command goes on until it ends, is killed or the session is closed; "+
		"input_command reads what it prints and types to it, kill_command ends it.", `{
		"type": "object",
		"properties": {
			"cmd": {"type": "string", "minLength": 1, "description": "Command for bash -c (sh where there is no bash)"},
			"cwd": {"type": "string", "description": "Working directory, in the workspace; default its root"},
			"timeout_ms": {"type": "integer", "minimum": 1, "maximum": 604800000, "description": "Kill the command after this time, in the background, too; while the call waits the limit of the tool holds as well"},
			"yield_time_ms": {"type": "integer", "minimum": 1, "maximum": 604800000, "description": "Return after this time if the command still runs, with what it printed so far and its id; it goes on in the background. Default: wait for its end, or 10000 with stdin or tty"},
			"stdin": {"type": "boolean", "description": "Keep standard input open for input_command"},
			"tty": {"type": "boolean", "description": "Give the command a terminal, for programs that need one"},
			"rows": {"type": "integer", "minimum": 1, "maximum": 1000, "description": "Rows of the terminal; default 24"},
			"cols": {"type": "integer", "minimum": 1, "maximum": 1000, "description": "Columns of the terminal; default 80"}
		},
		"required": ["cmd"],
		"additionalProperties": false
	}`)
}

type execArgs struct {
	Cmd       string `json:"cmd"`
	Cwd       string `json:"cwd"`
	TimeoutMS int64  `json:"timeout_ms"`
	YieldMS   int64  `json:"yield_time_ms"`
	Stdin     bool   `json:"stdin"`
	TTY       bool   `json:"tty"`
	Rows      uint16 `json:"rows"`
	Cols      uint16 `json:"cols"`
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
	cmd, err := shell(ctx, c, args, &console{to: w})
	if err != nil {
		return Report{}, fmt.Errorf("the command was not run: %w", err)
	}
	ended := cmd.await(ctx, args.yield())
	if !ended && ctx.Err() == nil {
		return yielded(c, cmd, args.Cmd)
	}
	cause := context.Cause(ctx)
	if !ended {
		cmd.call.Kill(killReason(cause))
		<-cmd.done
	}
	return cmd.report(cause)
}

// yielded leaves a command that still runs to the background.
func yielded(c *Call, cmd *command, line string) (Report, error) {
	if err := c.Session.keep(cmd, path.Base(c.Key), firstChars(line, 80)); err != nil {
		cmd.call.Kill(sandbox.Killed)
		<-cmd.done
		return Report{Failed: true, Reason: sandbox.Killed, Usage: cmd.result.Usage}, fmt.Errorf("[killed: %w]", err)
	}
	cmd.out.detach()
	c.Session.changed()
	return Report{Notes: []string{fmt.Sprintf("[still running as command %s: input_command reads on, kill_command ends it]", cmd.id)}}, nil
}

func (a execArgs) yield() time.Duration {
	if a.YieldMS == 0 && (a.Stdin || a.TTY) {
		return yieldAfter
	}
	return time.Duration(a.YieldMS) * time.Millisecond
}

// shell starts the command under bash, or sh where there is none.
func shell(ctx context.Context, c *Call, args execArgs, out *console) (*command, error) {
	spec := sandbox.CallSpec{
		Env: []string{"ROOKERY_CALL_ID=" + c.Key}, Dir: args.Cwd, Merge: true, Stdin: args.Stdin,
		Timeout: time.Duration(args.TimeoutMS) * time.Millisecond,
	}
	if args.TTY {
		size := sizeOf(args.Rows, args.Cols)
		spec.PTY = &size
	}
	for _, sh := range []string{"bash", "sh"} {
		spec.Argv = []string{sh, "-c", args.Cmd}
		cmd, err := c.Session.launch(ctx, spec, out)
		if !errors.Is(err, sandbox.ErrNotFound) {
			return cmd, err
		}
	}
	return nil, fmt.Errorf("%w: neither bash nor sh", sandbox.ErrNotFound)
}

// sizeOf is a terminal's size; 0 is the default.
func sizeOf(rows, cols uint16) sandbox.Size {
	return sandbox.Size{Rows: cmp.Or(rows, 24), Cols: cmp.Or(cols, 80)}
}

// firstChars is the beginning of a text on one line.
func firstChars(text string, limit int) string {
	text = oneLine(protocol.Clean(text))
	if utf8.RuneCountInString(text) > limit {
		text = string([]rune(text)[:limit-1]) + "…"
	}
	return text
}
