package tool

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	udiff "github.com/aymanbagabas/go-udiff"

	"rookery/internal/sandbox"
	"rookery/protocol"
)

// maxEdit is the largest file that edit_file changes.
const maxEdit = 16 << 20

func editSpec() protocol.Tool {
	return spec(opEdit, "Replace text in a file of the workspace. old_string must occur exactly once, character for character, "+
		"unless replace_all is set. Returns the change as a diff.", `{
		"type": "object",
		"properties": {
			"path": {"type": "string", "minLength": 1, "description": "File, relative to the workspace or absolute in it"},
			"old_string": {"type": "string", "minLength": 1, "description": "Text to replace, with enough context to be unique, without line numbers"},
			"new_string": {"type": "string", "description": "Text to put in its place"},
			"replace_all": {"type": "boolean", "description": "Replace every occurrence"}
		},
		"required": ["path", "old_string", "new_string"],
		"additionalProperties": false
	}`)
}

type editArgs struct {
	Path string `json:"path"`
	Old  string `json:"old_string"`
	New  string `json:"new_string"`
	All  bool   `json:"replace_all"`
}

func editFile(_ context.Context, v *sandbox.View, a editArgs, limit int) (string, error) {
	tree, rel, err := v.Find("", a.Path)
	if err != nil {
		return "", err
	}
	if a.Old == a.New {
		return "", errors.New("old_string and new_string are the same")
	}
	v.Write.Lock()
	defer v.Write.Unlock()
	b, err := readAll(tree, rel, a.Path, maxEdit)
	if err != nil {
		return "", err
	}
	text := string(b)
	if strings.Contains(text[:min(len(text), sniffBytes)], "\x00") {
		return "", fmt.Errorf("%s is a binary file", a.Path)
	}
	a = a.fit(text)
	edits, err := a.find(text)
	if err != nil {
		return "", err
	}
	changed, err := udiff.Apply(text, edits)
	if err != nil {
		return "", fmt.Errorf("change %s: %w", a.Path, err)
	}
	if _, err := replace(tree, rel, a.Path, []byte(changed)); err != nil {
		return "", err
	}
	diff, err := udiff.ToUnified("a/"+a.Path, "b/"+a.Path, text, edits, udiff.DefaultContextLines)
	if err != nil {
		return "", fmt.Errorf("%s was changed, but its diff cannot be shown: %w", a.Path, err)
	}
	return cutDiff(diff, limit), nil
}

// fit gives the strings the line ends of the file: a model sees and writes LF.
func (a editArgs) fit(text string) editArgs {
	if strings.Contains(text, "\r\n") && !strings.Contains(a.Old, "\r") && !strings.Contains(text, a.Old) {
		a.Old = strings.ReplaceAll(a.Old, "\n", "\r\n")
		a.New = strings.ReplaceAll(strings.ReplaceAll(a.New, "\r\n", "\n"), "\n", "\r\n")
	}
	return a
}

func (a editArgs) find(text string) ([]udiff.Edit, error) {
	var edits []udiff.Edit
	for at := 0; ; {
		i := strings.Index(text[at:], a.Old)
		if i < 0 {
			break
		}
		edits = append(edits, a.edit(at+i))
		at += i + len(a.Old)
	}
	switch {
	case len(edits) == 0:
		return nil, fmt.Errorf("old_string was not found in %s%s", a.Path, nearMiss(text, a.Old))
	case len(edits) > 1 && !a.All:
		return nil, fmt.Errorf("old_string occurs %d times in %s (lines %s): add context to make it unique, or set replace_all",
			len(edits), a.Path, lineNumbers(text, edits))
	}
	return edits, nil
}

// edit is the replacement at a place, without what stays: the diff then shows
// changed lines only.
func (a editArgs) edit(at int) udiff.Edit {
	head := 0
	for head < min(len(a.Old), len(a.New)) && a.Old[head] == a.New[head] {
		head++
	}
	tail := 0
	for n := min(len(a.Old), len(a.New)) - head; tail < n && a.Old[len(a.Old)-1-tail] == a.New[len(a.New)-1-tail]; {
		tail++
	}
	return udiff.Edit{Start: at + head, End: at + len(a.Old) - tail, New: a.New[head : len(a.New)-tail]}
}

func lineNumbers(text string, edits []udiff.Edit) string {
	var ns []string
	for line, at, i := 1, 0, 0; i < len(edits) && i < 10; i++ {
		line += strings.Count(text[at:edits[i].Start], "\n")
		at = edits[i].Start
		ns = append(ns, strconv.Itoa(line))
	}
	if len(edits) > 10 {
		ns = append(ns, "…")
	}
	return strings.Join(ns, ", ")
}

// nearMiss describes the place of text that old most likely meant.
func nearMiss(text, old string) string {
	want := strings.Split(strings.Trim(old, "\n"), "\n")
	want = want[:min(len(want), 40)]
	have := strings.Split(text, "\n")
	best, score := 0, 0
	wantKey, haveKey := squeeze(want), squeeze(have)
	for i := range haveKey {
		n := 0
		for j := range wantKey {
			if i+j < len(haveKey) && wantKey[j] != "" && wantKey[j] == haveKey[i+j] {
				n++
			}
		}
		if n > score {
			best, score = i, n
		}
	}
	if score == 0 {
		return partOf(have, want[0])
	}
	shown := have[best:min(best+len(want), len(have))]
	why := fmt.Sprintf("%d of its %d lines", score, len(want))
	if score == len(filled(wantKey)) {
		why = "all of its lines but for white space"
	}
	return fmt.Sprintf(". Lines %d-%d have %s:\n%s", best+1, best+len(shown), why, numbered(best, shown))
}

// partOf finds a line that holds the first wanted line, in whatever case.
func partOf(have []string, want string) string {
	key := strings.ToLower(strings.TrimSpace(want))
	for i, l := range have {
		if key != "" && strings.Contains(strings.ToLower(l), key) {
			return fmt.Sprintf(". Line %d is similar:\n%s", i+1, numbered(i, have[i:i+1]))
		}
	}
	return "; read the file again, it may have changed"
}

// squeeze makes lines comparable but for white space.
func squeeze(lines []string) []string {
	keys := make([]string, len(lines))
	for i, l := range lines {
		keys[i] = strings.Join(strings.Fields(l), " ")
	}
	return keys
}

func filled(keys []string) []string {
	var f []string
	for _, k := range keys {
		if k != "" {
			f = append(f, k)
		}
	}
	return f
}

func numbered(first int, lines []string) string {
	var b strings.Builder
	for i, l := range lines[:min(len(lines), 12)] {
		shown, _ := cutLine([]byte(l), 0, 200)
		fmt.Fprintf(&b, "%6d\t%s\n", first+i+1, shown)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// cutDiff keeps a diff within what will be shown, at a line's end.
func cutDiff(diff string, limit int) string {
	diff = protocol.Clean(diff)
	if limit -= 60; limit < 200 || len(diff) <= limit {
		return diff
	}
	head := diff[:limit]
	head = head[:strings.LastIndexByte(head, '\n')+1]
	return head + fmt.Sprintf("[diff cut: %d more lines]", strings.Count(diff[len(head):], "\n"))
}
