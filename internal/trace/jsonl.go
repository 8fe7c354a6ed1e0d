package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"rookery/protocol"
)

// ErrNoTrace reports that no trace is where one was looked for.
var ErrNoTrace = errors.New("no trace")

// A Warning tells of a line that was left out on import (L164).
type Warning struct {
	File string
	Line int // from 1
	Err  error
}

// String returns "file:line: why".
func (w Warning) String() string { return fmt.Sprintf("%s:%d: %v", w.File, w.Line, w.Err) }

// ExportOptions change what is exported. Nil is the zero value.
type ExportOptions struct {
	// Strict leaves out our own events, for programs that can't pass over them.
	Strict bool
}

// FileName is the name of a context in the JSONL layout: <session>_001.jsonl (L129).
func FileName(session string, context int) string {
	return fmt.Sprintf("%s_%03d.jsonl", session, context)
}

var fileShape = regexp.MustCompile(`^(.+)_(\d{3,})\.jsonl$`)

// SplitFileName reads what FileName wrote.
func SplitFileName(name string) (session string, context int, ok bool) {
	m := fileShape.FindStringSubmatch(filepath.Base(name))
	if m == nil {
		return "", 0, false
	}
	n, err := strconv.Atoi(m[2])
	return m[1], n, err == nil && n > 0
}

// Export writes the records of a session to dir, one file a context, private ones
// included, and returns the files' names. It stops at the first error of records;
// each file appears whole or not at all.
func Export(dir, session string, records iter.Seq2[Record, error], opts *ExportOptions) ([]string, error) {
	contexts := map[int]*bytes.Buffer{}
	for r, err := range records {
		if err != nil {
			return nil, fmt.Errorf("export %s: %w", session, err)
		}
		if opts != nil && opts.Strict && protocol.IsOwn(r.Message.Payload) {
			continue
		}
		b := contexts[r.Context]
		if b == nil {
			b = &bytes.Buffer{}
			contexts[r.Context] = b
		}
		b.Write(r.Message.Encode())
		b.WriteByte('\n')
	}
	var files []string
	for context, b := range contexts {
		file := filepath.Join(dir, FileName(session, context))
		if err := writeFile(file, b.Bytes()); err != nil {
			return nil, fmt.Errorf("export %s: %w", session, err)
		}
		files = append(files, file)
	}
	slices.Sort(files)
	return files, nil
}

// writeFile writes beside the file and renames.
func writeFile(file string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(file), ".export-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}

// Import reads the session that file is a context of, all its contexts beside it
// included, in order. Every record that can be read is kept; lines that can't are
// told as warnings. It wraps ErrNoTrace when there is none or the name has not the
// layout's form.
func Import(file string) (session string, records []Record, warnings []Warning, err error) {
	session, _, ok := SplitFileName(file)
	if !ok {
		return "", nil, nil, fmt.Errorf("%w: the name of %s is not like <session>_001.jsonl", ErrNoTrace, file)
	}
	files, err := layout(filepath.Dir(file))
	if err != nil {
		return "", nil, nil, fmt.Errorf("import %s: %w", file, err)
	}
	if len(files[session]) == 0 {
		return "", nil, nil, fmt.Errorf("import %s: %w", file, ErrNoTrace)
	}
	for _, f := range files[session] {
		rs, ws, err := importFile(f)
		if err != nil {
			return "", nil, nil, fmt.Errorf("import %s: %w", f, err)
		}
		records, warnings = append(records, rs...), append(warnings, ws...)
	}
	return session, records, warnings, nil
}

// layout lists the context files of each session in dir, in the order of contexts.
func layout(dir string) (map[string][]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	files := map[string][]string{}
	for _, e := range entries {
		if session, _, ok := SplitFileName(e.Name()); ok && !e.IsDir() {
			files[session] = append(files[session], filepath.Join(dir, e.Name()))
		}
	}
	for _, fs := range files {
		slices.SortFunc(fs, func(a, b string) int {
			_, n, _ := SplitFileName(a)
			_, m, _ := SplitFileName(b)
			return n - m
		})
	}
	return files, nil
}

func importFile(file string) ([]Record, []Warning, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	_, context, _ := SplitFileName(file)
	return ReadContext(f, file, context)
}

// ReadContext reads one context's JSONL. name stands in the warnings; privacy is
// what a Placer says. The error is the reader's own.
func ReadContext(r io.Reader, name string, context int) ([]Record, []Warning, error) {
	var records []Record
	var warnings []Warning
	placer := Placer{Context: context - 1}
	in := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		last := errors.Is(err, io.EOF)
		if err != nil && !last {
			return records, warnings, fmt.Errorf("read line %d: %w", n, err)
		}
		if len(bytes.TrimSpace(line)) > 0 {
			m, bad := protocol.Decode(line)
			switch {
			case bad == nil:
				_, private, _ := placer.Place(m)
				records = append(records, Record{Context: context, Private: private, Message: m})
			case last:
				warnings = append(warnings, Warning{name, n, fmt.Errorf("the last line is torn and ignored: %w", bad)})
			default:
				warnings = append(warnings, Warning{name, n, fmt.Errorf("bad line skipped: %w", bad)})
			}
		}
		if last {
			return records, warnings, nil
		}
	}
}

// Newest returns the session in dir with the latest timestamp in its records among
// those that hold more than session_meta, and its first file (L167). It wraps
// ErrNoTrace when there is none.
func Newest(dir string) (session, file string, err error) {
	files, err := layout(dir)
	if err != nil {
		return "", "", fmt.Errorf("look for traces: %w", err)
	}
	var latest time.Time
	for name, fs := range files {
		at, ok, err := lastChange(fs)
		if err != nil {
			return "", "", fmt.Errorf("look for traces: %w", err)
		}
		newer := at.After(latest) || at.Equal(latest) && strings.Compare(name, session) > 0
		if ok && newer {
			session, file, latest = name, fs[0], at
		}
	}
	if session == "" {
		return "", "", fmt.Errorf("%w in %s", ErrNoTrace, dir)
	}
	return session, file, nil
}

// lastChange returns the latest timestamp in a session's files; ok is false when
// they hold nothing but session_meta.
func lastChange(files []string) (at time.Time, ok bool, err error) {
	for _, f := range files {
		records, _, err := importFile(f)
		if err != nil {
			return at, false, fmt.Errorf("%s: %w", f, err)
		}
		for _, r := range records {
			if r.Message.Type() != protocol.TypeSessionMeta {
				ok = true
			}
			if r.Message.Timestamp.After(at) {
				at = r.Message.Timestamp
			}
		}
	}
	return at, ok, nil
}
