package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"rookery/internal/bus"
	"rookery/protocol"
)

// An ends hears which tasks end, of all sessions, by what viewers get.
type ends struct {
	mu    sync.Mutex // the library's goroutine and whoever starts tasks
	waits map[string]chan ending
}

// An ending is a task_end, and when it was heard.
type ending struct {
	at time.Time
	ok bool
}

func (r *rig) ends() (*ends, error) {
	c, err := r.raw()
	if err != nil {
		return nil, err
	}
	return newEnds(c)
}

// endsAt is ends at a broker in another process.
func endsAt(r *rig, url string) (*ends, error) {
	c, err := nats.Connect(url)
	if err != nil {
		return nil, err
	}
	r.later(c.Close)
	return newEnds(c)
}

func newEnds(c *nats.Conn) (*ends, error) {
	e := &ends{waits: map[string]chan ending{}}
	s, err := c.Subscribe("rk.out.*.m.*", e.hear)
	if err != nil {
		return nil, err
	}
	_ = s.SetPendingLimits(-1, -1)
	return e, flush(c)
}

func (e *ends) hear(m *nats.Msg) {
	if !bytes.Contains(m.Data, []byte(`"type":"task_end"`)) {
		return
	}
	sid := strings.Split(m.Subject, ".")[2]
	e.mu.Lock()
	c := e.waits[sid]
	delete(e.waits, sid)
	e.mu.Unlock()
	if c != nil {
		c <- ending{at: time.Now(), ok: bytes.Contains(m.Data, []byte(`"status":"completed"`))}
	}
}

func (e *ends) of(sid protocol.ID) <-chan ending {
	c := make(chan ending, 1)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waits[string(sid)] = c
	return c
}

// run works one task to its end and returns how long that took from the command
// on. A task that does not complete is an error.
func (e *ends) run(ctx context.Context, b *bus.Bus, sid protocol.ID, prompt string) (time.Duration, error) {
	end := e.of(sid)
	began := time.Now()
	cmd := protocol.Command{
		ID: protocol.Token(8), Prompt: protocol.Payloads{protocol.UserText(prompt)},
		Options: protocol.TaskOptions{Approve: "allow-all", MaxTurns: -1},
	}
	r, err := b.Command(ctx, sid, protocol.VerbRun, cmd)
	if err == nil && !r.Code.Accepted() {
		err = fmt.Errorf("%s: %s", r.Code, r.Reason)
	}
	if err != nil {
		return 0, fmt.Errorf("run %s: %w", sid, err)
	}
	select {
	case x := <-end:
		if !x.ok {
			return 0, fmt.Errorf("the task of %s did not complete", sid)
		}
		return x.at.Sub(began), nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}
