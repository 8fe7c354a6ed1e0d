package main

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// visible makes text from elsewhere harmless on a terminal: line feeds and tabs
// stay, everything else that is not shown as itself is written out, such as \x1b
// for an escape or \u202e for a direction override.
func visible(s string) string { return escape(s, "\n\t") }

// visibleLine is visible for text that must stay on one line.
func visibleLine(s string) string { return escape(s, "") }

func escape(s, keep string) string {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	if clean(s, keep) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)):
			b.WriteString(`\x` + strconv.FormatUint(uint64(s[i])|0x100, 16)[1:])
		case shown(r) || strings.ContainsRune(keep, r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		}
	}
	return b.String()
}

func clean(s, keep string) bool {
	for i, r := range s {
		if !shown(r) && !strings.ContainsRune(keep, r) || r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)) {
			return false
		}
	}
	return true
}

// shown reports a rune that a terminal shows as itself: what is printable, the
// spaces of other scripts, and the joiners that emoji and some scripts need.
func shown(r rune) bool {
	return unicode.IsPrint(r) || unicode.Is(unicode.Zs, r) || r == '\u200c' || r == '\u200d'
}

// cut shortens s to n characters and says so.
func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n]) + "…"
}
