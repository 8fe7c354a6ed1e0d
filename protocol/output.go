package protocol

import (
	"strings"
	"unicode/utf8"
)

// An Output gathers what a tool prints: it keeps the head up to Max characters
// and puts the end notes on lines of their own, outside the cap (L053, L054, L056).
// The pieces that Write and Finish return, in order, are exactly Text.
type Output struct {
	// Max is the cap in characters; 0 or less is none.
	Max int

	text  strings.Builder
	chars int
	over  bool
	tail  []byte // an incomplete rune at the end of the last Write
}

// Write adds printed bytes and returns the piece to stream, which may be empty. A
// rune may be split over two writes; bytes that are no UTF-8 and NUL become U+FFFD.
func (o *Output) Write(b []byte) string {
	if len(o.tail) > 0 {
		b = append(o.tail, b...)
		o.tail = nil
	}
	if n := incomplete(b); n > 0 {
		o.tail = append([]byte(nil), b[len(b)-n:]...)
		b = b[:len(b)-n]
	}
	return o.add(clean(b))
}

// Truncated reports that more than Max characters were written.
func (o *Output) Truncated() bool { return o.over }

// Text returns all that Write and Finish returned so far.
func (o *Output) Text() string { return o.text.String() }

// Finish ends the output: the truncation note with the path of the full output
// where there is one, then the end notes. It returns the last piece to stream. An
// output that would be empty is "[no output]" (L051).
func (o *Output) Finish(full string, notes ...string) string {
	var piece strings.Builder
	piece.WriteString(o.add(clean(o.tail)))
	o.tail = nil
	if o.over {
		head := []string{NoteTruncated(o.Max)}
		if full != "" {
			head = append(head, "[full output: "+full+"]")
		}
		notes = append(head, notes...)
	}
	for _, n := range notes {
		if n == "" {
			continue
		}
		if s := o.text.String(); s != "" && !strings.HasSuffix(s, "\n") {
			n = "\n" + n
		}
		o.text.WriteString(n)
		piece.WriteString(n)
	}
	if o.text.Len() == 0 {
		o.text.WriteString(NoteNoOutput)
		return NoteNoOutput
	}
	return piece.String()
}

func (o *Output) add(s string) string {
	if o.over || s == "" {
		return ""
	}
	if o.Max > 0 {
		if n := utf8.RuneCountInString(s); o.chars+n > o.Max {
			o.over = true
			s = head(s, o.Max-o.chars)
		}
		o.chars += utf8.RuneCountInString(s)
	}
	o.text.WriteString(s)
	return s
}

// head returns the first n characters of s.
func head(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

// Clean makes text that JSON, terminals and providers accept: what is not UTF-8
// and NUL become U+FFFD.
func Clean(s string) string { return clean([]byte(s)) }

func clean(b []byte) string {
	s := strings.ToValidUTF8(string(b), "\ufffd")
	return strings.ReplaceAll(s, "\x00", "\ufffd")
}

// incomplete returns how many bytes at the end of b begin a rune that more bytes
// could complete.
func incomplete(b []byte) int {
	for n := 1; n <= utf8.UTFMax-1 && n <= len(b); n++ {
		c := b[len(b)-n]
		if utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}
