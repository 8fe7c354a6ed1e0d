package llm

import (
	"errors"
	"fmt"
	"strings"

	"rookery/protocol"
)

// maxReply bounds what one reply may hold, in bytes.
const maxReply = 64 << 20

var (
	errReplyTooLarge = fmt.Errorf("the reply is larger than %d MiB", maxReply>>20)
	errFinishError   = errors.New("the provider ended the reply with finish reason error")
	errNothing       = errors.New("the reply has no answer")
	errOnlyThinking  = errors.New("the reply has thinking only")
	errLimit         = errors.New("the output limit was reached before any answer")
	errFiltered      = errors.New("the provider's content filter stopped the reply before any answer")
)

// A reply is what one stream has said so far. Chunks go in by feed; settle commits
// it once it is finished, fail closes it otherwise.
type reply struct {
	queue     queue
	calls     calls
	tags      tags
	plain     bool // no think tags are looked for
	offered   map[string]bool
	textJoin  joiner
	thinkJoin joiner

	began     bool // the provider has begun to answer
	content   bool // text came as content, so a refusal is no text
	visible   bool // there is text that is not blank
	finish    string
	done      bool // [DONE] or its equivalent was seen
	committed bool // settle has succeeded: what was emitted stands
	size      int
	usage     *wireUsage
}

// feed takes one chunk. Its error ends the reading.
func (r *reply) feed(c *chunk) error {
	r.report(c)
	for i := range c.Choices {
		ch := &c.Choices[i]
		if ch.Index != 0 {
			continue
		}
		r.began = true
		d := ch.Delta
		if d == nil && c.Object == "chat.completion" {
			d = ch.Message
		}
		if d != nil {
			if err := r.delta(d); err != nil {
				return err
			}
		}
		if err := r.finished(ch.Finish.s); err != nil {
			return err
		}
	}
	return nil
}

// report takes usage from where it is; the last one counts (L027).
func (r *reply) report(c *chunk) {
	u := c.Usage
	if u == nil && c.XGroq != nil {
		u = c.XGroq.Usage
	}
	for _, ch := range c.Choices {
		if u == nil {
			u = ch.Usage
		}
	}
	if u == nil {
		return
	}
	if _, _, ok := u.usage(); ok || r.usage == nil {
		r.usage = u
	}
}

func (r *reply) finished(reason string) error {
	switch {
	case reason == "":
		return nil
	case reason == "error":
		return errFinishError
	case r.finish == "":
		r.finish = reason
	}
	_ = r.settle() // when it can't be settled yet, the end of the stream decides
	return nil
}

func (r *reply) delta(d *delta) error {
	r.thinking(d)
	r.text(d)
	if d.FunctionCall != nil {
		r.functionCall(d.FunctionCall)
	}
	for _, t := range d.ToolCalls {
		if err := r.call(t); err != nil {
			return err
		}
	}
	if present(d.Extra) {
		r.extra(d)
	}
	if r.size > maxReply {
		return errReplyTooLarge
	}
	return nil
}

// thinking takes it from the first member that has some: servers repeat it.
func (r *reply) thinking(d *delta) {
	for _, f := range []struct {
		name  string
		value str
	}{
		{"reasoning_content", d.ReasoningC},
		{"reasoning", d.Reasoning},
		{"reasoning_text", d.ReasoningT},
		{"cot_summary", d.Summary},
	} {
		if f.value == (str{}) {
			continue
		}
		if s := r.think(r.thinkJoin.join(f.value)); s != nil {
			s.fid.Field = f.name
		}
		r.details(d.Details)
		return
	}
	r.think(d.Details.text())
	r.details(d.Details)
	for _, p := range d.Content.parts {
		if p.Type == "thinking" {
			r.think(p.thinking())
		}
	}
}

func (r *reply) think(s string) *segment {
	if s == "" {
		return nil
	}
	r.settleText()
	return r.add(thinking, s)
}

// details keeps reasoning_details with the thinking of this reply; when there is
// none that is open they get an empty one.
func (r *reply) details(d details) {
	if len(d) == 0 {
		return
	}
	var s *segment
	for _, o := range r.queue.open {
		if o.kind == thinking {
			s = o
		}
	}
	if s == nil {
		r.settleText()
		s = r.queue.begin(thinking)
		r.queue.write(s, "")
	}
	s.list.add(d)
	s.signed = s.signed || d.signed()
	for _, it := range d {
		r.size += len(it.raw)
	}
}

