package session

import (
	"context"
	"strconv"
	"strings"
	"time"

	"rookery/protocol"
)

// requests gathers the figures of the running request, or of the last one, for the
// ledger (L151). It sees every record of the trace, those of other owners, too.
type requests struct {
	number     int
	used       *protocol.TokenUsage
	compacting bool
	end        protocol.StopReason // how the last request ended; empty while it runs
	at         time.Time
	attempts   int // what the first attempt of a call comes behind; see skipForgotten
}

func (r *requests) see(m protocol.Message) {
	switch p := m.Payload.(type) {
	case protocol.RequestBegin:
		r.number++
		r.used, r.end = nil, ""
	case protocol.TokenUsage:
		r.used = &p
	case protocol.RequestEnd:
		r.end, r.at = p.Status, m.Timestamp
	case protocol.CallDispatched:
		if p.Attempt > forgotten {
			r.attempts = max(r.attempts, p.Attempt)
		}
	case protocol.CompactionBegin:
		r.compacting = true
	case protocol.CompactionEnd:
		r.compacting = false
	default:
	}
}

// forgotten is what attempts are numbered from in a session whose trace has forgotten
// calls that were claimed.
const forgotten = 1_000_000

// skipForgotten looks for claims of requests that the trace does not know: a power cut
// can take more of the trace than of the results. A call to come, which would have
// the name of a forgotten one, must not be answered by its result.
func (s *session) skipForgotten(ctx context.Context) error {
	dispatch, seq, err := s.h.bus.LastClaim(ctx, s.id)
	if err != nil {
		return err
	}
	request, _, _ := strings.Cut(dispatch, "-")
	if n, err := strconv.Atoi(request); err == nil && n > s.requests.number {
		s.log.WarnContext(ctx, "the trace has forgotten calls that were claimed: did the broker lose its power?", "call", dispatch)
		s.requests.attempts = max(s.requests.attempts, forgotten+int(seq%forgotten)) //nolint:gosec // below a million
	}
	return nil
}

// book writes the row of the last request, if it has ended. A request is booked once:
// the first row of its number stays, so what an owner could not book before it died
// is simply booked again.
func (s *session) book() {
	r := s.requests
	if r.end == "" {
		return
	}
	row := protocol.UsageRow{
		Session: s.id, Request: strconv.Itoa(r.number), Model: s.model.Name,
		At: r.at.UTC().Format(time.RFC3339Nano), Status: r.end, Kind: "turn",
	}
	if r.compacting {
		row.Kind = "compaction"
	}
	if u := r.used; u != nil {
		row.Usage, row.Reasoning, row.Estimated = u.Request, u.Reasoning, u.Estimated
	}
	s.write(row)
}

// write puts a row into the ledger; the first one of a request stays.
func (s *session) write(row protocol.UsageRow) {
	s.later(func(ctx context.Context) {
		if err := s.h.bus.PutUsage(ctx, row); err != nil {
			s.log.WarnContext(ctx, "usage row not written", "err", err)
		}
	})
}
