package session

import (
	"context"
	"strconv"
	"time"

	"rookery/protocol"
)

// requests gathers the figures of the running request for the ledger (L151).
type requests struct {
	number int
	used   *protocol.TokenUsage
}

func (r *requests) begin(n int) { r.number, r.used = n, nil }

// book writes the row of a request that has ended. A request is booked once: the
// first row of its number stays.
func (s *session) book(status protocol.StopReason, at time.Time) {
	row := protocol.UsageRow{
		Session: s.id, Request: strconv.Itoa(s.requests.number), Model: s.model.Name,
		At: at.UTC().Format(time.RFC3339Nano), Status: status, Kind: "turn",
	}
	if s.placer.Compacting {
		row.Kind = "compaction"
	}
	if u := s.requests.used; u != nil {
		row.Usage, row.Reasoning, row.Estimated = u.Request, u.Reasoning, u.Estimated
	}
	s.later(func(ctx context.Context) {
		if err := s.h.bus.PutUsage(ctx, row); err != nil {
			s.log.WarnContext(ctx, "usage row not written", "err", err)
		}
	})
}
