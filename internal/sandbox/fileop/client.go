package fileop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"rookery/internal/sandbox"
	"rookery/internal/sandbox/confine"
)

// A Client has file operations run by a helper, which it starts at the first one,
// and again when it has died. It is safe for concurrent use. Close waits for its
// reader.
type Client struct {
	// start has the helper started with the near end of its socket.
	start func(socket *os.File) error

	reader   sync.WaitGroup
	starting sync.Mutex // held over a start
	mu       sync.Mutex
	conn     *confine.Conn // nil until it is started
	closed   bool
	next     uint64
	waiting  map[uint64]chan reply // of capacity 1; the reader writes
}

var errDied = errors.New("the session's file helper has died")

// NewClient returns a client whose helper start starts. The socket is closed after
// start returns.
func NewClient(start func(socket *os.File) error) *Client { return &Client{start: start} }

// Do runs an operation in the helper. When ctx is done it returns its cause at
// once, and the helper gives the operation up. After Interrupt it is
// sandbox.ErrClosed.
func (c *Client) Do(ctx context.Context, op string, args json.RawMessage) (json.RawMessage, error) {
	conn, id, answer, err := c.ask(ctx, op, args)
	if err != nil {
		return nil, err
	}
	defer c.forget(id)
	select {
	case r, ok := <-answer:
		switch {
		case !ok && c.over():
			return nil, sandbox.ErrClosed
		case !ok:
			return nil, errDied
		case r.Err != "":
			return nil, errors.New(r.Err)
		}
		return r.Out, nil
	case <-ctx.Done():
		_ = conn.Send(request{ID: id, Cancel: true}) // a dead one has nothing to cancel
		return nil, context.Cause(ctx)
	}
}

// ask sends the request, once more to a new helper when the present one is dead and
// got nothing.
func (c *Client) ask(ctx context.Context, op string, args json.RawMessage) (*confine.Conn, uint64, chan reply, error) {
	for again := true; ; again = false {
		conn, err := c.connect(ctx)
		if err != nil {
			return nil, 0, nil, err
		}
		id, answer := c.expect()
		if answer == nil {
			return nil, 0, nil, sandbox.ErrClosed
		}
		err = conn.Send(request{ID: id, Op: op, Args: args})
		if err == nil {
			return conn, id, answer, nil
		}
		c.forget(id)
		c.drop(conn)
		if !again {
			return nil, 0, nil, errors.Join(errDied, err)
		}
	}
}

// drop forgets a connection that is broken.
func (c *Client) drop(conn *confine.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == conn {
		c.conn = nil
		c.fail()
	}
}

// connect returns the connection to a helper that is ready.
func (c *Client) connect(ctx context.Context) (*confine.Conn, error) {
	c.starting.Lock()
	defer c.starting.Unlock()
	c.mu.Lock()
	conn, closed := c.conn, c.closed
	c.mu.Unlock()
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
	err = c.start(far)
	_ = far.Close()
	if err == nil {
		err = ready(ctx, conn)
	}
	if err == nil {
		err = c.serve(conn)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the session's file helper: %w", err), conn.Close())
	}
	return conn, nil
}

func ready(ctx context.Context, conn *confine.Conn) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	var r reply
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
func (c *Client) serve(conn *confine.Conn) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return sandbox.ErrClosed
	}
	c.conn, c.waiting = conn, map[uint64]chan reply{}
	c.reader.Go(func() { c.read(conn) })
	return nil
}

func (c *Client) read(conn *confine.Conn) {
	for {
		var r reply
		_, err := conn.Recv(&r)
		if err != nil {
			c.drop(conn)
			_ = conn.Close()
			return
		}
		c.mu.Lock()
		if answer, ok := c.waiting[r.ID]; ok {
			answer <- r
			delete(c.waiting, r.ID)
		}
		c.mu.Unlock()
	}
}

// fail ends all waiting; the caller holds mu.
func (c *Client) fail() {
	for id, answer := range c.waiting {
		close(answer)
		delete(c.waiting, id)
	}
}

func (c *Client) expect() (uint64, chan reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, nil
	}
	c.next++
	answer := make(chan reply, 1)
	if c.conn == nil { // it died since
		close(answer)
		return c.next, answer
	}
	c.waiting[c.next] = answer
	return c.next, answer
}

func (c *Client) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

func (c *Client) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// Interrupt ends what waits, and lets nothing begin.
func (c *Client) Interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.fail()
}

// Close ends the connection, and with it the helper.
func (c *Client) Close() {
	c.Interrupt()
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
	c.reader.Wait()
}
