package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rookery/protocol"
)

// ErrNotStored reports a broker that answers and stores nothing.
var ErrNotStored = errors.New("the broker does not store what it gets: is its disk full, or gone? after a failed write it must be restarted")

// probeSize is more than what fits into a block that a full disk gave out before.
const probeSize = 64 << 10

// Probe writes to the trace, as a session that nobody has, removes what it wrote and
// returns how long the write took. Its error is the broker's refusal, which says when
// the stream is full, or wraps ErrNotStored.
func (b *Bus) Probe(ctx context.Context) (time.Duration, error) {
	subject := b.traceContext(protocol.ID("doctor-"+protocol.Token(8)), 0, true)
	start := time.Now()
	_, err := b.attempt(ctx, message(subject, bytes.Repeat([]byte("\n"), probeSize), ""))
	took := time.Since(start)
	if err != nil {
		if refused(err) == nil && b.Connected() {
			err = fmt.Errorf("%w (%w)", ErrNotStored, err)
		}
		return took, fmt.Errorf("write to the trace: %w", err)
	}
	s, err := b.js.Stream(ctx, b.stream(streamTrace))
	if err == nil {
		err = s.Purge(ctx, jetstream.WithPurgeSubject(subject))
	}
	if err != nil {
		return took, fmt.Errorf("remove the probe %s: %w", subject, err)
	}
	return took, nil
}
