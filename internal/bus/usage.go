package bus

import (
	"context"
	"fmt"
	"iter"

	"rookery/protocol"
)

// PutUsage writes a row of the ledger. The first one of a request stays: to write
// it again after a takeover is harmless.
func (b *Bus) PutUsage(ctx context.Context, r protocol.UsageRow) error {
	if err := checkIDs(r.Session, protocol.ID(r.Request)); err != nil {
		return err
	}
	subject := b.names.usage(r.Session, r.Request)
	if _, _, err := b.first(ctx, message(subject, protocol.Encode(r), "")); err != nil {
		return fmt.Errorf("usage of %s request %s: %w", r.Session, r.Request, err)
	}
	return nil
}

// Usage yields the ledger in the order of writing.
func (b *Bus) Usage(ctx context.Context) iter.Seq2[protocol.UsageRow, error] {
	return list(ctx, b, b.orch("usage"), b.rows)
}

func (b *Bus) rows(ctx context.Context, after uint64) iter.Seq2[item[protocol.UsageRow], error] {
	return readRows[protocol.UsageRow](ctx, b, b.stream(streamUsage), b.join("usage", ">"), after)
}
