package client

import (
	"context"
	"errors"
	"fmt"
	"math"

	"rookery/internal/bus"
	"rookery/protocol"
)

// A RefusedError is a command that was answered with no. Reply says why.
type RefusedError struct {
	Verb    protocol.Verb
	Session protocol.ID
	Reply   protocol.Reply
}

func (e *RefusedError) Error() string {
	if e.Reply.Reason == "" {
		return fmt.Sprintf("%s %s: %s", e.Verb, e.Session, e.Reply.Code)
	}
	return fmt.Sprintf("%s %s: %s: %s", e.Verb, e.Session, e.Reply.Code, e.Reply.Reason)
}

// Is makes a refusal because there is no such session an ErrNoSession.
func (e *RefusedError) Is(target error) bool {
	return target == ErrNoSession && e.Reply.Code == protocol.ReplyNotFound
}

// A RunRequest asks for a task.
type RunRequest struct {
	// Session is an existing one, or the id of a new one; empty = a fresh id.
	Session protocol.ID
	// Prompt is the user's text; Images are web or data URLs sent behind it.
	// One of both is required.
	Prompt string
	Images []string
	// Options of the task, and how to make the session if it is new.
	Options protocol.TaskOptions
	New     protocol.SessionOptions
	// By names who asks; shown to viewers.
	By string
	// ID makes repeating the request harmless: the first answer is given again.
	// Empty = a fresh one.
	ID string
}

// A Task is one that was accepted: its prompt is stored.
type Task struct {
	Session protocol.ID
	ID      string
	// From is a place in the trace before the task's first record.
	From protocol.Cursor
}

// Run starts a task and returns once it is accepted; Follow shows it. The command
// is repeated until ctx ends, and no task starts twice. Errors: *RefusedError
// (busy, unknown model, …), ErrNoOrchestrator, ErrTooLarge.
func (c *Client) Run(ctx context.Context, r RunRequest) (Task, error) {
	t := Task{Session: r.Session, ID: r.ID}
	if t.ID == "" {
		t.ID = newID()
	}
	if t.Session == "" {
		t.Session = protocol.NewSessionID()
	} else if from, err := c.End(ctx, t.Session); err == nil {
		t.From = from
	} else if !errors.Is(err, ErrNoSession) {
		return t, err
	}
	cmd := protocol.Command{ID: t.ID, By: r.By, Options: r.Options, Session: r.New}
	if r.Prompt != "" {
		cmd.Prompt = append(cmd.Prompt, protocol.UserText(r.Prompt))
	}
	for _, url := range r.Images {
		cmd.Prompt = append(cmd.Prompt, protocol.ImageURL{Role: protocol.User, ImageURL: url, StopReason: protocol.Completed})
	}
	_, err := c.command(ctx, t.Session, protocol.VerbRun, cmd)
	return t, err
}

// Steer adds a text to the running task; it reaches the model with its next
// request. Accepted means stored. RefusedError not_running: there is no task.
func (c *Client) Steer(ctx context.Context, session protocol.ID, text string) error {
	_, err := c.command(ctx, session, protocol.VerbSteer, protocol.Command{ID: newID(), Text: text})
	return err
}

// Abort interrupts the running task or compaction, and returns before that ends;
// running is false when there was nothing to interrupt. by says who or what did
// it: "timeout" makes the task end with code timeout.
func (c *Client) Abort(ctx context.Context, session protocol.ID, by string) (running bool, err error) {
	r, err := c.command(ctx, session, protocol.VerbAbort, protocol.Command{ID: newID(), By: by})
	return r.Code == protocol.ReplyAborting, err
}

// Approve decides on a call that waits for a person. The first decision counts:
// RefusedError decided says who gave it, unknown_call that nothing waits.
func (c *Client) Approve(ctx context.Context, session protocol.ID, call string, d protocol.Decision, reason string) error {
	_, err := c.command(ctx, session, protocol.VerbApprove, protocol.Command{
		ID: newID(), ToolCallID: call, Decision: d, Reason: reason,
	})
	return err
}

// Compact starts a compaction of an idle session. RefusedError nothing_to_compact
// says why not. Follow shows it.
func (c *Client) Compact(ctx context.Context, session protocol.ID) (Task, error) {
	from, err := c.End(ctx, session)
	t := Task{Session: session, ID: newID(), From: from}
	if err == nil {
		_, err = c.command(ctx, session, protocol.VerbCompact, protocol.Command{ID: t.ID})
	}
	return t, err
}

// Title names a session.
func (c *Client) Title(ctx context.Context, session protocol.ID, title string) error {
	_, err := c.command(ctx, session, protocol.VerbTitle, protocol.Command{ID: newID(), Text: title})
	return err
}

// Status asks what a session does.
func (c *Client) Status(ctx context.Context, session protocol.ID) (protocol.Status, error) {
	r, err := c.command(ctx, session, protocol.VerbStatus, protocol.Command{ID: newID()})
	if err != nil || r.Status == nil {
		return protocol.Status{Session: session}, err
	}
	return *r.Status, nil
}

// Remove deletes a session: trace, directory entry, what it left elsewhere.
func (c *Client) Remove(ctx context.Context, session protocol.ID) error {
	r, err := c.bus.Remove(ctx, session)
	return answer(r, err, "rm", session)
}

// End is the place behind everything that is stored of a session now.
func (c *Client) End(ctx context.Context, session protocol.ID) (protocol.Cursor, error) {
	seq, err := c.bus.LastSeq(ctx, session)
	return protocol.Cursor{Seq: seq, Pos: math.MaxInt32}, err
}

func newID() string { return protocol.Token(8) }

// command sends one and turns every answer but yes into an error.
func (c *Client) command(ctx context.Context, session protocol.ID, verb protocol.Verb, cmd protocol.Command) (protocol.Reply, error) {
	r, err := c.ask(ctx, session, verb, cmd)
	return r, answer(r, err, verb, session)
}

func answer(r protocol.Reply, err error, verb protocol.Verb, session protocol.ID) error {
	if err == nil && !r.Code.Accepted() {
		err = &RefusedError{Verb: verb, Session: session, Reply: r}
	}
	return err
}

// maxHops bounds how often an orchestrator may send a command on.
const maxHops = 8

func (c *Client) ask(ctx context.Context, session protocol.ID, verb protocol.Verb, cmd protocol.Command) (protocol.Reply, error) {
	if c.node == "" {
		return c.bus.Command(ctx, session, verb, cmd)
	}
	node := c.node
	for range maxHops {
		r, err := c.bus.CommandAt(ctx, node, session, verb, cmd)
		switch {
		case errors.Is(err, bus.ErrGone):
			return r, fmt.Errorf("%w: %s", ErrNoOrchestrator, node)
		case err != nil || r.Code != protocol.ReplyUse:
			return r, err
		}
		node = r.Use
	}
	return protocol.Reply{}, fmt.Errorf("%s %s: %w: sent from one to the next %d times", verb, session, ErrNoOrchestrator, maxHops)
}
