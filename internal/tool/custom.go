package tool

import (
	"context"
	"fmt"
	"io"

	"rookery/internal/sandbox"
	"rookery/protocol"
)

// A customTool is a command that gets the arguments on its standard input. What it
// prints on standard output is the output.
type customTool struct {
	spec protocol.Tool
	argv []string
}

// Spec implements Tool.
func (t customTool) Spec() protocol.Tool { return t.spec }

// Run implements Tool. It needs a session also when the tool needs no workspace.
func (t customTool) Run(ctx context.Context, c *Call, w io.Writer) (Report, error) {
	if c.Session == nil {
		return Report{}, fmt.Errorf("%s needs a sandbox to run in", t.spec.Name)
	}
	spec := sandbox.CallSpec{Argv: t.argv, Env: []string{"ROOKERY_CALL_ID=" + c.Key}, Stdin: true}
	cmd, err := c.Session.launch(ctx, spec, &console{to: w})
	if err != nil {
		return Report{}, fmt.Errorf("%s was not run: %w", t.spec.Name, err)
	}
	if stdin := cmd.call.Stdin(); stdin != nil {
		cmd.typing <- struct{}{}
		c.Session.write(cmd, stdin, string(c.Arguments), true) // a program need not read them
	}
	if !cmd.await(ctx, 0) {
		cmd.call.Kill(killReason(context.Cause(ctx)))
		<-cmd.done
	}
	rep, err := cmd.report(context.Cause(ctx))
	if err == nil && (rep.Failed || len(rep.Notes) > 0) {
		rep.Failed = true
		rep.Notes = append([]string{protocol.Clean(string(cmd.stderr.take(errorRoom)))}, rep.Notes...)
	}
	return rep, err
}

// errorRoom is what of a failed tool's standard error the model is shown, in bytes.
const errorRoom = 4000
