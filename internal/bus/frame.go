package bus

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"rookery/protocol"
)

// Limits of the trace, in bytes.
const (
	maxFrame  = 256 << 10 // records that share a frame
	maxRecord = 192 << 10 // a larger record is stored in parts of this size
)

// Headers of a frame.
const (
	hdrN    = "Rk-N"
	hdrPrev = "Rk-Prev"
	hdrPart = "Rk-Part"
)

// A Frame is what one publish stored: records of one context, or an own record.
// A record that was stored in parts is one frame with the sequence of its last part.
type Frame struct {
	Seq uint64 `json:"seq"`
	// Context counts from 1; it is 0 for an own record.
	Context int  `json:"context,omitempty"`
	Private bool `json:"private,omitempty"`
	// N is the dense number of the first of Messages among the session's visible
	// records, from 1. A private frame has the number of the last visible record.
	N uint64 `json:"n,omitempty"`
	// Prev is the sequence of the visible frame before this one; before an own
	// record, that of the last visible frame or own record.
	Prev uint64 `json:"prev,omitempty"`
	// Pos is the place of the first of Messages in the stored frame; not 0 only in
	// history that begins within a frame.
	Pos      int                `json:"pos,omitempty"`
	Messages []protocol.Message `json:"messages,omitempty"`
	Own      *protocol.Own      `json:"own,omitempty"`
	Time     time.Time          `json:"time"`
}

// Visible reports that viewers get the frame's records.
func (f Frame) Visible() bool { return f.Own == nil && !f.Private }

// Last is the dense number of the last visible record up to and including f.
func (f Frame) Last() uint64 {
	if f.Visible() {
		return f.N + uint64(len(f.Messages)) - 1
	}
	return f.N
}

// After returns what of f comes after a cursor; ok is false when nothing does.
func (f Frame) After(c protocol.Cursor) (rest Frame, ok bool) {
	if f.Seq != c.Seq {
		return f, f.Seq > c.Seq
	}
	skip := c.Pos + 1 - f.Pos
	if !f.Visible() || skip >= len(f.Messages) {
		return f, false
	}
	if skip > 0 {
		f.Messages, f.Pos, f.N = f.Messages[skip:], f.Pos+skip, f.N+uint64(skip)
	}
	return f, true
}

// A part is the place of a part frame in its record, from 1.
type part struct{ i, n int }

func (p part) String() string { return strconv.Itoa(p.i) + "/" + strconv.Itoa(p.n) }

// last reports that p ends its record; the zero part is a whole frame.
func (p part) last() bool { return p.i == p.n }

func parsePart(s string) (part, error) {
	if s == "" {
		return part{}, nil
	}
	a, b, _ := strings.Cut(s, "/")
	i, iok := digits(a)
	n, nok := digits(b)
	if !iok || !nok || i < 1 || i > n {
		return part{}, fmt.Errorf("%s %.40q: want i/n", hdrPart, s)
	}
	return part{i, n}, nil
}

// A piece is one stored message of a trace, before its records are read.
type piece struct {
	place
	part
	seq, n, prev uint64
	body         []byte
	time         time.Time
}

// piece reads headers and subject of a stored or republished message.
func (p names) piece(m *nats.Msg) (piece, error) {
	pl, err := p.parseTrace(m.Subject)
	if err != nil {
		return piece{}, err
	}
	c := piece{place: pl, seq: number(m, hdrSequence), n: number(m, hdrN), prev: number(m, hdrPrev), body: m.Data, time: stamp(m)}
	if c.part, err = parsePart(m.Header.Get(hdrPart)); err != nil {
		return piece{}, fmt.Errorf("frame %d: %w", c.seq, err)
	}
	return c, nil
}

// records is the number of visible records that the piece completes.
func (c piece) records() uint64 {
	switch {
	case c.context == 0 || c.private || !c.last():
		return 0
	case c.part != part{}:
		return 1
	}
	return uint64(1 + strings.Count(string(c.body), "\n"))
}

func (c piece) frame() (Frame, error) {
	f := Frame{Seq: c.seq, Context: c.context, Private: c.private, N: c.n, Prev: c.prev, Time: c.time}
	var err error
	if c.context == 0 {
		f.Own = &protocol.Own{}
		err = protocol.Unmarshal(c.body, f.Own)
	} else if f.Messages, err = protocol.DecodeLines(c.body); err == nil && len(f.Messages) == 0 {
		err = errors.New("no records")
	}
	if err != nil {
		return f, fmt.Errorf("frame %d: %w", c.seq, err)
	}
	return f, nil
}

// An assembler makes frames of pieces that come in order. Parts count only when
// all of a record follow one another; a run that an owner left unfinished is
// skipped, and Prev of the next frame leads over it.
type assembler struct {
	open piece // the parts so far; open.part is the last one's
	// to was skipped, and from is before it.
	from, to uint64
}

// add takes the next piece; ok reports that it completed a frame.
func (a *assembler) add(c piece) (f Frame, ok bool, err error) {
	continues := a.open.i > 0 && c.i == a.open.i+1 && c.part.n == a.open.part.n &&
		c.place == a.open.place && (c.private || c.prev == a.open.seq)
	if !continues {
		a.drop()
		if c.i > 1 {
			a.open = c // a run without its beginning: not a record
			a.drop()
			return Frame{}, false, nil
		}
	}
	if a.to != 0 && c.prev == a.to {
		c.prev = a.from
	}
	if continues {
		c.body, c.prev = append(a.open.body, c.body...), a.open.prev
	}
	if !c.last() {
		a.open = c
		return Frame{}, false, nil
	}
	a.open = piece{}
	f, err = c.frame()
	return f, err == nil, err
}

// drop forgets an unfinished run.
func (a *assembler) drop() {
	if a.open.i == 0 {
		return
	}
	if !a.open.private {
		if a.to == 0 || a.open.prev != a.to {
			a.from = a.open.prev
		}
		a.to = a.open.seq
	}
	a.open = piece{}
}

// next is add for a message as it came.
func (a *assembler) next(p names, m *nats.Msg) (Frame, bool, error) {
	c, err := p.piece(m)
	if err != nil {
		return Frame{}, false, err
	}
	return a.add(c)
}
