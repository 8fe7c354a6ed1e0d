package enginetest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/tools/txtar"
)

var rowShape = regexp.MustCompile(`^L\d{3}$`)

// Load reads and parses a scenario file.
func Load(file string) (*Scenario, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read scenario: %w", err)
	}
	return Parse(file, data)
}

// Parse reads a scenario. Its error joins all faults, each as "file:line: what".
func Parse(file string, data []byte) (*Scenario, error) {
	data = bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n"))
	p := &parser{s: &Scenario{File: file, Level: LevelBoth, archive: txtar.Parse(data)}}
	p.header()
	p.files(markers(data))
	if err := errors.Join(p.faults...); err != nil {
		return nil, err
	}
	return p.s, nil
}

// markers returns the line of each section marker, in order.
func markers(data []byte) []int {
	var at []int
	n := 0
	for line := range bytes.SplitSeq(data, []byte("\n")) {
		n++
		if a := txtar.Parse(append(bytes.Clone(line), '\n')); len(a.Files) == 1 {
			at = append(at, n)
		}
	}
	return at
}

type parser struct {
	s      *Scenario
	faults []error
	reply  *Reply // the model statement whose items are read
}

func (p *parser) fault(line int, err error) {
	if err != nil {
		p.faults = append(p.faults, fmt.Errorf("%s:%d: %w", p.s.File, line, err))
	}
}

func (p *parser) header() {
	n := 0
	for line := range strings.SplitSeq(string(p.s.archive.Comment), "\n") {
		n++
		line = strings.TrimSpace(line)
		key, value, _ := strings.Cut(line, ":")
		switch {
		case line == "":
		case p.s.Title == "":
			p.s.Title = line
		case key == "covers":
			p.covers(n, value)
		case key == "level":
			p.level(n, strings.TrimSpace(value))
		}
	}
	if p.s.Title == "" {
		p.fault(1, errors.New("the title is missing"))
	}
}

func (p *parser) covers(line int, value string) {
	for _, id := range strings.FieldsFunc(value, func(r rune) bool { return r == ' ' || r == ',' || r == '\t' }) {
		if !rowShape.MatchString(id) {
			p.fault(line, fmt.Errorf("covers: %q is not an id such as L036", id))
			continue
		}
		p.s.Covers = append(p.s.Covers, id)
	}
}

func (p *parser) level(line int, value string) {
	switch l := Level(value); l {
	case LevelEngine, LevelStack, LevelBoth:
		p.s.Level = l
	default:
		p.fault(line, fmt.Errorf("level is engine, stack or both, not %q", value))
	}
}

func (p *parser) files(lines []int) {
	scripts := 0
	seen := map[string]bool{}
	for i, f := range p.s.archive.Files {
		if seen[f.Name] {
			p.fault(lines[i], fmt.Errorf("section %q stands twice", f.Name))
		}
		seen[f.Name] = true
		if f.Name == "script" {
			scripts++
			p.script(lines[i], string(f.Data))
			continue
		}
		sec, err := section(f.Name)
		if err != nil {
			p.fault(lines[i], err)
			continue
		}
		sec.Line, sec.file = lines[i], i
		for line := range strings.SplitSeq(string(f.Data), "\n") {
			if line = strings.TrimSpace(line); line != "" {
				sec.Want = append(sec.Want, line)
			}
		}
		p.fault(sec.Line, sec.check())
		p.s.Sections = append(p.s.Sections, sec)
	}
	if scripts == 0 {
		p.fault(1, errors.New("the section script is missing"))
	}
}

// section reads a section's name.
func section(name string) (Section, error) {
	s := Section{Name: name}
	words := strings.Fields(name)
	if len(words) == 0 {
		return s, errors.New("a section without a name")
	}
	s.Kind = SectionKind(words[0])
	words = words[1:]
	switch s.Kind {
	case SectionInput, SectionTrace, SectionHistory:
		if len(words) == 0 {
			return s, fmt.Errorf("section %q needs a number", name)
		}
		n, err := strconv.Atoi(words[0])
		if err != nil || n < 1 {
			return s, fmt.Errorf("section %q: %q is not a number from 1", name, words[0])
		}
		s.N = n
		words = words[1:]
	case SectionOutput, SectionRequests, SectionRuns, SectionCompactability:
	default:
		return s, fmt.Errorf("unknown section %q", name)
	}
	if len(words) == 1 && words[0] == "full" && s.messages() {
		s.Full = true
		words = nil
	}
	if len(words) > 0 {
		return s, fmt.Errorf("section %q: unexpected %q", name, words[0])
	}
	return s, nil
}

// messages reports a section whose lines are messages.
func (s Section) messages() bool {
	switch s.Kind {
	case SectionOutput, SectionInput, SectionTrace, SectionHistory:
		return true
	case SectionRequests, SectionRuns, SectionCompactability:
	}
	return false
}

// check looks at the lines of the sections that hold no messages.
func (s Section) check() error {
	switch s.Kind {
	case SectionRequests:
		if len(s.Want) > 1 {
			return errors.New("requests is one number")
		}
		for _, w := range s.Want {
			if _, err := strconv.Atoi(w); err != nil {
				return fmt.Errorf("requests is a number, not %q", w)
			}
		}
	case SectionRuns:
		for _, w := range s.Want {
			if _, _, err := runsLine(w); err != nil {
				return err
			}
		}
	case SectionCompactability:
		if len(s.Want) > 1 {
			return errors.New("compactability is one word")
		}
	case SectionOutput, SectionInput, SectionTrace, SectionHistory:
	}
	return nil
}

func runsLine(line string) (id string, n int, err error) {
	i := strings.LastIndexAny(line, " \t")
	if i < 0 {
		return "", 0, fmt.Errorf("runs: %q is not ID COUNT", line)
	}
	n, err = strconv.Atoi(line[i+1:])
	if err != nil {
		return "", 0, fmt.Errorf("runs: %q is not ID COUNT", line)
	}
	return strings.TrimSpace(line[:i]), n, nil
}

func (p *parser) script(marker int, body string) {
	n := marker
	for line := range strings.SplitSeq(body, "\n") {
		n++
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "" || strings.HasPrefix(trimmed, "#"):
		case line[0] == ' ' || line[0] == '\t':
			if p.reply == nil {
				p.fault(n, fmt.Errorf("%q is indented, but no model statement is above it", trimmed))
				continue
			}
			p.fault(n, p.item(n, trimmed))
		default:
			p.closeReply()
			st, err := p.statement(n, trimmed)
			p.fault(n, err)
			if err == nil {
				p.s.Script = append(p.s.Script, st)
				p.reply = st.Reply
			}
		}
	}
	p.closeReply()
}

func (p *parser) closeReply() { p.reply = nil }
