package llm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"rookery/internal/engine"
	"rookery/protocol"
)

// Stream implements engine.Model. The one thing it sends twice is a request that
// the endpoint refused for an option it does not know: then without that option,
// which is remembered.
func (c *Client) Stream(ctx context.Context, req engine.Request, emit func(protocol.Payload) error) engine.Outcome {
	began := time.Now()
	a := c.attempt(req, emit)
	o := a.outcome(ctx, a.run(ctx, req))
	c.log.DebugContext(ctx, "model request ended", "session", req.Session, "request", req.Number,
		"status", string(o.Status), "finish", o.Finish, "took", time.Since(began))
	return o
}

// An attempt is one request and its reply.
type attempt struct {
	client *Client
	clock  clock
	reply  reply
	prompt float64 // estimated tokens of the request
}

func (c *Client) attempt(req engine.Request, emit func(protocol.Payload) error) *attempt {
	a := &attempt{client: c, clock: clock{idle: c.cfg.Idle, noProgress: c.cfg.NoProgress}}
	ids := req.IDs
	if ids == nil {
		ids = &protocol.CallIDs{}
	}
	a.reply = reply{
		queue:   queue{cfg: &c.cfg, emit: emit, ids: ids},
		plain:   !on(c.cfg.ThinkTags),
		offered: map[string]bool{},
	}
	for _, t := range req.Tools {
		a.reply.offered[t.Name] = true
	}
	return a
}

// run sends the request and reads the reply until its end, or what ended it.
func (a *attempt) run(ctx context.Context, req engine.Request) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a.clock.cancel = cancel
	s, err := a.send(ctx, req)
	if err == nil {
		defer s.body.Close()
		err = a.read(s)
	}
	if cause := context.Cause(ctx); cause != nil && err != nil && transport(err) {
		err = cause
	}
	return err
}

func (a *attempt) send(ctx context.Context, req engine.Request) (*stream, error) {
	for {
		b, err := a.client.encode(req)
		if err != nil {
			return nil, err
		}
		a.prompt = b.tokens
		p := &post{client: a.client, body: b, clock: &a.clock, id: requestID(req)}
		s, err := p.send(ctx)
		var refused *httpError
		if errors.As(err, &refused) && a.client.learn(refused, req) {
			continue
		}
		return s, err
	}
}

func requestID(req engine.Request) string {
	if req.Session == "" {
		return ""
	}
	return fmt.Sprintf("%s-%d", req.Session, req.Number)
}

// read takes the reply chunk by chunk.
func (a *attempt) read(s *stream) error {
	r := &a.reply
	if s.whole != nil {
		s.whole.Object = "chat.completion"
		r.done = true
		return a.feed(s.whole)
	}
	for {
		ev, err := s.events.next()
		r.began = r.began || s.events.comments
		switch {
		case isEOF(err):
			return errCutOff
		case errors.Is(err, errTooLarge):
			return err
		case err != nil:
			return readError(err)
		}
		data := bytes.TrimSpace(ev.data)
		if len(data) == 0 {
			continue
		}
		if bytes.HasPrefix(data, []byte("[DONE]")) {
			r.done = true
			a.drain(s)
			return nil
		}
		if err := a.event(ev); err != nil {
			return err
		}
	}
}

func (a *attempt) event(ev event) error {
	c, err := decodeChunk(ev)
	if errors.Is(err, errPing) {
		return nil
	}
	a.clock.progress()
	if err != nil {
		if c != nil {
			a.reply.report(c)
		}
		return err
	}
	return a.feed(c)
}

func (a *attempt) feed(c *chunk) error {
	r := &a.reply
	finished := r.finish != ""
	if err := r.feed(c); err != nil {
		return err
	}
	if r.queue.err != nil {
		return fmt.Errorf("%w: %w", errEmit, r.queue.err)
	}
	if !finished && r.finish != "" {
		a.clock.end(a.client.cfg.FinishGrace, errGrace)
	}
	return nil
}

// drain reads to the end of the body, which mostly is there already, so that the
// connection can be used again.
func (a *attempt) drain(s *stream) {
	a.clock.end(drainLimit, errDrain)
	for range 4 {
		if _, err := s.events.next(); err != nil {
			return
		}
	}
}

// outcome closes what is open and says how the attempt ended.
func (a *attempt) outcome(ctx context.Context, err error) engine.Outcome {
	r := &a.reply
	o := engine.Outcome{Status: protocol.Completed}
	if failure := a.settle(err); failure != nil {
		o = classify(ctx, failure, r.began)
		r.fail(o.Status)
	}
	if r.queue.err != nil && o.Status == protocol.Completed {
		o = classify(ctx, fmt.Errorf("%w: %w", errEmit, r.queue.err), r.began)
	}
	if key := a.client.cfg.APIKey; key != "" {
		o.Message = strings.ReplaceAll(o.Message, key, "[key]")
	}
	o.Finish = r.finish
	a.count(&o)
	return o
}

// settle returns nil when the reply is complete: it was finished, and is an
// answer. What happened to the stream after that does not count (L080).
func (a *attempt) settle(err error) error {
	r := &a.reply
	if r.finish == "" && !r.done {
		return err
	}
	fault := r.settle()
	if fault != nil && (err == nil || errors.Is(err, errCutOff) || errors.Is(err, errGrace)) {
		return fault
	}
	if fault != nil {
		return err
	}
	return nil
}

// count adds usage: what the endpoint reported, or for a completed reply an estimate.
func (a *attempt) count(o *engine.Outcome) {
	r := &a.reply
	if r.usage != nil {
		if u, reasoning, ok := r.usage.usage(); ok {
			o.Usage, o.Reasoning = &u, reasoning
			a.client.calibrate(u.CacheRead+u.CacheWrite, a.prompt)
			return
		}
	}
	if o.Status == protocol.Completed {
		u := a.client.guess(a.prompt, float64(r.size)/4)
		o.Usage, o.Estimated = &u, true
	}
}

// refuses reports a feature that the endpoint was seen to refuse.
func (c *Client) refuses(feature string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused[feature]
}

// learn reports that the endpoint refused an option that can be left out, which
// from now on it will be.
func (c *Client) learn(e *httpError, req engine.Request) bool {
	if e.status != http.StatusBadRequest && e.status != http.StatusUnprocessableEntity {
		return false
	}
	var feature string
	switch m := e.body.message; {
	case strings.Contains(m, "stream_options") || strings.Contains(m, "include_usage"):
		feature = featureUsage
	case req.MaxTokens > 0 && strings.Contains(m, c.maxTokensField()) && strings.Contains(strings.ToLower(m), "support"):
		feature = featureMaxTokens
	case req.Thinking != "" && c.cfg.ThinkingBody == nil && strings.Contains(m, "reasoning_effort"):
		feature = featureThinking + req.Thinking
	default:
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused[feature] {
		return false
	}
	c.refused[feature] = true
	c.log.Info("endpoint refuses an option, sending without", "session", req.Session, "option", feature)
	return true
}
