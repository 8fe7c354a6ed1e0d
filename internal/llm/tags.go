package llm

import "strings"

// tags finds a thinking block at the start of a text, where a server that does
// not know its model's thinking leaves it: <think>…</think>. Text may come in
// pieces of any size.
type tags struct {
	state tagState
	held  string // not yet decided
	end   string // the closing tag
}

type tagState int

const (
	tagStart tagState = iota // only blanks so far, or a piece of an opening tag
	tagInside
	tagText
)

// write takes a piece and calls emit with what is decided; thinking says which it is.
func (t *tags) write(s string, emit func(thinking bool, s string)) {
	if t.state == tagText {
		emit(false, s)
		return
	}
	t.held += s
	if t.state == tagStart && !t.open() {
		return
	}
	if t.state == tagInside {
		t.inside(emit)
		return
	}
	t.flush(emit)
}

// flush gives out what is held: no more of this text is coming, or something
// else came between.
func (t *tags) flush(emit func(thinking bool, s string)) {
	s, thinking := t.held, t.state == tagInside
	t.held = ""
	if !thinking && s != "" {
		t.state = tagText
	}
	if s != "" {
		emit(thinking, s)
	}
}

// open decides whether the text begins with an opening tag; false: not yet.
func (t *tags) open() bool {
	s := strings.TrimLeft(t.held, " \t\r\n")
	for _, name := range []string{"think", "thought", "thinking"} {
		tag := "<" + name + ">"
		if rest, ok := strings.CutPrefix(s, tag); ok {
			t.state, t.held, t.end = tagInside, rest, "</"+name+">"
			return true
		}
		if strings.HasPrefix(tag, s) {
			return false
		}
	}
	t.state = tagText
	return true
}

// inside gives out thinking up to the closing tag, and then the text behind it.
func (t *tags) inside(emit func(thinking bool, s string)) {
	in, rest, ok := strings.Cut(t.held, t.end)
	if !ok {
		n := len(t.held) - tailOf(t.held, t.end)
		in, rest = t.held[:n], t.held[n:]
	}
	t.held = rest
	if in != "" {
		emit(true, in)
	}
	if ok {
		t.state = tagText
		t.flush(emit)
	}
}

// tailOf returns how many bytes at the end of s begin tag.
func tailOf(s, tag string) int {
	for n := min(len(tag)-1, len(s)); n > 0; n-- {
		if strings.HasSuffix(s, tag[:n]) {
			return n
		}
	}
	return 0
}
