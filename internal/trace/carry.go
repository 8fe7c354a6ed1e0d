package trace

import (
	"slices"

	"rookery/protocol"
)

// settle turns the open turn of a task that has ended into pending input.
func (f *Fold) settle() {
	f.s.Pending = f.input()
	f.open = turn{}
}

// input is what the next request would get ahead of anything new: what was pending,
// what the open turn leaves, and the user-side messages since.
func (f *Fold) input() []protocol.Message {
	o := &f.open
	in := append([]protocol.Message(nil), f.s.Pending...)
	switch {
	case !o.begun:
	case o.status == protocol.Completed:
		in = append(in, f.owed()...)
	case o.requested, f.retrying():
		attempts := o.attempts
		if o.requested {
			attempts = append(slices.Clip(attempts), o.current)
		}
		in = append(in, withRetried(o.input, attempts)...)
	default:
		in = append(in, aborted(o.input, o.attempts, o.current)...)
	}
	return append(in, o.next...)
}

// owed returns one output for each call of the committed turn, in call order: the
// real one or a placeholder that stands nowhere else (L069, L159).
func (f *Fold) owed() []protocol.Message {
	var out []protocol.Message
	for _, c := range f.open.current.Calls {
		switch {
		case c.Output != nil:
			out = append(out, *c.Output)
		case f.interrupted:
			out = append(out, placeholder(c, protocol.NoteInterrupted))
		default:
			out = append(out, placeholder(c, protocol.NoteExited))
		}
	}
	return out
}

func placeholder(c *Call, note string) protocol.Message {
	return protocol.New(protocol.ToolCallOutput{
		Role: protocol.User, Output: note, ToolCallID: c.ToolCallID, StopReason: protocol.Aborted,
	})
}

// committed returns the reply as later requests carry it: calls that are not
// completed are left out (L058).
func committed(reply []protocol.Message) []protocol.Message {
	var out []protocol.Message
	for _, m := range reply {
		if tc, ok := m.Payload.(protocol.ToolCall); ok && tc.StopReason != protocol.Completed {
			continue
		}
		out = append(out, m)
	}
	return out
}

// withRetried is the input of the next attempt: the original one and one block of
// all failed attempts that produced something (L101).
func withRetried(input []protocol.Message, attempts []Attempt) []protocol.Message {
	var b protocol.Block
	for _, a := range attempts {
		addAttempt(&b, a)
	}
	in := append([]protocol.Message(nil), input...)
	if s := b.String(protocol.TagTurnRetried); s != "" {
		in = append(in, protocol.New(protocol.UserText(s)))
	}
	return in
}

// aborted flattens an interrupted turn: its structured outputs unchanged, then one
// text, then its images (L071, L083).
func aborted(input []protocol.Message, attempts []Attempt, current Attempt) []protocol.Message {
	var outputs, images []protocol.Message
	var b protocol.Block
	for _, m := range input {
		switch p := m.Payload.(type) {
		case protocol.ToolCallOutput:
			outputs = append(outputs, m)
		case protocol.Text:
			b.Input(p.Text)
		default:
			images = append(images, m)
		}
	}
	for _, a := range attempts {
		addAttempt(&b, a)
	}
	addAttempt(&b, current)
	if s := b.String(protocol.TagTurnAborted); s != "" {
		outputs = append(outputs, protocol.New(protocol.UserText(s)))
	}
	return append(outputs, images...)
}

func addAttempt(b *protocol.Block, a Attempt) { b.Attempt(a.Reply, a.Outputs()) }
