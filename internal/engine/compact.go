package engine

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"rookery/protocol"
)

const (
	modeSummarize = "summarize"
	modeDiscard   = "discard"

	maxFailedCompactions = 3 // in one task (L125)

	// minCompared is the estimated size in tokens from which a summary has to be
	// smaller than the context that it replaces.
	minCompared = 1024
)

// checkpoint compacts after a committed turn whose calls are terminal, if a
// threshold says so (L111). It reports whether a new context is due, or the
// ending of a task that can't go on.
func (r *run) checkpoint(outputs []protocol.Message) (compacted bool, failed *ending) {
	wasFresh := r.fresh
	r.fresh = false
	reason := r.trigger()
	if reason == "" {
		return false, nil
	}
	if r.cfg.Mode == modeDiscard {
		if len(outputs) > 0 || r.box.waiting() {
			return false, nil // L123
		}
		r.discard(reason)
		return true, nil
	}
	if wasFresh && reason == "context" {
		if r.noShrink++; r.noShrink > 1 {
			return false, failWith(fmt.Sprintf("compaction failed: the context does not shrink below %d tokens", r.cfg.MaxContext), "")
		}
	}
	status, cause := r.compact(reason, outputs)
	switch status {
	case protocol.Completed:
		return true, nil
	case protocol.Aborted:
		return false, abortWith(protocol.AbortedInCompact)
	default:
	}
	if r.failures++; r.failures >= maxFailedCompactions {
		return false, failWith("compaction failed: "+cause, "")
	}
	return false, nil
}

func (r *run) trigger() string {
	switch {
	case r.cfg.NoCompaction:
	case r.cfg.MaxContext > 0 && r.from.ContextTokens >= r.cfg.MaxContext:
		return "context"
	case r.cfg.MaxSessionTurns > 0 && r.from.Turns >= r.cfg.MaxSessionTurns:
		return "turns"
	}
	return ""
}

// discard drops the old context without a request (L122).
func (r *run) discard(reason string) {
	r.emit(protocol.CompactionBegin{Reason: reason, Mode: modeDiscard, Context: r.from.ContextTokens, Turns: r.from.Turns})
	r.emit(protocol.CompactionEnd{Reason: reason, Mode: modeDiscard, Status: protocol.Completed})
	r.reset("")
}

// compact asks the old context for a summary (L115, L116, L124). cause says why it
// did not complete.
func (r *run) compact(reason string, outputs []protocol.Message) (status protocol.StopReason, cause string) {
	before := r.from.ContextTokens
	r.emit(protocol.CompactionBegin{Reason: reason, Mode: modeSummarize, Context: before, Turns: r.from.Turns})
	var summary string
	if r.aborted {
		status = protocol.Aborted
	} else {
		prompt := r.emit(protocol.UserText(r.cfg.CompactionPrompt))
		input := append(slices.Clip(outputs), prompt)
		summary, status, cause = r.summarize(input, before)
	}
	if r.gone {
		return protocol.Aborted, ""
	}
	r.emit(protocol.CompactionEnd{Reason: reason, Mode: modeSummarize, Status: status})
	if status == protocol.Completed {
		r.reset(summary)
	}
	return status, cause
}

// summarize sends the compaction request, again after timeout and malformed.
func (r *run) summarize(input []protocol.Message, before int64) (summary string, status protocol.StopReason, cause string) {
	for n := 0; ; n++ {
		if r.aborted || r.gone {
			return "", protocol.Aborted, ""
		}
		s, o := r.askSummary(input, before)
		switch {
		case r.gone:
			return "", protocol.Aborted, ""
		case o.Status == protocol.Completed:
			return s, protocol.Completed, ""
		case o.Status == protocol.Aborted:
			return "", protocol.Aborted, ""
		case o.Status == protocol.Failed || n >= r.cfg.Reconnects || o.RetryAfter > r.cfg.RetryAfterCap:
			return "", protocol.Failed, cmp.Or(o.Message, string(o.Status))
		}
		wait := max(time.Duration(n+1)*r.cfg.Backoff, o.RetryAfter)
		r.emit(protocol.Retry{Attempt: n + 1, WaitMS: wait.Milliseconds(), Status: o.Status, Message: o.Message})
		r.pause(wait)
	}
}

