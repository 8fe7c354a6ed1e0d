package enginetest

import (
	"context"
	"sync"

	"rookery/internal/engine"
	"rookery/protocol"
)

// An Approver decides by policy, or asks whoever calls Decide. Safe for concurrent use.
type Approver struct {
	// Policy is allow-all, deny-all, read-only or ask.
	Policy string

	mu      sync.Mutex
	pending map[string]chan engine.Verdict // asked calls that wait for a decision
	settled map[string]string              // call id to who decided what
}

var _ engine.Approver = (*Approver)(nil)

// NewApprover returns an approver; nil for the policy none, which denies by absence.
func NewApprover(policy string) *Approver {
	if policy == "" || policy == "none" {
		return nil
	}
	return &Approver{Policy: policy, pending: map[string]chan engine.Verdict{}, settled: map[string]string{}}
}

// Approve implements engine.Approver.
func (a *Approver) Approve(ctx context.Context, call engine.Call, ask func(engine.Ask)) (engine.Verdict, error) {
	policy := engine.Verdict{Decision: protocol.Deny, By: "policy"}
	switch a.Policy {
	case "ask":
		return a.person(ctx, call, ask)
	case "allow-all":
		policy.Decision = protocol.Allow
	case "read-only":
		if readOnly(call.Name) {
			policy.Decision = protocol.Allow
		}
	}
	a.settle(call.ToolCallID, policy)
	return policy, nil
}

func (a *Approver) person(ctx context.Context, call engine.Call, ask func(engine.Ask)) (engine.Verdict, error) {
	// Room for one: a decision may come from inside ask, before anyone reads.
	answer := make(chan engine.Verdict, 1)
	a.mu.Lock()
	a.pending[call.ToolCallID] = answer
	a.mu.Unlock()
	permission := protocol.ReadWrite
	if readOnly(call.Name) {
		permission = protocol.ReadOnly
	}
	ask(engine.Ask{Permission: permission})
	select {
	case v := <-answer:
		return v, nil
	case <-ctx.Done():
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.pending, call.ToolCallID)
		return engine.Verdict{}, context.Cause(ctx)
	}
}

func (a *Approver) settle(id string, v engine.Verdict) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.settled[id] = string(v.Decision) + " by " + v.By
}

// Decide answers the pending request of a call; the first decision wins (L136).
func (a *Approver) Decide(id string, d protocol.Decision) protocol.Reply {
	if a == nil {
		return protocol.Reply{Code: protocol.ReplyUnknownCall, Reason: "no approval is pending for " + id}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if by, ok := a.settled[id]; ok {
		return protocol.Reply{Code: protocol.ReplyDecided, Reason: "already decided: " + by}
	}
	answer, ok := a.pending[id]
	if !ok {
		return protocol.Reply{Code: protocol.ReplyUnknownCall, Reason: "no approval is pending for " + id}
	}
	v := engine.Verdict{Decision: d, By: "user"}
	delete(a.pending, id)
	a.settled[id] = string(d) + " by user"
	answer <- v
	return protocol.Reply{Code: protocol.ReplyAccepted}
}
