package enginetest

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/txtar"

	"rookery/protocol"
)

// A Result is what a run of a scenario left, in the terms of the sections.
type Result struct {
	// Output is what a viewer saw, Traces the records by context.
	Output []protocol.Message
	Traces map[int][]protocol.Message
	// Inputs and Histories are those of the requests, in order.
	Inputs, Histories [][]protocol.Message
	// Runs counts how often each call really ran.
	Runs map[string]int
	// Compactability is its value at the end.
	Compactability string
}

// Lines returns what stands against a section: the same kinds of lines that the
// section speaks of.
func (r *Result) Lines(s Section) ([]string, error) {
	switch s.Kind {
	case SectionOutput:
		return s.render(r.Output), nil
	case SectionTrace:
		return s.render(r.Traces[s.N]), nil
	case SectionInput, SectionHistory:
		of := r.Inputs
		if s.Kind == SectionHistory {
			of = r.Histories
		}
		if s.N > len(of) {
			return nil, fmt.Errorf("there is no request %d, only %d", s.N, len(of))
		}
		return s.render(of[s.N-1]), nil
	case SectionRequests:
		return []string{strconv.Itoa(len(r.Inputs))}, nil
	case SectionRuns:
		return runLines(r.Runs), nil
	case SectionCompactability:
		return []string{r.Compactability}, nil
	}
	return nil, fmt.Errorf("unknown section %q", s.Name)
}

func runLines(runs map[string]int) []string {
	var lines []string
	for id, n := range runs {
		if n > 0 {
			lines = append(lines, fmt.Sprintf("%s %d", id, n))
		}
	}
	slices.Sort(lines)
	return lines
}

// render writes messages as the section shows them: without partials, and without
// our own events, unless the section has such a line.
func (s Section) render(ms []protocol.Message) []string {
	partials := slices.ContainsFunc(s.Want, isPartialLine)
	own := slices.ContainsFunc(s.Want, isOwnLine)
	var lines []string
	for _, m := range ms {
		line := m.String()
		if s.Full {
			line = fullLine(m)
		}
		if isPartialLine(line) && !partials || isOwnLine(line) && !own {
			continue
		}
		lines = append(lines, line)
	}
	return lines
}

// fullLine is the notation with the name and arguments of a call.
func fullLine(m protocol.Message) string {
	return strings.TrimSuffix(m.String(), protocol.Notation(m.Payload, false)) + protocol.Notation(m.Payload, true)
}

// bare cuts the origin chain off a line.
func bare(line string) string {
	for {
		i := strings.IndexAny(line, `/"[(`)
		if i < 0 || line[i] != '/' {
			return line
		}
		line = line[i+1:]
	}
}

func isPartialLine(line string) bool { return strings.HasPrefix(bare(line), "partial_") }

func isOwnLine(line string) bool { return strings.HasPrefix(bare(line), "+") }

// Check compares every section of the scenario and returns what differs, one
// error a section. level decides how the output is compared.
func (s *Scenario) Check(r *Result, level Level) []error {
	var faults []error
	for _, sec := range s.Sections {
		got, err := r.Lines(sec)
		if err == nil {
			err = sec.Compare(got, level)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s:%d: %s: %w", s.File, sec.Line, sec.Name, err))
		}
	}
	return faults
}

// Compare holds the section against the lines that Result.Lines gave.
func (s Section) Compare(got []string, level Level) error {
	want := s.Want
	switch {
	case s.Kind == SectionRuns:
		return equal(normalRuns(want), got)
	case s.Kind == SectionOutput && level == LevelStack:
		return compareStack(want, got)
	}
	return equal(want, spoken(want, got))
}

func normalRuns(want []string) []string {
	runs := map[string]int{}
	for _, line := range want {
		if id, n, err := runsLine(line); err == nil {
			runs[id] += n
		}
	}
	return runLines(runs)
}

func equal(want, got []string) error {
	if slices.Equal(want, got) {
		return nil
	}
	return fmt.Errorf("differs (- wanted, + got)\n%s", Diff(want, got))
}

// Update writes the file anew with what r left in the sections that are present.
func (s *Scenario) Update(r *Result) error {
	a := &txtar.Archive{Comment: s.archive.Comment, Files: slices.Clone(s.archive.Files)}
	for _, sec := range s.Sections {
		lines, err := r.Lines(sec)
		if err != nil {
			return fmt.Errorf("update %s: %s: %w", s.File, sec.Name, err)
		}
		var b bytes.Buffer
		for _, line := range lines {
			b.WriteString(line + "\n")
		}
		a.Files[sec.file].Data = b.Bytes()
	}
	if err := os.WriteFile(s.File, txtar.Format(a), 0o600); err != nil {
		return fmt.Errorf("update scenario: %w", err)
	}
	return nil
}
