package tool_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/tool"
	"rookery/protocol"
)

// A fake is a tool that does what it is told.
type fake struct {
	spec protocol.Tool
	run  func(ctx context.Context, c *tool.Call, w io.Writer) (tool.Report, error)
}

func (f fake) Spec() protocol.Tool { return f.spec }
func (f fake) Run(ctx context.Context, c *tool.Call, w io.Writer) (tool.Report, error) {
	return f.run(ctx, c, w)
}

func named(name string, run func(ctx context.Context, c *tool.Call, w io.Writer) (tool.Report, error)) fake {
	return fake{spec: protocol.Tool{ToolSpec: protocol.ToolSpec{Name: name}}, run: run}
}

func execute(t *testing.T, ctx context.Context, f fake, call protocol.Call) protocol.Result {
	t.Helper()
	r, err := tool.NewRegistry(f)
	require.NoError(t, err)
	call.Tool, call.Arguments = f.spec.Name, "{}"
	return r.Execute(ctx, nil, call, func(string) {})
}

func TestExecute_UnknownToolAndBadArguments(t *testing.T) { // L052
	b := setup(t)
	res := b.run(b.call("nosuch", object{}))
	require.Equal(t, "Unknown tool: nosuch", res.Output)
	require.Equal(t, protocol.Failed, res.StopReason)

	for args, want := range map[string]string{
		`[1]`:                                  "not a JSON object",
		`"x"`:                                  "not a JSON object",
		`{"cmd":`:                              "not JSON",
		`{}`:                                   "missing: cmd",
		`{"cmd":7}`:                            `cmd: type: 7 has type "integer", want "string"`,
		`{"cmd":"touch ran","timeout_ms":"5"}`: `timeout_ms: type: 5 has type "string", want "integer"`,
		`{"cmd":"touch ran","timeout_ms":0}`:   "nothing was run: timeout_ms: minimum: 0 is less than 1",
		`{"cmd":"touch ran","command":"x"}`:    "not known: command",
	} {
		call := b.call("exec_command", object{})
		call.Arguments = args
		res := b.run(call)
		require.Equal(t, protocol.Failed, res.StopReason)
		require.Contains(t, res.Output, want, args)
		require.Contains(t, res.Output, "exec_command")
		require.NotContains(t, res.Output, ".000")
	}
	require.NotContains(t, b.ok("list_files", object{}), "ran")
}

func TestExecute_BrokenToolIsOneFailedOutput(t *testing.T) { // L050
	res := execute(t, t.Context(), named("x", func(context.Context, *tool.Call, io.Writer) (tool.Report, error) { panic("boom") }), protocol.Call{})
	require.Equal(t, "[tool error] boom", res.Output)
	require.Equal(t, protocol.Failed, res.StopReason)
}

func TestExecute_SilentToolHasOutput(t *testing.T) { // L051
	res := execute(t, t.Context(), named("x", func(context.Context, *tool.Call, io.Writer) (tool.Report, error) { return tool.Report{}, nil }), protocol.Call{})
	require.Equal(t, "[no output]", res.Output)
	require.Equal(t, protocol.Completed, res.StopReason)
}

func TestExecute_ErrorFollowsOutput(t *testing.T) {
	res := execute(t, t.Context(), named("x", func(_ context.Context, _ *tool.Call, w io.Writer) (tool.Report, error) {
		_, _ = io.WriteString(w, "half")
		return tool.Report{Images: []string{"data:"}}, errors.New("no more \x00")
	}), protocol.Call{})
	require.Equal(t, "half\nno more \ufffd", res.Output)
	require.Equal(t, protocol.Failed, res.StopReason)
	require.Empty(t, res.Images, "images only on completed") // L055
}

func TestExecute_TimeoutKeepsOutput(t *testing.T) { // L053
	wait := named("x", func(ctx context.Context, _ *tool.Call, w io.Writer) (tool.Report, error) {
		_, _ = io.WriteString(w, "so far")
		<-ctx.Done()
		return tool.Report{}, context.Cause(ctx)
	})
	for name, c := range map[string]struct {
		call, tool int64
		want       int64
	}{"call": {200, 900, 200}, "tool": {0, 900, 900}, "default": {0, 0, 120000}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				wait.spec.TimeoutMS = c.tool
				res := execute(t, t.Context(), wait, protocol.Call{TimeoutMS: c.call})
				require.Equal(t, "so far\n"+protocol.NoteTimeout(c.want), res.Output)
				require.Equal(t, protocol.Failed, res.StopReason)
				require.Equal(t, "timeout", res.Reason)
				require.Equal(t, time.Duration(c.want)*time.Millisecond, time.Since(began))
				require.Equal(t, time.Since(began), res.Resources.Wall)
			})
		})
	}
}

