package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"

	"rookery/protocol"
)

// Errors of writing a trace.
var (
	// ErrRaced reports that another orchestrator took the session first; see RaceError.
	ErrRaced = errors.New("another orchestrator was first")
	// ErrFenced reports that the session has another owner now, or was removed.
	ErrFenced = errors.New("session has another owner")
	// ErrInDoubt reports a Log whose last Append ended without an answer: open
	// the log anew to learn what is stored.
	ErrInDoubt = errors.New("fate of the last append is unknown")
)

// A RaceError is an ErrRaced with what the winner wrote.
type RaceError struct{ Winner protocol.Own }

func (e *RaceError) Error() string {
	return fmt.Sprintf("%v: %s, epoch %d", ErrRaced, e.Winner.Node, e.Winner.Epoch)
}

// Is makes a RaceError an ErrRaced.
func (e *RaceError) Is(target error) bool { return target == ErrRaced }

// A Log is the right to write one session's trace. Only one goroutine may use it.
type Log struct {
	bus *Bus
	sid protocol.ID
	own protocol.Own

	last   uint64 // sequence of the session's last message
	shown  uint64 // sequence of its last visible frame
	n      uint64 // number of its last visible record
	writes int    // publishes of this Log
	broken error
}

// Stored tells where records are.
type Stored struct {
	// Seq is the sequence of the last frame, N the dense number of the session's
	// last visible record.
	Seq, N uint64
}

// OpenLog takes a session over: it appends an own record with the next epoch, and
// from then on every older Log is fenced. When another node does that at the
// same moment one of them gets a RaceError. A session without a trace begins here.
func (b *Bus) OpenLog(ctx context.Context, sid, node protocol.ID, boot string) (*Log, error) {
	return b.openLog(ctx, sid, node, boot, nil)
}

// TakeLog is OpenLog for who has looked at the owner of an epoch, 0 for none, and
// takes the session from that one only: anybody else is the winner of a race.
func (b *Bus) TakeLog(ctx context.Context, sid, node protocol.ID, boot string, from uint64) (*Log, error) {
	return b.openLog(ctx, sid, node, boot, &from)
}

func (b *Bus) openLog(ctx context.Context, sid, node protocol.ID, boot string, from *uint64) (*Log, error) {
	if err := checkIDs(sid, node); err != nil {
		return nil, err
	}
	l, shownOrOwn, err := b.recall(ctx, sid)
	if err != nil {
		return nil, fmt.Errorf("open trace of %s: %w", sid, err)
	}
	if from != nil && l.own.Epoch != *from {
		return nil, fmt.Errorf("take over %s: %w", sid, b.raced(ctx, sid))
	}
	l.own = protocol.Own{Epoch: l.own.Epoch + 1, Node: node, Boot: boot}
	m := nats.NewMsg(b.traceOwn(sid))
	m.Data = protocol.Encode(l.own)
	m.Header.Set(hdrPrev, strconv.FormatUint(shownOrOwn, 10))
	err = l.write(ctx, m)
	if errors.Is(err, ErrFenced) {
		err = b.raced(ctx, sid)
	}
	if err != nil {
		return nil, fmt.Errorf("take over %s: %w", sid, err)
	}
	return l, nil
}

// raced is the RaceError of a session that somebody else took.
func (b *Bus) raced(ctx context.Context, sid protocol.ID) error {
	winner, _, err := b.LastOwn(ctx, sid)
	switch {
	case err != nil:
		return err
	case winner == nil:
		winner = &protocol.Own{}
	}
	return &RaceError{*winner}
}

// recall reads where a session's trace stands. shownOrOwn is the last sequence
// that viewers get.
func (b *Bus) recall(ctx context.Context, sid protocol.ID) (l *Log, shownOrOwn uint64, err error) {
	l = &Log{bus: b, sid: sid}
	c, err := b.lastPiece(ctx, b.traceAll(sid))
	if errors.Is(err, errNotStored) {
		return l, 0, nil
	} else if err != nil {
		return nil, 0, err
	}
	l.last = c.seq
	own, ownSeq, err := b.LastOwn(ctx, sid)
	if err != nil {
		return nil, 0, err
	}
	if own != nil {
		l.own.Epoch = own.Epoch
	}
	for c.context == 0 && c.prev != 0 { // owners that wrote nothing
		if c, err = b.pieceAt(ctx, c.prev); err != nil {
			return nil, 0, err
		}
	}
	switch {
	case c.context == 0:
	case c.private:
		l.shown, l.n = c.prev, c.n
	default:
		l.shown, l.n = c.seq, c.n+c.records()
		if c.n > 0 {
			l.n--
		}
	}
	return l, max(l.shown, ownSeq), nil
}

func (b *Bus) lastPiece(ctx context.Context, filter string) (piece, error) {
	m, err := b.last(ctx, b.stream(streamTrace), filter)
	if err != nil {
		return piece{}, err
	}
	return b.piece(m)
}

func (b *Bus) pieceAt(ctx context.Context, seq uint64) (piece, error) {
	m, err := b.get(ctx, b.stream(streamTrace), map[string]any{"seq": seq})
	if err != nil {
		return piece{}, fmt.Errorf("message %d: %w", seq, err)
	}
	return b.piece(m)
}