func (r *reply) text(d *delta) {
	s := r.textJoin.join(d.Content.text)
	for _, p := range d.Content.parts {
		if p.Type == "text" {
			s += r.textJoin.join(p.Text)
		}
	}
	if s != "" {
		r.content = true
	} else if !r.content {
		s = r.textJoin.join(d.Refusal)
	}
	switch {
	case s == "":
	case r.plain:
		r.say(false, s)
	default:
		r.tags.write(s, r.say)
	}
}

func (r *reply) say(isThinking bool, s string) {
	if isThinking {
		r.add(thinking, s)
		return
	}
	r.add(text, s)
	r.visible = r.visible || strings.TrimSpace(s) != ""
}

func (r *reply) add(k kind, s string) *segment {
	seg := r.queue.current(k)
	r.size += len(s)
	r.queue.write(seg, s)
	return seg
}

// settleText gives out text that was held back, because something else comes.
func (r *reply) settleText() {
	if s := r.textJoin.rest(); s != "" {
		r.tags.write(s, r.say)
	}
	r.tags.flush(r.say)
}

// extra keeps extra_content of a text; a text that is signed is complete.
func (r *reply) extra(d *delta) {
	if n := len(r.queue.open); n > 0 && r.queue.open[n-1].kind == text {
		s := r.queue.open[n-1]
		s.fid.Extra = d.Extra
		s.signed = true
		r.size += len(d.Extra)
	}
}

func (r *reply) call(t callDelta) error {
	if t.Function == nil && t.ID.s == "" && t.Index == nil {
		return nil
	}
	r.settleText()
	s, err := r.calls.place(&r.queue, t)
	if err != nil {
		return err
	}
	if present(t.Extra) {
		s.fid.Extra = t.Extra
		r.size += len(t.Extra)
	}
	if t.Function != nil {
		r.arguments(s, *t.Function)
	}
	return nil
}

// functionCall takes the form from before tool_calls: there is one call, without id.
func (r *reply) functionCall(f *wireFunction) {
	if f.Name.s == "" && f.Arguments == (str{}) {
		return
	}
	if r.calls.function == nil {
		r.settleText()
		r.calls.function = r.calls.begin(&r.queue)
	}
	r.arguments(r.calls.function, *f)
}

// arguments adds to a call. One that is closed was whole when the reply was
// finished: what comes after that is not part of it.
func (r *reply) arguments(s *segment, f wireFunction) {
	args := r.calls.joins[s].join(f.Arguments)
	if s.closed {
		return
	}
	if !s.live {
		s.name = mergeName(s.name, f.Name.s, r.offered)
	}
	r.size += len(args)
	r.queue.write(s, args)
}

// settle commits the reply: what is open is closed as completed, or as the
// provider's length limit left it (L057). Its error says why it can't be, and
// then nothing was emitted but text that was held back.
func (r *reply) settle() error {
	r.settleText()
	for _, s := range r.queue.open {
		if s.kind == call {
			s.body.WriteString(r.calls.joins[s].rest())
			if !r.cutOff() || s != r.queue.last {
				s.settleArguments()
			}
		}
	}
	if err := r.faults(); err != nil {
		return err
	}
	r.queue.closeAll(func(s *segment) protocol.StopReason {
		if r.cutOff() && (s == r.queue.last || s.kind == call && !object(s.body.String())) {
			return protocol.Failed
		}
		return protocol.Completed
	})
	r.committed = true
	return nil
}

func (r *reply) cutOff() bool { return r.finish == "length" }

// faults returns why the reply is not an answer.
func (r *reply) faults() error {
	named := false
	for _, s := range r.calls.all {
		switch {
		case s.closed:
		case r.cutOff():
		case s.name == "":
			return errors.New("a tool call has no name")
		case !object(s.body.String()):
			return fmt.Errorf("the arguments of %s are not a JSON object: %s", s.name, cut(s.body.String(), 80))
		}
		named = named || s.name != ""
	}
	switch {
	case named, r.visible:
		return nil
	case r.cutOff():
		return errLimit
	case r.finish == "content_filter":
		return errFiltered
	case r.queue.any:
		return errOnlyThinking
	}
	return errNothing
}

// fail closes what is open with the status of the request (L082).
func (r *reply) fail(status protocol.StopReason) {
	r.settleText()
	r.queue.closeAll(func(*segment) protocol.StopReason { return status })
}
