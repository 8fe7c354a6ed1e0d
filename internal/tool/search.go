package tool

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"strings"

	"rookery/internal/sandbox"
	"rookery/protocol"
)

// Bounds of search_files.
const (
	defaultMatches = 200
	matchChars     = 300
	maxSearchFile  = 64 << 20 // bytes of one file
	maxSearchAll   = 1 << 30  // bytes of all files
)

func searchSpec() protocol.Tool {
	return spec(opSearch, "Search the text of the workspace's files for a regular expression (RE2 syntax), line by line, without binary files "+
		"and what git ignores. Each match is path:line:text, each line around it path-line-text.", `{
		"type": "object",
		"properties": {
			"pattern": {"type": "string", "minLength": 1, "description": "Regular expression"},
			"path": {"type": "string", "description": "Directory or file; default the workspace"},
			"glob": {"type": "string", "description": "Only files that match, e.g. *.go or cmd/**/*.go; with ! in front only others"},
			"type": {"type": "string", "description": "Only files of a kind: go, py, js, ts, rust, c, cpp, java, md, json, yaml, sh, …"},
			"context": {"type": "integer", "minimum": 0, "maximum": 50, "description": "Lines to show before and after each match"},
			"ignore_case": {"type": "boolean"},
			"files_only": {"type": "boolean", "description": "Only the paths of files with a match"},
			"limit": {"type": "integer", "minimum": 1, "maximum": 5000, "description": "Matches at most; default 200"}
		},
		"required": ["pattern"],
		"additionalProperties": false
	}`)
}

type searchArgs struct {
	Pattern    string `json:"pattern"`
	Path       string `json:"path"`
	Glob       string `json:"glob"`
	Type       string `json:"type"`
	Context    int    `json:"context"`
	IgnoreCase bool   `json:"ignore_case"`
	FilesOnly  bool   `json:"files_only"`
	Limit      int    `json:"limit"`
}

func searchFiles(ctx context.Context, v *sandbox.View, a searchArgs, limit int) (string, error) {
	re, err := regex(a)
	if err != nil {
		return "", err
	}
	w, err := newWalk(v, a.Path, a.Glob)
	if err != nil {
		return "", err
	}
	if w.kind, err = kindGlob(a.Type); err != nil {
		return "", err
	}
	if a.Limit <= 0 {
		a.Limit = defaultMatches
	}
	s := &search{re: re, args: a, tree: w.tree, room: limit - 120, buf: bufio.NewReaderSize(nil, 64<<10)}
	if info, err := w.tree.Root.Stat(w.start); err == nil && !info.IsDir() {
		err = s.file(ctx, w.start)
		if errors.Is(err, errEnough) {
			err = nil
		}
		return s.answer(false), err
	}
	err = w.run(ctx, func(rel string, e fs.DirEntry) error {
		if !e.Type().IsRegular() {
			return nil
		}
		return s.file(ctx, rel)
	})
	if err != nil {
		return "", err
	}
	return s.answer(w.partial), nil
}

func regex(a searchArgs) (*regexp.Regexp, error) {
	flags := ""
	if a.IgnoreCase {
		flags = "(?i)"
	}
	re, err := regexp.Compile(flags + a.Pattern)
	if err != nil {
		return nil, fmt.Errorf("pattern is not a regular expression: %w", err)
	}
	return re, nil
}

// A search gathers matches over many files.
type search struct {
	re   *regexp.Regexp
	args searchArgs
	tree sandbox.Tree
	buf  *bufio.Reader

	found   []string
	matches int
	around  surroundings
	room    int // characters left
	scanned int64
	more    bool
	passed  int // files not read to their end
}

// file searches one file; errEnough says that nothing more is wanted.
func (s *search) file(ctx context.Context, rel string) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if s.scanned >= maxSearchAll {
		s.more = true
		return errEnough
	}
	f, _, err := openRegular(s.tree, rel, rel)
	if err != nil {
		return nil // gone, or not for us: a search passes over it
	}
	defer func() { _ = f.Close() }()
	r := &io.LimitedReader{R: f, N: maxSearchFile}
	s.buf.Reset(r)
	if sniff, _ := s.buf.Peek(sniffBytes); bytes.IndexByte(sniff, 0) >= 0 {
		return nil
	}
	err = s.lines(ctx, rel)
	s.scanned += maxSearchFile - r.N
	if r.N == 0 {
		s.passed++
	}
	return err
}

// lines searches line by line; what is longer than the buffer, in parts.
func (s *search) lines(ctx context.Context, rel string) error {
	s.around = surroundings{size: s.args.Context}
	for n := 1; ; {
		line, err := s.buf.ReadSlice('\n')
		if n%4096 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if bytes.IndexByte(line, 0) >= 0 {
			return nil // binary after all
		}
		text := bytes.TrimRight(line, "\r\n")
		switch {
		case len(line) == 0:
		case !s.re.Match(text):
			if s.around.wants(n, text) && !s.show(rel, '-', n, text) {
				return errEnough
			}
		case s.args.FilesOnly:
			return s.name(rel)
		case !s.match(rel, n, text):
			return errEnough
		}
		switch {
		case err == nil:
			n++
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil // the end, or as far as it can be read
		}
	}
}

// name adds a file that has a match.
func (s *search) name(rel string) error {
	if !s.put(oneLine(rel), true) {
		return errEnough
	}
	return nil
}

// match adds a match, with the lines before it; false when there is no room.
func (s *search) match(rel string, n int, text []byte) bool {
	if s.matches >= s.args.Limit {
		s.more = true
		return false
	}
	before, gap := s.around.before(n)
	if gap && len(s.found) > 0 && !s.put("--", false) {
		return false
	}
	for i, l := range before {
		if !s.show(rel, '-', n-len(before)+i, l) {
			return false
		}
	}
	return s.show(rel, ':', n, text)
}

// show adds a line of a file: a match with ':', one around it with '-'.
func (s *search) show(rel string, mark byte, n int, text []byte) bool {
	if mark == ':' {
		text = around(text, s.re.FindIndex(text))
	}
	shown, _ := cutLine(text, 0, matchChars)
	return s.put(fmt.Sprintf("%s%c%d%c%s", oneLine(rel), mark, n, mark, shown), mark == ':')
}

func (s *search) put(line string, match bool) bool {
	line = protocol.Clean(line)
	if s.room -= len(line) + 1; match && s.matches >= s.args.Limit || s.room < 0 && len(s.found) > 0 {
		s.more = true
		return false
	}
	if match {
		s.matches++
	}
	s.found = append(s.found, line)
	return true
}

// around cuts the beginning of a long line so that the match is seen.
func around(text []byte, at []int) []byte {
	if len(at) == 2 && at[0] > matchChars/2 && len(text) > matchChars {
		return append([]byte("…"), text[at[0]-matchChars/4:]...)
	}
	return text
}

func (s *search) answer(partial bool) string {
	var notes []string
	if s.more || partial {
		notes = append(notes, fmt.Sprintf("[first %d matches: narrow by path, glob or pattern]", s.matches))
	}
	if s.passed > 0 {
		notes = append(notes, fmt.Sprintf("[%d files were searched in their first %d MiB only]", s.passed, maxSearchFile>>20))
	}
	if len(s.found) == 0 {
		notes = append([]string{"[no match]"}, notes...)
	}
	return strings.Join(append(s.found, notes...), "\n")
}
