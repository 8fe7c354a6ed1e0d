package main_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	cli "rookery/cmd/cli"
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
			require.Equal(t, c.want, cli.Visible(c.in))
			require.Equal(t, c.line, cli.VisibleLine(c.in))
		})
	}
}

func FuzzVisible(f *testing.F) {
	for _, s := range []string{"a\x1b[2J", "\r\n\t", "\u202e", "\xff", "👩‍💻"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, out := range []string{cli.Visible(s), cli.VisibleLine(s)} {
			require.True(t, utf8.ValidString(out))
			for _, r := range out {
				require.False(t, unicode.Is(unicode.Bidi_Control, r), "%q", out)
				require.False(t, unicode.IsControl(r) && r != '\n' && r != '\t', "%q", out)
			}
			require.Equal(t, out, cli.Visible(out), "what is visible stays as it is")
		}
		require.NotContains(t, cli.VisibleLine(s), "\n")
		if !strings.ContainsAny(s, "\r\\") && cli.Visible(s) == s {
			require.Equal(t, strings.ReplaceAll(strings.ReplaceAll(s, "\n", `\n`), "\t", `\t`), cli.VisibleLine(s))
		}
	})
}