// LastOwn reads who took the session last, and where; nil when nobody has.
func (b *Bus) LastOwn(ctx context.Context, sid protocol.ID) (own *protocol.Own, seq uint64, err error) {
	if err := checkIDs(sid); err != nil {
		return nil, 0, err
	}
	m, err := b.last(ctx, b.stream(streamTrace), b.traceOwn(sid))
	if errors.Is(err, errNotStored) {
		return nil, 0, nil
	} else if err != nil {
		return nil, 0, fmt.Errorf("owner of %s: %w", sid, err)
	}
	own = &protocol.Own{}
	if err := protocol.Unmarshal(m.Data, own); err != nil {
		return nil, 0, fmt.Errorf("owner of %s: %w", sid, err)
	}
	return own, number(m, hdrSequence), nil
}

// Epoch is the number of this ownership.
func (l *Log) Epoch() uint64 { return l.own.Epoch }

// Last is where the trace stands.
func (l *Log) Last() Stored { return Stored{Seq: l.last, N: l.n} }

// Append stores records of one context, in order, and returns when they are
// stored. Records that fit share a frame; a record over 192 KiB takes several, and
// more than 256 KiB take one publish after the other: then a failure may leave
// the first of them stored.
//
// It repeats itself over cut connections and silent brokers until ctx ends; after
// that the Log is ErrInDoubt. ErrFenced is final.
func (l *Log) Append(ctx context.Context, contextNumber int, private bool, ms []protocol.Message) (Stored, error) {
	if l.broken != nil {
		return l.Last(), fmt.Errorf("append to trace of %s: %w", l.sid, l.broken)
	}
	subject := l.bus.traceContext(l.sid, contextNumber, private)
	for _, body := range pack(ms) {
		m := nats.NewMsg(subject)
		m.Data = body.data
		if body.part != (part{}) {
			m.Header.Set(hdrPart, body.String())
		}
		n := l.n
		if !private {
			n++
		}
		m.Header.Set(hdrN, strconv.FormatUint(n, 10))
		m.Header.Set(hdrPrev, strconv.FormatUint(l.shown, 10))
		if err := l.write(ctx, m); err != nil {
			return l.Last(), fmt.Errorf("append to trace of %s: %w", l.sid, err)
		}
		if !private {
			l.shown = l.last
			l.n += uint64(body.records)
		}
	}
	return l.Last(), nil
}

// A body is the content of one publish and the records it completes.
type body struct {
	part
	data    []byte
	records int
}

// pack distributes records over frames.
func pack(ms []protocol.Message) (out []body) {
	var frame body
	flush := func() {
		if frame.records > 0 {
			out, frame = append(out, frame), body{}
		}
	}
	for _, m := range ms {
		line := m.Encode()
		if len(line) > maxRecord {
			flush()
			out = append(out, parts(line)...)
			continue
		}
		if len(frame.data)+1+len(line) > maxFrame {
			flush()
		}
		if frame.records > 0 {
			frame.data = append(frame.data, '\n')
		}
		frame.data = append(frame.data, line...)
		frame.records++
	}
	flush()
	return out
}

func parts(line []byte) []body {
	n := (len(line) + maxRecord - 1) / maxRecord
	out := make([]body, n)
	for i := range out {
		data := line[i*maxRecord : min(len(line), (i+1)*maxRecord)]
		out[i] = body{part: part{i + 1, n}, data: data}
	}
	out[n-1].records = 1
	return out
}

// write stores one message of the trace behind l.last, or finds out why not.
func (l *Log) write(ctx context.Context, m *nats.Msg) error {
	id := fmt.Sprintf("%s/%d/%s/%d", l.sid, l.own.Epoch, l.own.Boot, l.writes)
	l.writes++
	m.Header.Set(nats.MsgIdHdr, id)
	m.Header.Set(nats.ExpectedLastSubjSeqHdr, strconv.FormatUint(l.last, 10))
	m.Header.Set(hdrExpectFilter, l.bus.traceAll(l.sid))
	seq, err := l.bus.storeBehind(ctx, m, id, l.last)
	if err != nil {
		l.broken = ErrInDoubt
		if errors.Is(err, ErrFenced) {
			l.broken = ErrFenced
		}
		return err
	}
	l.last = seq
	return nil
}

// hdrExpectFilter names the subjects that the expected sequence counts. All
// writers must send the same literal string: replicas tell writes in flight
// apart by it.
const hdrExpectFilter = "Nats-Expected-Last-Subject-Sequence-Subject"

// storeBehind resolves every answer to a compare-and-append:
//
//	stored             done
//	conflict, busy,    the last message is mine: done; it is still the expected
//	or duplicate       one: again; else fenced
//	anything unclear   the same bytes again
func (b *Bus) storeBehind(ctx context.Context, m *nats.Msg, id string, expected uint64) (uint64, error) {
	filter := m.Header.Get(hdrExpectFilter)
	for {
		a, err := b.store(ctx, m)
		r := refused(err)
		switch {
		case err == nil && !a.Duplicate:
			return a.Seq, nil
		case err != nil && (r == nil || r.Code != codeConflict && r.Code != codeBusy):
			return 0, err
		}
		last, err := b.last(ctx, b.stream(streamTrace), filter)
		switch {
		case errors.Is(err, errNotStored):
			if expected != 0 {
				return 0, fmt.Errorf("%w: its trace was removed", ErrFenced)
			}
		case err != nil:
			return 0, err
		case last.Header.Get(nats.MsgIdHdr) == id:
			return number(last, hdrSequence), nil
		case number(last, hdrSequence) != expected:
			return 0, ErrFenced
		}
		if pause(ctx, retryPause/10) != nil {
			return 0, b.gaveUp(ctx, refusedOr(r, errBehind))
		}
	}
}

func refusedOr(r *refusal, err error) error {
	if r == nil {
		return err
	}
	return r
}
