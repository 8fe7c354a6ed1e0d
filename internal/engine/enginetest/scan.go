package enginetest

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

var keyShape = regexp.MustCompile(`(?:^|\s)([a-z_]+)=`)

// A scanner reads one line of the script from the left.
type scanner struct{ rest string }

func (s *scanner) skip() { s.rest = strings.TrimLeft(s.rest, " \t") }

// done reports that nothing is left.
func (s *scanner) done() bool { s.skip(); return s.rest == "" }

// end is an error when something is left.
func (s *scanner) end() error {
	if s.done() {
		return nil
	}
	return fmt.Errorf("unexpected %q", s.rest)
}

// quoted reads a Go-quoted string if one stands here.
func (s *scanner) quoted() (text string, ok bool, err error) {
	s.skip()
	if s.rest == "" || (s.rest[0] != '"' && s.rest[0] != '`') {
		return "", false, nil
	}
	q, err := strconv.QuotedPrefix(s.rest)
	if err != nil {
		return "", false, fmt.Errorf("bad quoting: %s", s.rest)
	}
	after := s.rest[len(q):]
	if after != "" && after[0] != ' ' && after[0] != '\t' {
		return "", false, fmt.Errorf("bad quoting: %q right behind the string %s", after, q)
	}
	text, err = strconv.Unquote(q)
	if err != nil {
		return "", false, fmt.Errorf("bad quoting: %s", q)
	}
	s.rest = after
	return text, true, nil
}

// word reads up to the next blank, or a quoted string; what names it in the error.
func (s *scanner) word(what string) (string, error) {
	if text, ok, err := s.quoted(); ok || err != nil {
		return text, err
	}
	w, rest := s.rest, ""
	if i := strings.IndexAny(s.rest, " \t"); i >= 0 {
		w, rest = s.rest[:i], s.rest[i:]
	}
	if w == "" {
		return "", fmt.Errorf("%s is missing", what)
	}
	s.rest = rest
	return w, nil
}

// text reads a TEXT: quoted, or bare up to " -> " or " KEY=".
func (s *scanner) text(what string) (string, error) {
	if text, ok, err := s.quoted(); ok || err != nil {
		return text, err
	}
	end := len(s.rest)
	if loc := keyShape.FindStringIndex(s.rest); loc != nil {
		end = loc[0]
	}
	if i := arrowAt(s.rest); i >= 0 && i < end {
		end = i
	}
	text := strings.TrimRight(s.rest[:end], " \t")
	if text == "" {
		return "", fmt.Errorf("%s is missing", what)
	}
	s.rest = s.rest[end:]
	return text, nil
}

// pieces reads one bare TEXT or one or more quoted strings.
func (s *scanner) pieces(what string) ([]string, error) {
	text, ok, err := s.quoted()
	if err != nil {
		return nil, err
	}
	if !ok {
		text, err := s.text(what)
		return []string{text}, err
	}
	return s.more(text)
}

// more reads the quoted strings that follow first.
func (s *scanner) more(first ...string) ([]string, error) {
	for {
		text, ok, err := s.quoted()
		if err != nil {
			return nil, err
		}
		if !ok {
			return first, nil
		}
		first = append(first, text)
	}
}

// option reads a KEY=VALUE if one stands here; the value is a TEXT.
func (s *scanner) option() (key, value string, ok bool, err error) {
	s.skip()
	loc := keyShape.FindStringSubmatchIndex(s.rest)
	if loc == nil || loc[0] != 0 {
		return "", "", false, nil
	}
	key = s.rest[loc[2]:loc[3]]
	s.rest = s.rest[loc[1]:]
	if strings.HasPrefix(s.rest, " ") || s.rest == "" {
		return key, "", true, nil
	}
	value, err = s.text("the value of " + key)
	return key, value, true, err
}

// arrow reads "-> WANT" if it stands here.
func (s *scanner) arrow() (*Want, error) {
	s.skip()
	rest, ok := strings.CutPrefix(s.rest, "->")
	if !ok {
		return nil, nil //nolint:nilnil // no expectation is not an error
	}
	s.rest = rest
	word, err := s.word("the expected reply")
	if err != nil {
		return nil, err
	}
	w := &Want{Word: word}
	switch word {
	case "accepted", "true", "false", "aborting", "idle":
		return w, s.end()
	case "refused":
		s.skip()
		w.Reason = strings.TrimRight(s.rest, " \t")
		if text, ok, err := s.quoted(); err != nil {
			return nil, err
		} else if ok {
			w.Reason = text
			return w, s.end()
		}
		s.rest = ""
		return w, nil
	}
	return nil, fmt.Errorf("a reply is accepted, refused, true, false, aborting or idle, not %q", word)
}

func (s *scanner) duration() (time.Duration, error) {
	w, err := s.word("a duration")
	if err != nil {
		return 0, err
	}
	return parseDuration(w)
}

func parseDuration(w string) (time.Duration, error) {
	d, err := time.ParseDuration(w)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration such as 80ms", w)
	}
	if d < 0 {
		return 0, errors.New("a duration can't be negative")
	}
	return d, nil
}

// arrowAt finds " -> " (or " ->" at the end), or "-> " at the start.
func arrowAt(s string) int {
	if strings.HasPrefix(s, "-> ") {
		return 0
	}
	if i := strings.Index(s, " -> "); i >= 0 {
		return i
	}
	if strings.HasSuffix(s, " ->") {
		return len(s) - len(" ->")
	}
	return -1
}

func mentions(reason, word string) bool {
	return strings.Contains(strings.ToLower(reason), strings.ToLower(word))
}
