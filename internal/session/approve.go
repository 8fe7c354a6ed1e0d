package session

import (
	"context"
	"time"

	"rookery/internal/engine"
	"rookery/protocol"
)

// A pending approval waits for a person.
type pending struct {
	call    engine.Call
	verdict chan engine.Verdict // capacity 1; the owner writes, the approval reads
}

func (p *pending) decide(cmd protocol.Command) {
	by := "user"
	if cmd.By != "" {
		by = cmd.By
	}
	p.verdict <- engine.Verdict{Decision: cmd.Decision, By: by, Reason: cmd.Reason}
}

// asking is an event: an approval that viewers are about to see.
type asking struct{ p *pending }

// An approver decides by the task's policy, and asks a person where that says so.
type approver struct {
	session *session
	reply   *reply
	options protocol.TaskOptions
}

// Approve implements engine.Approver.
func (a *approver) Approve(ctx context.Context, c engine.Call, ask func(engine.Ask)) (engine.Verdict, error) {
	perm := a.session.h.cfg.Policy(a.session.state.Pool, c.Name).Permission
	switch a.options.Approve {
	case "allow-all":
		return engine.Verdict{Decision: protocol.Allow, By: "policy", Reason: "allow-all"}, nil
	case "read-only":
		if perm == protocol.ReadOnly {
			return engine.Verdict{Decision: protocol.Allow, By: "policy", Reason: "read-only tool"}, nil
		}
		return engine.Verdict{Decision: protocol.Deny, By: "policy", Reason: "only read-only tools are allowed"}, nil
	case "ask":
		if perm == protocol.ReadOnly {
			return engine.Verdict{Decision: protocol.Allow, By: "policy", Reason: "read-only tool"}, nil
		}
		return a.person(ctx, c, perm, ask)
	}
	return engine.Verdict{Decision: protocol.Deny, By: "policy", Reason: "nobody can be asked"}, nil
}

// person waits for a decision. The rest of the model's reply is stored before
// anybody is asked (barrier 6), so that a successor can go on from there.
func (a *approver) person(ctx context.Context, c engine.Call, perm protocol.Permission, ask func(engine.Ask)) (engine.Verdict, error) {
	if err := a.keepRest(ctx, c); err != nil {
		return engine.Verdict{}, err
	}
	p := &pending{call: c, verdict: make(chan engine.Verdict, 1)}
	if err := a.session.tell(ctx, asking{p}); err != nil {
		return engine.Verdict{}, err
	}
	request := engine.Ask{Permission: perm}
	var late <-chan time.Time
	if ms := a.options.ApproveTimeoutMS; ms > 0 {
		d := time.Duration(ms) * time.Millisecond
		at := time.Now().Add(d).UTC().Truncate(time.Millisecond)
		request.Deadline = &at
		timer := time.NewTimer(d)
		defer timer.Stop()
		late = timer.C
	}
	ask(request)
	select {
	case v := <-p.verdict:
		return v, nil
	case <-late:
		return engine.Verdict{Decision: protocol.Deny, By: "timeout", Reason: "nobody decided in time"}, nil
	case <-ctx.Done():
		return engine.Verdict{}, context.Cause(ctx)
	}
}

// keepRest records what is left of the reply behind a call. The reply of a task that
// was taken over in the middle of it is recorded already.
func (a *approver) keepRest(ctx context.Context, c engine.Call) error {
	if a.reply.current == nil {
		return nil
	}
	rest, o, err := a.reply.current.rest(ctx, c.ToolCallID)
	if err != nil {
		return err
	}
	return a.session.say(ctx, protocol.ReplyReceived{
		Rest: rest, Usage: o.Usage, Estimated: o.Estimated, Reasoning: o.Reasoning,
		Status: o.Status, Message: o.Message, Finish: o.Finish,
	})
}
