package enginetest

import (
	"fmt"

	"rookery/protocol"
)

// CheckFragments holds an output against the discipline of partials: start, deltas,
// stop, and right behind the stop of a producer its complete message, which the
// deltas add up to (L022, L023); every model message has a stop reason (L024). A
// task_begin forgets what an abandoned run left open. What an owner was streaming
// when another one took over may start again.
func CheckFragments(output []protocol.Message) []error {
	c := &fragments{open: map[string]*fragment{}}
	for i, m := range output {
		if err := c.message(m.Payload); err != nil {
			c.faults = append(c.faults, fmt.Errorf("message %d, %s: %w", i+1, m, err))
		}
	}
	return c.faults
}

type fragments struct {
	open   map[string]*fragment // by producer
	faults []error
}

type fragment struct {
	name, body string
	stopped    protocol.StopReason // empty while it is open
	lost       bool                // its owner is gone
}

// message takes one payload of the output.
func (c *fragments) message(p protocol.Payload) error {
	switch p := p.(type) {
	case protocol.TaskBegin:
		clear(c.open)
	case protocol.Takeover:
		for _, f := range c.open {
			f.lost = true
		}
	case protocol.PartialText:
		return c.partial("text", p.EventType, "", p.Text, p.StopReason)
	case protocol.PartialThinking:
		return c.partial("thinking", p.EventType, "", p.Thinking, p.StopReason)
	case protocol.PartialToolCall:
		return c.partial("call "+p.ToolCallID, p.EventType, p.Name, p.Arguments, p.StopReason)
	case protocol.PartialToolCallOutput:
		if p.EventType == protocol.Delta && p.Output == "" && len(p.Images) > 0 {
			return nil
		}
		return c.partial("output "+p.ToolCallID, p.EventType, "", p.Output, p.StopReason)
	case protocol.Text:
		if p.Role == protocol.Assistant {
			return c.complete("text", "", p.Text, p.StopReason)
		}
		return reasoned(p.StopReason)
	case protocol.Thinking:
		return c.complete("thinking", "", p.Thinking, p.StopReason)
	case protocol.ToolCall:
		return c.complete("call "+p.ToolCallID, p.Name, p.Arguments, p.StopReason)
	case protocol.ToolCallOutput:
		if p.Output == protocol.NoteDenied { // nothing ran (L048)
			return reasoned(p.StopReason)
		}
		return c.complete("output "+p.ToolCallID, "", p.Output, p.StopReason)
	default:
	}
	return nil
}

func reasoned(stop protocol.StopReason) error {
	if stop == "" {
		return fmt.Errorf("no stop_reason")
	}
	return nil
}

func (c *fragments) partial(who string, at protocol.EventType, name, piece string, stop protocol.StopReason) error {
	f := c.open[who]
	switch at {
	case protocol.Start:
		if f != nil && !f.lost {
			return fmt.Errorf("%s starts before its complete message", who)
		}
		if piece != "" {
			return fmt.Errorf("a start with a body")
		}
		c.open[who] = &fragment{name: name}
		return reasoned(stop)
	case protocol.Delta, protocol.Stop:
	}
	switch {
	case f == nil:
		return fmt.Errorf("%s has not started", who)
	case f.stopped != "":
		return fmt.Errorf("%s has stopped", who)
	case name != "":
		return fmt.Errorf("a name behind the start")
	case at == protocol.Delta && piece == "":
		return fmt.Errorf("an empty delta")
	case at == protocol.Stop && piece != "":
		return fmt.Errorf("a stop with a body")
	}
	f.body += piece
	if at == protocol.Stop {
		f.stopped = stop
	}
	return reasoned(stop)
}

func (c *fragments) complete(who, name, body string, stop protocol.StopReason) error {
	f := c.open[who]
	delete(c.open, who)
	switch {
	case f == nil:
		return fmt.Errorf("%s is complete, but has not started", who)
	case f.stopped == "":
		return fmt.Errorf("%s is complete, but has not stopped", who)
	case f.stopped != stop:
		return fmt.Errorf("%s stopped with %s", who, f.stopped)
	case f.body != body:
		return fmt.Errorf("the deltas of %s add up to %q", who, f.body)
	case f.name != name:
		return fmt.Errorf("%s started with the name %q", who, f.name)
	}
	return nil
}
