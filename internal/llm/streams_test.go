package llm_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/llm"
	"rookery/internal/llm/llmtest"
	"rookery/protocol"
)

// A recording is an entry of expected.json.
type recording struct {
	File      string
	Status    string
	StatusAny []string `json:"status_any"`
	Finish    *string  `json:"finish_reason"`
	Text      string
	Thinking  string
	Calls     []struct {
		ID        *string
		Name      string
		Arguments string
	} `json:"tool_calls"`
	Usage *struct {
		CacheRead  int64 `json:"cache_read"`
		CacheWrite int64 `json:"cache_write"`
		Output     int64
		Total      int64
	}
	body string
}

// A wireCase is an entry of wire-cases.json. Text, thinking and finish are checked
// where they are given.
type wireCase struct {
	Name     string
	Body     string
	Expect   []string
	Calls    [][]*string `json:"tool_calls"`
	Text     *string
	Thinking *string
	Finish   *string
	// ContentType and Tools are those of the answer and of the request.
	ContentType string `json:"content_type"`
	Tools       []string
}

// An httpCase is an entry of http-errors.json.
type httpCase struct {
	Name    string
	Status  int
	Headers map[string]string
	Body    string
	Expect  []string
}

// streamsDir is the folder to run: ROOKERY_STREAMS, taken from the module's root,
// or the tree's own.
func streamsDir(tb testing.TB) string {
	tb.Helper()
	dir := os.Getenv("ROOKERY_STREAMS")
	switch {
	case dir == "":
		return filepath.Join("testdata", "streams")
	case filepath.IsAbs(dir):
		return dir
	}
	return filepath.Join("..", "..", dir)
}

// load reads a file of the folder into v. Only expected.json must be there.
func load(tb testing.TB, name string, v any) bool {
	tb.Helper()
	path := filepath.Join(streamsDir(tb), name)
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) && name != "expected.json" {
		return false
	}
	require.NoError(tb, err)
	require.NoError(tb, json.Unmarshal(b, v), "%s does not parse", path)
	return true
}

func recordings(tb testing.TB) []recording {
	tb.Helper()
	var rs []recording
	load(tb, "expected.json", &rs)
	require.NotEmpty(tb, rs, "expected.json names no recording")
	for i := range rs {
		path := filepath.Join(streamsDir(tb), rs[i].File)
		b, err := os.ReadFile(path)
		require.NoError(tb, err)
		rs[i].body = string(b)
		if filepath.Ext(rs[i].File) == ".jsonl" {
			rs[i].body = wrapLines(tb, path, rs[i].body)
		}
	}
	return rs
}

// wrapLines serves one JSON chunk a line as events.
func wrapLines(tb testing.TB, path, lines string) string {
	tb.Helper()
	var b strings.Builder
	for i, l := range strings.Split(strings.TrimSpace(lines), "\n") {
		require.True(tb, json.Valid([]byte(l)), "%s:%d is not JSON", path, i+1)
		b.WriteString("data: " + l + "\n\n")
	}
	return b.String() + "data: [DONE]\n\n"
}

func (r recording) statuses() []string {
	if r.StatusAny != nil {
		return r.StatusAny
	}
	return []string{r.Status}
}

// check compares a result with what the recording says.
func (r recording) check(tb testing.TB, got result) {
	tb.Helper()
	require.Contains(tb, r.statuses(), status(got), got.Message)
	require.Equal(tb, r.Text, got.text)
	require.Equal(tb, r.Thinking, got.thinking)
	if r.Finish != nil {
		require.Equal(tb, *r.Finish, got.Finish)
	}
	require.Len(tb, got.calls, len(r.Calls))
	ids := map[string]bool{}
	for i, c := range r.Calls {
		require.Equal(tb, c.Name, got.calls[i].Name)
		require.Equal(tb, c.Arguments, got.calls[i].Arguments)
		if c.ID != nil {
			require.Equal(tb, *c.ID, protocol.ProviderCallID(got.calls[i].ToolCallID))
		}
		require.False(tb, ids[got.calls[i].ToolCallID], "id %q twice", got.calls[i].ToolCallID)
		ids[got.calls[i].ToolCallID] = true
	}
	switch {
	case r.Usage != nil:
		u := protocol.Usage{CacheRead: r.Usage.CacheRead, CacheWrite: r.Usage.CacheWrite, Output: r.Usage.Output, Total: r.Usage.Total}
		require.NotNil(tb, got.Usage)
		require.Equal(tb, u, *got.Usage)
		require.False(tb, got.Estimated)
	case got.Status == protocol.Completed:
		require.True(tb, got.Estimated)
	}
}

// status is the outcome in the words of the files, which know auth as one.
func status(r result) string {
	if r.Status == protocol.Failed && r.Code == protocol.CodeAuth {
		return "auth"
	}
	return string(r.Status)
}

func TestStream_ReadsTheRecordings(t *testing.T) {
	for _, r := range recordings(t) {
		t.Run(r.File, func(t *testing.T) {
			for name, edit := range ways(t) {
				s := llmtest.Start(t)
				s.Reply(inPieces(r.body, 64<<10))
				got := stream(t.Context(), t, newClient(t, s, edit(s)), ask("go"))
				r.check(t, got)
				require.NotEmpty(t, name)
			}
		})
	}
}

