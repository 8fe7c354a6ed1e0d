package tool

import (
	"context"
	"fmt"
	"sync"

	"rookery/protocol"
)

// Sizes of the file that keeps a truncated output whole.
const (
	spillChunk = 256 << 10
	// spillHead is how much is held in memory before a file is begun: bytes that
	// are no text count as one character, however many they are.
	spillHead = 256 << 10
	// spillMax is where the file ends, for a command that may print without limit.
	spillMax = DefaultPrinted
)

// resultRest is room in a result for what is neither output nor image.
const resultRest = 8 << 10

// A sink takes what a tool prints: it streams the head, and once that is full it
// has everything written to a file of the session.
type sink struct {
	ctx     context.Context //nolint:containedctx // of the call: a sink lives as long
	session *Session
	name    string
	emit    func(string)

	mu     sync.Mutex // a command's reader writes while Execute may finish
	text   protocol.Output
	raw    []byte // not yet in the file
	begun  bool   // the file exists
	broken bool   // the file could not be written, or there is no session
	size   int64
	short  bool // more was printed than the file may hold
	closed bool
}

func newSink(ctx context.Context, s *Session, dispatch string, limit int, emit func(string)) *sink {
	name := "call-" + protocol.Token(6)
	if id, err := protocol.ParseID(dispatch); err == nil {
		name = string(id)
	}
	return &sink{
		ctx: context.WithoutCancel(ctx), session: s, name: name + ".txt", emit: emit,
		text: protocol.Output{Max: limit}, broken: s == nil,
	}
}

// Write implements io.Writer; it does not fail. After finish it drops b.
func (k *sink) Write(b []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return len(b), nil
	}
	if !k.text.Truncated() {
		if piece := k.text.Write(b); piece != "" {
			k.emit(piece)
		}
	}
	k.keep(b)
	return len(b), nil
}

func (k *sink) keep(b []byte) {
	if k.broken || k.short {
		return
	}
	if left := spillMax - k.size - int64(len(k.raw)); int64(len(b)) > left {
		b, k.short = b[:left], true
	}
	k.raw = append(k.raw, b...)
	if k.begun && len(k.raw) >= spillChunk || len(k.raw) > spillHead || k.text.Truncated() && !k.begun {
		k.flush()
	}
}

// flush writes what is held to the file.
func (k *sink) flush() {
	if !k.begun {
		k.session.makeRoom(k.ctx)
	}
	if err := k.session.spill(k.ctx, k.name, k.raw); err != nil {
		k.broken = true // the note then names no file
	}
	k.begun, k.size = true, k.size+int64(len(k.raw))
	k.raw = k.raw[:0]
}

// finish ends the output with its notes and returns the call's result.
func (k *sink) finish(rep Report, err error) protocol.Result {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	stop, reason, notes := verdict(rep, err)
	images := rep.Images
	if stop != protocol.Completed {
		images = nil
	}
	if size := len(protocol.Encode(images)) + len(protocol.Encode(k.text.Text())); len(images) > 0 && size > protocol.MaxBody-resultRest {
		images, notes = nil, append(notes, "[images left out: too large]")
	}
	if piece := k.text.Finish(k.full(), notes...); piece != "" {
		k.emit(piece)
	}
	return protocol.Result{
		Output: k.text.Text(), Images: images, StopReason: stop, Reason: string(reason),
		Resources: protocol.Resources{CPU: rep.Usage.CPU, PeakMem: rep.Usage.PeakMem},
	}
}

// full completes the file and returns its path; without need it removes it.
func (k *sink) full() string {
	if k.broken || !k.text.Truncated() {
		if k.begun {
			k.session.drop(k.ctx, k.name)
		}
		return ""
	}
	k.flush()
	if k.broken {
		k.session.drop(k.ctx, k.name)
		return ""
	}
	path := k.session.spilled(k.name, k.size)
	if k.short {
		path += fmt.Sprintf(", its first %d MiB", spillMax>>20)
	}
	return path
}
