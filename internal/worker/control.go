package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"rookery/internal/tool"
	"rookery/protocol"
)

// The verbs of rk.ctl.<wid>.
const (
	VerbCancel  = "cancel"  // interrupt Dispatch, or all calls of Session
	VerbAdopt   = "adopt"   // open Workspace for Session; the answer names it
	VerbDrain   = "drain"   // take no new call and end
	VerbStatus  = "status"  // what became of Dispatch here
	VerbRead    = "read"    // the text of Path in the workspace of Session
	VerbRelease = "release" // end Session here
)

// What a status says of a dispatch. Unknown is one that never ran here, or whose
// result is stored.
const (
	callRunning = "running"
	callHeld    = "held"
	callUnknown = "unknown"
)

// A desk answers requests to a worker. They may take long, so each has a
// goroutine, until close.
type desk struct {
	worker *Worker
	ctx    context.Context //nolint:containedctx // a request has none of its own

	mu     sync.Mutex
	closed bool
	group  sync.WaitGroup
}

func (k *desk) handle(verb string, c protocol.Control, respond func(protocol.ControlReply)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		respond(protocol.ControlReply{Error: "the worker has stopped", Boot: k.worker.boot})
		return
	}
	k.group.Go(func() {
		r, err := k.worker.answer(k.ctx, verb, c)
		r.OK, r.Boot = err == nil, k.worker.boot
		if err != nil {
			r.Error = err.Error()
		}
		respond(r)
	})
}

// close waits for the requests that were taken.
func (k *desk) close() {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.group.Wait()
}

func (w *Worker) answer(ctx context.Context, verb string, c protocol.Control) (r protocol.ControlReply, err error) {
	switch verb {
	case VerbDrain:
		w.log.InfoContext(ctx, "drain was asked for", "reason", c.Reason)
		w.Drain()
		return w.status(c), nil
	case VerbStatus:
		return w.status(c), nil
	}
	if _, err := protocol.ParseID(string(c.Session)); err != nil {
		return r, fmt.Errorf("session %w", err)
	}
	switch verb {
	case VerbCancel:
		r = w.status(c)
		w.running.cancel(c.Session, c.Dispatch, tool.ErrInterrupted)
		return r, nil
	case VerbAdopt:
		r.Workspace, err = w.sessions.adopt(ctx, c.Session, c.Workspace)
		r.Gone = errors.Is(err, errGone)
		return r, err
	case VerbRead:
		r.Content, err = w.read(ctx, c)
		return r, err
	case VerbRelease:
		w.running.cancel(c.Session, nil, tool.ErrInterrupted)
		return r, w.sessions.release(c.Session)
	}
	return r, fmt.Errorf("unknown request %q", verb)
}

func (w *Worker) status(c protocol.Control) protocol.ControlReply {
	state := w.state()
	r := protocol.ControlReply{Info: &state}
	if len(c.Dispatch) > 0 {
		r.Calls = map[string]string{}
	}
	for _, d := range c.Dispatch {
		r.Calls[d] = w.fate(key(c.Session, d))
	}
	return r
}

// fate looks at running first: a call goes from there into the journal, and leaves
// it when its result is stored.
func (w *Worker) fate(key string) string {
	running := w.running.has(key)
	switch {
	case w.journal.has(key):
		return callHeld
	case running:
		return callRunning
	}
	return callUnknown
}

func (w *Worker) read(ctx context.Context, c protocol.Control) (string, error) {
	if c.Path == "" {
		return "", errors.New("no path given")
	}
	s, done, err := w.sessions.use(ctx, c.Session, c.Workspace)
	if err != nil {
		return "", err
	}
	defer done()
	return s.ReadText(ctx, c.Path)
}