func TestExecute_NegativeTimeoutIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		res := execute(t, t.Context(), named("x", func(context.Context, *tool.Call, io.Writer) (tool.Report, error) {
			time.Sleep(24 * time.Hour)
			return tool.Report{}, nil
		}), protocol.Call{TimeoutMS: -1})
		require.Equal(t, protocol.Completed, res.StopReason)
	})
}

func TestExecute_InterruptWinsOverTimeout(t *testing.T) { // L055, L056
	for cause, want := range map[error]protocol.Result{
		tool.ErrInterrupted: {Output: "a\n" + protocol.NoteInterrupted, StopReason: protocol.Aborted, Reason: "killed"},
		tool.ErrStopped:     {Output: "a\n[tool error] the worker was stopped before the tool finished", StopReason: protocol.Failed, Reason: "worker_stopped"},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			res := execute(t, ctx, named("x", func(ctx context.Context, _ *tool.Call, w io.Writer) (tool.Report, error) {
				_, _ = io.WriteString(w, "a")
				cancel(cause)
				time.Sleep(time.Second) // the timeout passes as well
				return tool.Report{}, context.Cause(ctx)
			}), protocol.Call{TimeoutMS: 10})
			want.Resources.Wall = time.Second
			require.Equal(t, want, res)
		})
	}
}

func TestExecute_NothingRunsAfterCancel(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(tool.ErrInterrupted)
	res := execute(t, ctx, named("x", func(context.Context, *tool.Call, io.Writer) (tool.Report, error) { panic("ran") }), protocol.Call{})
	require.Equal(t, protocol.NoteInterrupted, res.Output)
}

func TestExecute_CapKeepsHeadAndNotes(t *testing.T) { // L054
	f := named("x", func(_ context.Context, _ *tool.Call, w io.Writer) (tool.Report, error) {
		_, _ = io.WriteString(w, "äöüäöüäöü")
		return tool.Report{Notes: []string{"[exit code: 3]"}}, nil
	})
	res := execute(t, t.Context(), f, protocol.Call{MaxOutput: 4})
	require.Equal(t, "äöüä\n[output truncated: exceeded 4 chars]\n[exit code: 3]", res.Output)
}

func TestExecute_ResultsAlwaysFitTheWire(t *testing.T) {
	for _, text := range []string{"\x1b", "\xff", "😀", "<", "a\xff"} {
		f := named("x", func(_ context.Context, _ *tool.Call, w io.Writer) (tool.Report, error) {
			_, _ = io.WriteString(w, strings.Repeat(text, 1_000_000))
			return tool.Report{}, nil
		})
		res := execute(t, t.Context(), f, protocol.Call{MaxOutput: -1})
		require.LessOrEqual(t, len(protocol.Encode(res)), protocol.MaxBody, "%q", text)
	}
	img := named("x", func(context.Context, *tool.Call, io.Writer) (tool.Report, error) {
		return tool.Report{Images: []string{strings.Repeat("A", protocol.MaxBody)}}, nil
	})
	res := execute(t, t.Context(), img, protocol.Call{})
	require.Equal(t, "[images left out: too large]", res.Output)
	require.Empty(t, res.Images)
}

func TestRegistry_RefusesBadTools(t *testing.T) {
	bad := named("bad", nil)
	bad.spec.Parameters = json.RawMessage(`{"type": 7}`)
	remote := named("remote", nil)
	remote.spec.Parameters = json.RawMessage(`{"$ref": "file:///etc/passwd"}`)
	_, err := tool.NewRegistry(bad, remote, named("a", nil), named("a", nil), named("", nil))
	for _, want := range []string{"tool bad", "tool remote", `"a" is empty or taken`, `"" is empty or taken`} {
		require.ErrorContains(t, err, want)
	}
}

func TestBuiltin_SpecsAreWhole(t *testing.T) {
	r, err := tool.NewRegistry(tool.Builtin()...)
	require.NoError(t, err)
	var names []string
	for _, s := range r.Specs() {
		names = append(names, s.Name)
		require.NotEmpty(t, s.Description)
		require.True(t, s.Workspace)
		require.True(t, r.Workspace(s.Name))
		require.True(t, json.Valid(s.Parameters))
	}
	require.Equal(t, []string{"exec_command", "input_command", "kill_command", "read_file", "write_file", "edit_file", "list_files", "search_files", "read_image"}, names)
}
