package tool

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// surroundings follow a file's lines around its matches.
type surroundings struct {
	size  int
	last  [][]byte // up to size lines before the current one, copied and cut
	until int      // last line to show after a match
	shown int      // last line that was shown
}

// wants takes a line without a match, and reports whether it is shown behind one.
func (a *surroundings) wants(n int, text []byte) bool {
	if a.size == 0 {
		return false
	}
	if n <= a.until && n > a.shown {
		a.shown = n
		return true
	}
	if n <= a.until { // another part of a long line
		return false
	}
	if len(a.last) == a.size {
		a.last = a.last[1:]
	}
	a.last = append(a.last, slices.Clone(text[:min(len(text), 4*matchChars)]))
	return false
}

// before returns the lines to show in front of a match at line n, and whether lines
// are missing between them and what was shown last.
func (a *surroundings) before(n int) (lines [][]byte, gap bool) {
	lines, gap = a.last, a.size > 0 && (a.shown == 0 || n-len(a.last) > a.shown+1)
	a.last, a.shown, a.until = nil, n, n+a.size
	return lines, gap
}

// kinds are globs of kinds of files.
//
//nolint:gochecknoglobals // a table of constants
var kinds = map[string]string{
	"c": "*.{c,h}", "cpp": "*.{cpp,cc,cxx,hpp,hh,hxx,h}", "cs": "*.cs", "css": "*.{css,scss,sass,less}",
	"docker": "{Dockerfile*,*.dockerfile}", "go": "*.go", "html": "*.{html,htm}", "java": "*.java",
	"js": "*.{js,jsx,mjs,cjs}", "json": "*.{json,jsonl}", "kotlin": "*.{kt,kts}", "lua": "*.lua",
	"make": "{[Mm]akefile,GNUmakefile,*.mk}", "md": "*.{md,markdown}", "php": "*.php", "proto": "*.proto",
	"py": "*.{py,pyi}", "ruby": "*.{rb,gemspec}", "rust": "*.rs", "sh": "*.{sh,bash,zsh}", "sql": "*.sql",
	"swift": "*.swift", "toml": "*.toml", "ts": "*.{ts,tsx,mts,cts}", "txt": "*.txt", "xml": "*.xml", "yaml": "*.{yaml,yml}",
}

func kindGlob(name string) (string, error) {
	glob, ok := kinds[name]
	if !ok && name != "" {
		return "", fmt.Errorf("type %s is not known; known are %s, others by glob", name, strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
	}
	return glob, nil
}
