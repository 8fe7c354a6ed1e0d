package protocol_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"rookery/protocol"
)

// write writes the pieces and ends the output; streamed is all that was returned.
func write(o *protocol.Output, full string, notes []string, pieces ...string) (streamed string) {
	for _, p := range pieces {
		streamed += o.Write([]byte(p))
	}
	return streamed + o.Finish(full, notes...)
}

func TestOutput(t *testing.T) {
	long := strings.Repeat("x", 16)
	for name, c := range map[string]struct {
		max    int
		full   string
		notes  []string
		pieces []string
		want   string
		over   bool
	}{
		"nothing":                       {want: "[no output]"}, // L051
		"nothing but a note":            {notes: []string{"[exit code: 1]"}, want: "[exit code: 1]"},
		"a note stands on its own line": {pieces: []string{"a"}, notes: []string{"[exit code: 1]"}, want: "a\n[exit code: 1]"}, // L053
		"no second newline":             {pieces: []string{"a\n"}, notes: []string{"[exit code: 1]"}, want: "a\n[exit code: 1]"},
		"empty notes are none":          {pieces: []string{"a"}, notes: []string{"", ""}, want: "a"},
		"exactly the cap":               {max: 16, pieces: []string{long}, want: long},
		"over the cap":                  {max: 15, pieces: []string{long}, want: long[:15] + "\n[output truncated: exceeded 15 chars]", over: true}, // L054
		"over the cap, late":            {max: 16, pieces: []string{long, "", "y", "z"}, want: long + "\n[output truncated: exceeded 16 chars]", over: true},
		"the notes stay outside the cap": { // L054 L056
			max: 3, full: "/scratch/1", notes: []string{protocol.NoteInterrupted}, pieces: []string{"ab\ncd"},
			want: "ab\n[output truncated: exceeded 3 chars]\n[full output: /scratch/1]\n[interrupted: tool aborted by user]", over: true,
		},
		"the file is named only when cut": {full: "/scratch/1", pieces: []string{"a"}, want: "a"},
		"characters, not bytes":           {max: 2, pieces: []string{"日本語"}, want: "日本\n[output truncated: exceeded 2 chars]", over: true},
		"a rune split over writes":        {pieces: []string{"a\xe6", "\x97", "\xa5b"}, want: "a日b"},
		"a rune that never ends":          {pieces: []string{"a\xe6\x97"}, want: "a\ufffd"},
		"half a rune, then another":       {pieces: []string{"\xe6", "a"}, want: "\ufffda"},
		"a split rune at the cap":         {max: 1, pieces: []string{"a\xe6", "\x97\xa5"}, want: "a\n[output truncated: exceeded 1 chars]", over: true},
		"bytes that are no text":          {pieces: []string{"\xff\x00a"}, want: "\ufffd\ufffda"},
		"no cap":                          {max: -1, pieces: []string{long, long}, want: long + long},
	} {
		t.Run(name, func(t *testing.T) {
			o := &protocol.Output{Max: c.max}
			require.Equal(t, c.want, write(o, c.full, c.notes, c.pieces...))
			require.Equal(t, c.want, o.Text())
			require.Equal(t, c.over, o.Truncated())
		})
	}
}

func TestOutput_BufferMayBeReused(t *testing.T) {
	o := &protocol.Output{}
	b := []byte("a\xe6")
	got := o.Write(b)
	copy(b, "\x97\xa5")
	got += o.Write(b)
	require.Equal(t, "a日", got+o.Finish(""))
}

func FuzzOutput(f *testing.F) {
	f.Add([]byte("a日b\xff\x00"), 2, 3)
	f.Add([]byte("\xf0\x9f\x98"), 1, 0)
	f.Fuzz(func(t *testing.T, b []byte, size, limit int) {
		if size <= 0 {
			size = 1
		}
		o := &protocol.Output{Max: limit}
		var streamed strings.Builder
		for rest := b; len(rest) > 0; rest = rest[min(size, len(rest)):] {
			streamed.WriteString(o.Write(rest[:min(size, len(rest))]))
		}
		head := utf8.RuneCountInString(o.Text())
		streamed.WriteString(o.Finish("", "[note]"))
		require.Equal(t, o.Text(), streamed.String())
		require.True(t, utf8.ValidString(o.Text()))
		require.NotContains(t, o.Text(), "\x00")
		require.True(t, strings.HasSuffix(o.Text(), "[note]"))
		if limit > 0 {
			require.LessOrEqual(t, head, limit)
		}
		if utf8.Valid(b) && !o.Truncated() {
			require.True(t, strings.HasPrefix(o.Text(), protocol.Clean(string(b))))
		}
	})
}
