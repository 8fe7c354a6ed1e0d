package llm

import (
	"bufio"
	"context"
	"io"

	"rookery/internal/engine"
	"rookery/protocol"
)

// ReadReply reads a reply from r as if an endpoint had sent it.
func ReadReply(ctx context.Context, c *Client, req engine.Request, r io.Reader, emit func(protocol.Payload) error) engine.Outcome {
	a := c.attempt(req, emit)
	s := &stream{events: newEvents(bufio.NewReaderSize(r, 4096))}
	return a.outcome(ctx, a.read(s))
}

// Events returns name and data of every event of r.
func Events(r io.Reader) (names, data []string, err error) {
	s := newEvents(bufio.NewReaderSize(r, 16))
	for {
		ev, err := s.next()
		if err != nil {
			return names, data, err
		}
		names, data = append(names, ev.name), append(data, string(ev.data))
	}
}

// DecodeChunk reads one event and reports whether it is a chunk.
func DecodeChunk(name string, data []byte) (bool, error) {
	c, err := decodeChunk(event{name, data})
	return c != nil && err == nil, err
}

// Encode returns the body of a request and how many tokens it is thought to be.
func Encode(c *Client, req engine.Request) ([]byte, float64, error) {
	b, err := c.encode(req)
	if err != nil {
		return nil, 0, err
	}
	out, err := io.ReadAll(b.reader())
	return out, b.tokens, err
}