// askSummary makes one compaction request. Its reply is recorded and not streamed;
// an answer that is no summary comes back as malformed though its request ended
// completed (L124).
func (r *run) askSummary(input []protocol.Message, before int64) (string, Outcome) {
	r.from.Requests++
	r.emit(protocol.RequestBegin{})
	s := r.startStream(r.cfg.Model, r.request(input, ""))
	var answer string
	var called bool
	o := r.listen(s, func(p protocol.Payload) {
		switch p := p.(type) {
		case protocol.Text:
			answer += p.Text
		case protocol.ToolCall:
			called = true
		default:
		}
		if !protocol.IsPartial(p) {
			r.emit(p)
		}
	})
	if r.gone {
		return "", o
	}
	if r.aborted && o.Status != protocol.Completed {
		o.Status = protocol.Aborted
	}
	end := []protocol.Payload{protocol.RequestEnd{Status: o.Status}}
	if o.Status == protocol.Completed && o.Usage != nil {
		end = []protocol.Payload{r.usage(&o), end[0]}
	}
	r.emit(end...) // one step (L043)
	if o.Status != protocol.Completed {
		return "", o
	}
	summary := protocol.ExtractSummary(answer)
	if fault := summaryFault(summary, called, before); fault != "" {
		return "", Outcome{Status: protocol.Malformed, Message: fault}
	}
	return summary, o
}

// summaryFault says why an answer can't replace the context.
func summaryFault(summary string, called bool, before int64) string {
	switch {
	case called:
		return "the summary request was answered with a tool call"
	case summary == "":
		return "the summary is empty"
	case len(summary)/4 >= minCompared && int64(len(summary))/4 >= before:
		return "the summary is not smaller than the context"
	}
	return ""
}

// listen takes a stream to its outcome, abandoning one that ignores an abort.
func (r *run) listen(s *stream, take func(protocol.Payload)) Outcome {
	for {
		if r.aborted && s.abandonOver == nil {
			s.abandonOver = time.After(r.cfg.Abandon)
		}
		select {
		case p := <-s.messages:
			take(p)
		case o := <-s.outcome:
			return o
		case <-r.box.notify:
			r.hear()
		case <-s.abandonOver:
			s.abandon()
			return Outcome{Status: protocol.Aborted}
		case <-r.parent.Done():
			r.gone = true
			return Outcome{Status: protocol.Aborted}
		}
		if r.gone {
			return Outcome{Status: protocol.Aborted}
		}
	}
}

// reset starts a new model context (L121).
func (r *run) reset(summary string) {
	r.from.History, r.from.Pending = nil, nil
	r.from.Turns, r.from.ContextTokens = 0, 0
	r.from.Rotate, r.from.Summary = true, summary
	r.fresh = true
}

// compactByHand is a manual compaction (L126, L127).
func (r *run) compactByHand() {
	if r.from.Task != nil {
		r.goOnWith(r.from.Task)
		return
	}
	r.emit(protocol.TaskBegin{TaskID: r.in.TaskID, Of: "compact", Options: r.in.Options, By: r.in.By})
	status, cause := protocol.Completed, ""
	if r.cfg.Mode == modeDiscard {
		r.discard("manual")
	} else {
		status, cause = r.compact("manual", r.from.Pending)
	}
	switch status {
	case protocol.Completed:
		r.end(&ending{status: protocol.TaskCompleted})
	case protocol.Aborted:
		r.end(&ending{status: protocol.TaskAborted})
	default:
		r.end(&ending{status: protocol.TaskFailed, reason: "compaction failed: " + cause})
	}
}
