package tool

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"rookery/internal/sandbox"
	"rookery/protocol"
)

// Bounds of read_file.
const (
	defaultLines = 2000
	lineChars    = 2000     // characters shown of one line
	maxScan      = 64 << 20 // bytes read to reach the first line wanted
	sniffBytes   = 8 << 10  // a NUL in these makes a file binary
)

func readSpec() protocol.Tool {
	return spec(opRead, "Read a text file of the workspace. Each line comes with its number and a tab. Long files come in parts: "+
		"the end of the output says where to go on.", `{
		"type": "object",
		"properties": {
			"path": {"type": "string", "minLength": 1, "description": "File, relative to the workspace or absolute in it"},
			"offset": {"type": "integer", "minimum": 1, "description": "First line, from 1; default 1"},
			"limit": {"type": "integer", "minimum": 1, "description": "Number of lines; default 2000"}
		},
		"required": ["path"],
		"additionalProperties": false
	}`)
}

type readArgs struct {
	Path   string `json:"path"`
	Offset int    `json:"offset"`
	Limit  int    `json:"limit"`
}

func readFile(ctx context.Context, v *sandbox.View, a readArgs, limit int) (string, error) {
	tree, rel, err := v.Find("", a.Path)
	if err != nil {
		return "", err
	}
	f, info, err := openRegular(tree, rel, a.Path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	if a.Limit <= 0 {
		a.Limit = defaultLines
	}
	a.Offset = max(a.Offset, 1)
	r := bufio.NewReaderSize(f, 64<<10)
	sniff, err := r.Peek(sniffBytes)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", pathError(a.Path, err)
	}
	if kind := imageKind(sniff); kind != "" {
		return "", fmt.Errorf("%s is a %s image of %d bytes: use read_image", a.Path, kind, info.Size())
	}
	if bytes.IndexByte(sniff, 0) >= 0 {
		return "", fmt.Errorf("%s is a binary file of %d bytes", a.Path, info.Size())
	}
	if len(sniff) == 0 {
		return "[empty file]", nil
	}
	p := page{args: a, max: limit - 200} // room for the last note
	if err := p.read(ctx, r); err != nil {
		return "", err
	}
	return p.String(), nil
}

// imageKind tells by a file's first bytes whether it is an image that models see.
func imageKind(b []byte) string {
	switch {
	case bytes.HasPrefix(b, []byte("\x89PNG\r\n\x1a\n")):
		return "PNG"
	case bytes.HasPrefix(b, []byte("\xff\xd8\xff")):
		return "JPEG"
	case bytes.HasPrefix(b, []byte("GIF87a")), bytes.HasPrefix(b, []byte("GIF89a")):
		return "GIF"
	case len(b) > 12 && bytes.HasPrefix(b, []byte("RIFF")) && bytes.Equal(b[8:12], []byte("WEBP")):
		return "WebP"
	}
	return ""
}

// A page is the part of a file that read_file shows.
type page struct {
	args  readArgs
	max   int // characters
	text  strings.Builder
	chars int
	note  string
	crlf  bool
}

func (p *page) read(ctx context.Context, r *bufio.Reader) error {
	scanned := 0
	for n := 1; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		line, size, err := readLine(r, maxScan-scanned)
		scanned += size
		if errors.Is(err, errScan) && n >= p.args.Offset {
			p.add(n, line, size)
			p.note = fmt.Sprintf("[line %d does not end within %d MiB: use exec_command to read on]", n, maxScan>>20)
			return nil
		}
		if errors.Is(err, errScan) {
			return fmt.Errorf("line %d of %s is not within the first %d MiB: use exec_command with tail or sed", p.args.Offset, p.args.Path, maxScan>>20)
		}
		if err != nil {
			return pathError(p.args.Path, err)
		}
		if size == 0 {
			return p.end(n - 1)
		}
		if n < p.args.Offset {
			continue
		}
		if n >= p.args.Offset+p.args.Limit || !p.add(n, line, size) {
			p.note = fmt.Sprintf("[more lines follow: go on with offset %d]", n)
			return nil
		}
	}
}

func (p *page) end(lines int) error {
	if p.args.Offset > lines {
		return fmt.Errorf("%s has %d lines, offset %d is past its end", p.args.Path, lines, p.args.Offset)
	}
	if p.crlf {
		p.note = "[lines end with CRLF]"
	}
	return nil
}

// add shows a line; false means that there is no room for it. The first line
// always has room.
func (p *page) add(n int, line []byte, size int) bool {
	shown, cut := cutLine(line, size, min(lineChars, max(p.max-20, 80)))
	s := fmt.Sprintf("%6d\t%s", n, shown)
	if cut > 0 {
		s += fmt.Sprintf(" [line cut: %d more bytes]", cut)
	}
	chars := utf8.RuneCountInString(s) + 1
	if p.chars > 0 && p.chars+chars > p.max {
		return false
	}
	p.crlf = p.crlf || bytes.HasSuffix(line, []byte("\r"))
	p.chars += chars
	p.text.WriteString(s)
	p.text.WriteByte('\n')
	return true
}

func (p *page) String() string { return p.text.String() + p.note }

// cutLine returns the first limit characters of a line, clean and without a CR, and how
// many of the line's bytes are left out. size counts the line's newline, too.
func cutLine(line []byte, size, limit int) (string, int) {
	kept := line
	if utf8.RuneCount(kept) > limit {
		n := 0
		for range limit {
			_, w := utf8.DecodeRune(kept[n:])
			n += w
		}
		kept = kept[:n]
	}
	left := max(size-1-len(kept), 0)
	return protocol.Clean(string(bytes.TrimSuffix(kept, []byte("\r")))), left
}

var errScan = errors.New("scanned enough")

// readLine reads a line and returns its beginning, at most 16 KiB without the
// newline, and its whole size with it; 0 is the end of the file. It gives up
// with errScan after budget bytes.
func readLine(r *bufio.Reader, budget int) (head []byte, size int, err error) {
	const keep = 16 << 10
	for {
		part, err := r.ReadSlice('\n')
		size += len(part)
		if n := min(len(part), keep-len(head)); n > 0 {
			head = append(head, part[:n]...)
		}
		switch {
		case err == nil || errors.Is(err, io.EOF):
			if err == nil && len(head) == size {
				head = head[:size-1]
			} else if err != nil && size > 0 {
				size++ // as if the last line had its newline
			}
			return head, size, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, size, err
		case size > budget:
			return head, size, errScan
		}
	}
}