// ways are the two ways to receive a reply: at once and byte by byte.
func ways(tb testing.TB) map[string]func(*llmtest.Server) func(*llm.Config) {
	tb.Helper()
	return map[string]func(*llmtest.Server) func(*llm.Config){
		"64 KiB":   func(*llmtest.Server) func(*llm.Config) { return func(*llm.Config) {} },
		"one byte": func(s *llmtest.Server) func(*llm.Config) { return oneByte(tb, s) },
	}
}

// inPieces sends a body in writes of n bytes and nothing behind it.
func inPieces(body string, n int) llmtest.Step {
	var pieces []string
	for c := range slices.Chunk([]byte(body), n) {
		pieces = append(pieces, string(c))
	}
	return llmtest.RawEnd(pieces...)
}

func TestStream_ReadsTheWireCases(t *testing.T) {
	var cases []wireCase
	if !load(t, "wire-cases.json", &cases) {
		return
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			for _, edit := range ways(t) {
				s := llmtest.Start(t)
				if c.ContentType == "" {
					s.Reply(inPieces(c.Body, 64<<10))
				} else {
					s.Reply(llmtest.Status(200, c.Body, "Content-Type", c.ContentType))
				}
				req := ask("go")
				for _, name := range c.Tools {
					req.Tools = append(req.Tools, protocol.ToolSpec{Name: name})
				}
				c.check(t, stream(t.Context(), t, newClient(t, s, edit(s)), req))
			}
		})
	}
}

func (c wireCase) check(tb testing.TB, got result) {
	tb.Helper()
	require.Contains(tb, c.Expect, status(got), got.Message)
	if c.Text != nil {
		require.Equal(tb, *c.Text, got.text)
	}
	if c.Thinking != nil {
		require.Equal(tb, *c.Thinking, got.thinking)
	}
	if c.Finish != nil {
		require.Equal(tb, *c.Finish, got.Finish)
	}
	if c.Calls == nil {
		return
	}
	require.Len(tb, got.calls, len(c.Calls))
	for i, want := range c.Calls {
		if want[0] != nil {
			require.Equal(tb, *want[0], got.calls[i].ToolCallID)
		}
		require.Equal(tb, *want[1], got.calls[i].Name)
		require.Equal(tb, *want[2], got.calls[i].Arguments)
		if len(want) > 3 {
			require.Equal(tb, *want[3], string(got.calls[i].StopReason))
		}
	}
}

func TestStream_MapsHTTPErrors(t *testing.T) {
	var cases []httpCase
	if !load(t, "http-errors.json", &cases) {
		return
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			s := llmtest.Start(t)
			var header []string
			for k, v := range c.Headers {
				header = append(header, k, v)
			}
			s.Reply(llmtest.Status(c.Status, c.Body, header...))
			got := stream(t.Context(), t, newClient(t, s), ask("go"))
			require.Contains(t, c.Expect, status(got), got.Message)
			require.Empty(t, got.payloads)
			require.NotContains(t, got.Message, "sk-secret")
		})
	}
}

func TestStream_ProperlyEndsOnAnyPrefix(t *testing.T) {
	s := llmtest.Start(t)
	c := newClient(t, s)
	for _, r := range recordings(t) {
		t.Run(r.File, func(t *testing.T) {
			step := max(len(r.body)/300, 1)
			for n := 0; n <= len(r.body); n += step {
				prefix := r.body[:n]
				var ps []protocol.Payload
				o := llm.ReadReply(t.Context(), c, ask("go"), strings.NewReader(prefix), func(p protocol.Payload) error {
					ps = append(ps, p)
					return nil
				})
				got := fold(t, o, ps)
				require.True(t, strings.HasPrefix(r.Thinking, got.thinking))
				if got.Status == protocol.Completed {
					require.True(t, finished(prefix), "completed after %d bytes", n)
				}
			}
		})
	}
}

// finished reports that a stream has a finish reason or its end mark.
func finished(body string) bool {
	return strings.Contains(body, "data: [DONE]") || finishAt(events(body)) >= 0
}

// finishAt returns the first event with a finish reason, -1 for none.
func finishAt(evs []string) int {
	return slices.IndexFunc(evs, func(ev string) bool {
		_, v, ok := strings.Cut(ev, `"finish_reason":`)
		return ok && strings.HasPrefix(strings.TrimSpace(v), `"`)
	})
}

// events splits a body behind each blank line.
func events(body string) []string {
	return slices.DeleteFunc(strings.SplitAfter(body, "\n\n"), func(s string) bool { return s == "" })
}

func TestLoad_NamesAFileThatDoesNotParse(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "expected.json"), []byte("[{"), 0o600))
	t.Setenv("ROOKERY_STREAMS", dir)
	probe := &probeT{TB: t}
	func() {
		defer func() { _ = recover() }()
		var rs []recording
		load(probe, "expected.json", &rs)
	}()
	require.Contains(t, probe.said.String(), filepath.Join(dir, "expected.json")+" does not parse")
}

// A probeT keeps what a helper says instead of failing.
type probeT struct {
	testing.TB
	said bytes.Buffer
}

func (p *probeT) Helper()                      {}
func (p *probeT) Errorf(f string, args ...any) { fmt.Fprintf(&p.said, f, args...) }
func (p *probeT) FailNow()                     { panic("failed") }
