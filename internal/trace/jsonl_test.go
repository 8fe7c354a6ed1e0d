package trace_test

import (
	"errors"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/trace"
	"rookery/protocol"
)

func all(rs []trace.Record) iter.Seq2[trace.Record, error] {
	return func(yield func(trace.Record, error) bool) {
		for _, r := range rs {
			if !yield(r, nil) {
				return
			}
		}
	}
}

func lines(rs []trace.Record) []string {
	var s []string
	for _, r := range rs {
		s = append(s, string(r.Message.Encode()))
	}
	return s
}

func TestExport_ImportGivesTheSameRecords(t *testing.T) { // L129 L153
	dir := t.TempDir()
	want := records(session())
	files, err := trace.Export(dir, "s", all(want), nil)
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(dir, "s_001.jsonl"), filepath.Join(dir, "s_002.jsonl")}, files)

	name, got, warnings, err := trace.Import(files[1])
	require.NoError(t, err)
	require.Empty(t, warnings)
	require.Equal(t, "s", name)
	require.Equal(t, lines(want), lines(got))
	require.Empty(t, faults(got))
	for i := range want {
		require.Equal(t, want[i].Private, got[i].Private, want[i].Message.String())
		require.Equal(t, want[i].Context, got[i].Context)
	}
}

func TestExport_StrictLeavesOutOurOwnEvents(t *testing.T) {
	dir := t.TempDir()
	files, err := trace.Export(dir, "s", all(records(session())), &trace.ExportOptions{Strict: true})
	require.NoError(t, err)
	_, got, _, err := trace.Import(files[0])
	require.NoError(t, err)
	require.Empty(t, faults(got))
	kept := 0
	for _, p := range session() {
		if !protocol.IsOwn(p) {
			kept++
		}
	}
	require.Len(t, got, kept)
	for _, r := range got {
		require.False(t, protocol.IsOwn(r.Message.Payload), r.Message.String())
	}
}

func TestExport_StopsAtAnError(t *testing.T) {
	broken := errors.New("broken")
	dir := t.TempDir()
	_, err := trace.Export(dir, "s", func(yield func(trace.Record, error) bool) {
		_ = yield(records(session())[0], nil) && yield(trace.Record{}, broken)
	}, nil)
	require.ErrorIs(t, err, broken)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)

	_, err = trace.Export(filepath.Join(dir, "missing"), "s", all(records(session())), nil)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestReadContext_CutAtEveryByteOfTheLastLine(t *testing.T) { // L164
	whole := strings.Join(lines(records(session())[:4]), "\n") + "\n"
	last := strings.LastIndex(strings.TrimSuffix(whole, "\n"), "\n") + 1
	for n := last; n <= len(whole); n++ {
		got, warnings, err := trace.ReadContext(strings.NewReader(whole[:n]), "s_001.jsonl", 1)
		require.NoError(t, err)
		switch {
		case n == last: // cut behind a whole line
			require.Len(t, got, 3)
			require.Empty(t, warnings)
		case n < len(whole)-1:
			require.Len(t, got, 3)
			require.Len(t, warnings, 1)
			require.Regexp(t, `^s_001\.jsonl:4: the last line is torn and ignored`, warnings[0].String())
		default: // only the newline is missing, or nothing
			require.Len(t, got, 4)
			require.Empty(t, warnings)
		}
	}
}

func TestReadContext_BadLinesAreNamedAndTheRestIsKept(t *testing.T) { // L164
	good := lines(records(session())[:3])
	text := good[0] + "\n{\"torn\":\n\n" + good[1] + "\nnoise\n" + good[2] + "\n"
	got, warnings, err := trace.ReadContext(strings.NewReader(text), "f", 1)
	require.NoError(t, err)
	require.Equal(t, good, lines(got))
	require.Len(t, warnings, 2)
	require.Regexp(t, `^f:2: bad line skipped: `, warnings[0].String())
	require.Regexp(t, `^f:5: bad line skipped: `, warnings[1].String())
}

func TestExport_HugeRecordsStayWhole(t *testing.T) { // L165
	rs := records(session()[:2])
	for range 2 {
		rs = append(rs, trace.Record{Context: 1, Message: protocol.New(protocol.UserText(strings.Repeat("ab", 1<<20) + "\n"))})
	}
	files, err := trace.Export(t.TempDir(), "s", all(rs), nil)
	require.NoError(t, err)
	_, got, warnings, err := trace.Import(files[0])
	require.NoError(t, err)
	require.Empty(t, warnings)
	require.Len(t, got, 4)
	require.Equal(t, rs[3].Message.Payload, got[3].Message.Payload)
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("disk on fire") }

func TestReadContext_ReadErrorIsNotATornLine(t *testing.T) {
	_, _, err := trace.ReadContext(brokenReader{}, "f", 1)
	require.ErrorContains(t, err, "read line 1: disk on fire")
}

func TestImport_Refuses(t *testing.T) { // L154
	dir := t.TempDir()
	_, _, _, err := trace.Import(filepath.Join(dir, "s_001.jsonl"))
	require.ErrorIs(t, err, trace.ErrNoTrace)
	_, _, _, err = trace.Import(filepath.Join(dir, "notes.jsonl"))
	require.ErrorIs(t, err, trace.ErrNoTrace)
	require.ErrorContains(t, err, "<session>_001.jsonl")
	_, _, _, err = trace.Import(filepath.Join(dir, "missing", "s_001.jsonl"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestSplitFileName(t *testing.T) { // L129
	for _, c := range []struct {
		session string
		context int
	}{{"s", 1}, {"a_b", 12}, {"20000101-000000-00ff", 1000}} {
		session, context, ok := trace.SplitFileName("/x/" + trace.FileName(c.session, c.context))
		require.True(t, ok)
		require.Equal(t, c.session, session)
		require.Equal(t, c.context, context)
	}
	for _, bad := range []string{"s.jsonl", "s_1.jsonl", "s_000.jsonl", "_001.jsonl", "s_001.json", "s_001.jsonl.bak"} {
		_, _, ok := trace.SplitFileName(bad)
		require.False(t, ok, bad)
	}
}

func TestNewest(t *testing.T) { // L167
	dir := t.TempDir()
	_, _, err := trace.Newest(dir)
	require.ErrorIs(t, err, trace.ErrNoTrace)

	write := func(session string, at time.Time, ps ...protocol.Payload) {
		rs := records(ps)
		for i := range rs {
			rs[i].Message.Timestamp = at
		}
		_, err := trace.Export(dir, session, all(rs), nil)
		require.NoError(t, err)
	}
	day := func(n int) time.Time { return time.Date(2026, 1, n, 0, 0, 0, 0, time.UTC) }
	meta := protocol.SessionMeta{SessionID: "x"}
	write("old", day(1), meta, protocol.UserText("a"))
	write("full", day(2), meta, protocol.UserText("a"))
	write("empty", day(3), meta)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "noise.txt"), []byte("x"), 0o600))

	session, file, err := trace.Newest(dir)
	require.NoError(t, err)
	require.Equal(t, "full", session)
	require.Equal(t, filepath.Join(dir, "full_001.jsonl"), file)
}
