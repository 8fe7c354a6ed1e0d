package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"rookery/internal/sandbox"
	"rookery/internal/sandbox/confine"
)

// A helperConn is the worker's side of the file helper, which is started by the
// first operation, and again when it has died. The session waits for its reader.
type helperConn struct {
	session *session

	starting sync.Mutex // held over a start
	mu       sync.Mutex
	conn     *confine.Conn // nil until it is started
	closed   bool
	next     uint64
	waiting  map[uint64]chan helperReply // of capacity 1; the reader writes
}

var errHelper = errors.New("the session's file helper has died")

func (h *helperConn) do(ctx context.Context, op string, args json.RawMessage) (json.RawMessage, error) {
	conn, err := h.connect(ctx)
	if err != nil {
		return nil, err
	}
	id, answer := h.expect()
	if answer == nil {
		return nil, sandbox.ErrClosed
	}
	defer h.forget(id)
	if err := conn.Send(helperRequest{ID: id, Op: op, Args: args}); err != nil {
		return nil, errors.Join(errHelper, err)
	}
	select {
	case r, ok := <-answer:
		switch {
		case !ok && h.over():
			return nil, sandbox.ErrClosed
		case !ok:
			return nil, errHelper
		case r.Err != "":
			return nil, errors.New(r.Err)
		}
		return r.Out, nil
	case <-ctx.Done():
		_ = conn.Send(helperRequest{ID: id, Cancel: true}) // a dead one has nothing to cancel
		return nil, context.Cause(ctx)
	}
}

// connect returns the connection to a helper that is ready.
func (h *helperConn) connect(ctx context.Context) (*confine.Conn, error) {
	h.starting.Lock()
	defer h.starting.Unlock()
	h.mu.Lock()
	conn, closed := h.conn, h.closed
	h.mu.Unlock()
	if closed {
		return nil, sandbox.ErrClosed
	}
	if conn != nil {
		return conn, nil
	}
	conn, far, err := confine.Pair()
	if err != nil {
		return nil, err
	}
	err = h.session.conn.Send(holderRequest{Helper: true, ID: h.session.name()}, int(far.Fd()))
	_ = far.Close()
	if err == nil {
		err = ready(ctx, conn)
	}
	if err == nil {
		err = h.serve(conn)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the session's file helper: %w", err), conn.Close())
	}
	return conn, nil
}

func ready(ctx context.Context, conn *confine.Conn) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	var r helperReply
	if _, err := conn.Recv(&r); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	if r.Err != "" {
		return errors.New(r.Err)
	}
	return nil
}

// serve uses the connection from now on.
func (h *helperConn) serve(conn *confine.Conn) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return sandbox.ErrClosed
	}
	h.conn, h.waiting = conn, map[uint64]chan helperReply{}
	h.session.around.Go(func() { h.read(conn) })
	return nil
}

func (h *helperConn) read(conn *confine.Conn) {
	for {
		var r helperReply
		_, err := conn.Recv(&r)
		h.mu.Lock()
		if err != nil {
			_ = conn.Close()
			h.conn = nil
			h.fail()
			h.mu.Unlock()
			return
		}
		if answer, ok := h.waiting[r.ID]; ok {
			answer <- r
			delete(h.waiting, r.ID)
		}
		h.mu.Unlock()
	}
}

// fail ends all waiting; the caller holds mu.
func (h *helperConn) fail() {
	for id, answer := range h.waiting {
		close(answer)
		delete(h.waiting, id)
	}
}

func (h *helperConn) expect() (uint64, chan helperReply) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return 0, nil
	}
	h.next++
	answer := make(chan helperReply, 1)
	if h.conn == nil { // it died since
		close(answer)
		return h.next, answer
	}
	h.waiting[h.next] = answer
	return h.next, answer
}

func (h *helperConn) forget(id uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.waiting, id)
}

func (h *helperConn) over() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.closed
}

// interrupt ends what waits, and lets nothing begin.
func (h *helperConn) interrupt() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.fail()
}

// close ends the reader.
func (h *helperConn) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conn != nil {
		_ = h.conn.Close()
	}
}
