package main

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestVisible_HostileTextIsShownAndNotExecuted(t *testing.T) {
	for name, c := range map[string]struct{ in, want, line string }{
		"plain":           {"hello, wörld 你好 👩‍💻", "hello, wörld 你好 👩‍💻", "hello, wörld 你好 👩‍💻"},
		"lines":           {"a\n\tb", "a\n\tb", `a\n\tb`},
		"dos lines":       {"a\r\nb", "a\nb", `a\nb`},
		"overwrite":       {"safe\revil", `safe\revil`, `safe\revil`},
		"colour":          {"\x1b[31mred", `\x1b[31mred`, `\x1b[31mred`},
		"title":           {"\x1b]0;owned\x07", `\x1b]0;owned\a`, `\x1b]0;owned\a`},
		"C1":              {"\u009b31m", `\u009b31m`, `\u009b31m`},
		"NUL":             {"a\x00b", `a\x00b`, `a\x00b`},
		"bidi":            {"a\u202eb\u2066c", `a\u202eb\u2066c`, `a\u202eb\u2066c`},
		"invisible":       {"rm\u200b -rf\ufeff", `rm\u200b -rf\ufeff`, `rm\u200b -rf\ufeff`},
		"tag letters":     {"\U000e0041", `\U000e0041`, `\U000e0041`},
		"no UTF-8":        {"a\xffb\xc3", `a\xffb\xc3`, `a\xffb\xc3`},
		"real U+FFFD":     {"a\ufffdb", "a\ufffdb", "a\ufffdb"},
		"line of Unicode": {"a\u2028b", `a\u2028b`, `a\u2028b`},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, visible(c.in))
			require.Equal(t, c.line, visibleLine(c.in))
		})
	}
}

func FuzzVisible(f *testing.F) {
	for _, s := range []string{"a\x1b[2J", "\r\n\t", "\u202e", "\xff", "👩‍💻"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, out := range []string{visible(s), visibleLine(s)} {
			require.True(t, utf8.ValidString(out))
			for _, r := range out {
				require.False(t, unicode.Is(unicode.Bidi_Control, r), "%q", out)
				require.False(t, unicode.IsControl(r) && r != '\n' && r != '\t', "%q", out)
			}
			require.Equal(t, out, visible(out), "what is visible stays as it is")
		}
		require.NotContains(t, visibleLine(s), "\n")
		if !strings.ContainsAny(s, "\r\\") && visible(s) == s {
			require.Equal(t, strings.ReplaceAll(strings.ReplaceAll(s, "\n", `\n`), "\t", `\t`), visibleLine(s))
		}
	})
}
