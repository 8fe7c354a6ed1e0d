package tool_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/sandbox"
	"rookery/internal/tool"
	"rookery/protocol"
)

// printed is what commands may print in these tests.
const printed = 4 << 20

// A bench is an open session with the built-in tools.
type bench struct {
	t       *testing.T
	dir     string
	scratch string
	tools   *tool.Registry
	session *tool.Session
}

func setup(t *testing.T, more ...tool.Tool) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir(), scratch: t.TempDir()}
	s, err := sandbox.NewNone(tool.Ops()).Open(t.Context(), sandbox.SessionSpec{ID: "s", Workspace: b.dir, Scratch: b.scratch})
	require.NoError(t, err)
	b.session = tool.NewSession(s, sandbox.Limits{Output: printed})
	t.Cleanup(func() { require.NoError(t, b.session.Close()) })
	b.tools, err = tool.NewRegistry(append(tool.Builtin(), more...)...)
	require.NoError(t, err)
	return b
}

type object map[string]any

func (b *bench) call(name string, args any) protocol.Call {
	b.t.Helper()
	raw, err := json.Marshal(args)
	require.NoError(b.t, err)
	return protocol.Call{Session: "s", Dispatch: "1-0-1", Key: "s/1-0", Tool: name, Arguments: string(raw)}
}

// run runs a call and holds the stream against the result.
func (b *bench) run(call protocol.Call) protocol.Result {
	b.t.Helper()
	return b.runIn(b.t.Context(), call, func(string) {})
}

func (b *bench) runIn(ctx context.Context, call protocol.Call, seen func(all string)) protocol.Result {
	b.t.Helper()
	var streamed strings.Builder
	res := b.tools.Execute(ctx, b.session, call, func(piece string) {
		streamed.WriteString(piece)
		seen(streamed.String())
	})
	require.Equal(b.t, res.Output, streamed.String(), "the stream is the output")
	require.NotEmpty(b.t, res.Output)
	require.Equal(b.t, protocol.Clean(res.Output), res.Output)
	return res
}

// ok runs a call that completes and returns its output.
func (b *bench) ok(name string, args any) string {
	b.t.Helper()
	res := b.run(b.call(name, args))
	require.Equal(b.t, protocol.Completed, res.StopReason, res.Output)
	return res.Output
}

// fails runs a call that fails and returns its output.
func (b *bench) fails(name string, args any) string {
	b.t.Helper()
	res := b.run(b.call(name, args))
	require.Equal(b.t, protocol.Failed, res.StopReason, res.Output)
	return res.Output
}

func (b *bench) write(name, text string) {
	b.t.Helper()
	p := filepath.Join(b.dir, name)
	require.NoError(b.t, os.MkdirAll(filepath.Dir(p), 0o755))
	require.NoError(b.t, os.WriteFile(p, []byte(text), 0o644))
}

func (b *bench) read(name string) string {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(b.dir, name))
	require.NoError(b.t, err)
	return string(text)
}
