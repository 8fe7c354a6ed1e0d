package client

import (
	"context"
	"log/slog"

	"rookery/internal/bus"
	"rookery/protocol"
)

// Errors of a Client, to be told apart with errors.Is.
var (
	// ErrUnreachable reports that no broker answered.
	ErrUnreachable = bus.ErrUnreachable
	// ErrAuth reports that the broker refused the credentials.
	ErrAuth = bus.ErrAuth
	// ErrClosed reports the use of a closed Client.
	ErrClosed = bus.ErrClosed
	// ErrNoOrchestrator reports that nobody serves the session, or could.
	ErrNoOrchestrator = bus.ErrNoOrchestrator
	// ErrNoSession reports a session that does not exist.
	ErrNoSession = bus.ErrNoSession
	// ErrTooLarge reports a prompt or text over protocol.MaxBody, encoded.
	ErrTooLarge = bus.ErrTooLarge
)

// Options say where the broker is. The zero value is nats://127.0.0.1:4222
// without credentials.
type Options struct {
	// Server lists the broker's addresses.
	Server []string
	// Creds is a credentials file; Context the name or absolute path of a nats
	// context, which brings address and credentials of its own. User with
	// Password, or Token, are the plain ways.
	Creds, Context        string
	User, Password, Token string
	// Prefix is the first token of all subjects. Default rk.
	Prefix string
	// Name is shown by the broker's monitoring. Default rookery.
	Name string
	// Logger; nil discards.
	Logger *slog.Logger
}

// A Client speaks to the orchestrators behind one broker. It is safe for
// concurrent use.
type Client struct {
	bus  *bus.Bus
	node protocol.ID
	own  bool // Close closes the bus
}

// Dial connects. It fails at once with ErrUnreachable or ErrAuth; later breaks are
// repaired for ever. ctx bounds Dial only.
func Dial(ctx context.Context, o Options) (*Client, error) {
	b, err := bus.Connect(ctx, bus.Options{
		Servers: o.Server, Creds: o.Creds, Context: o.Context,
		User: o.User, Password: o.Password, Token: o.Token,
		Prefix: o.Prefix, Name: o.Name, Logger: o.Logger,
	})
	if err != nil {
		return nil, err
	}
	return &Client{bus: b, own: true}, nil
}

// New is Dial for programs of this module that have a bus; Close leaves it open.
func New(b *bus.Bus) *Client { return &Client{bus: b} }

// At returns a client whose commands go to one orchestrator, and from there to
// where it sends them. It shares the connection.
func (c *Client) At(node protocol.ID) *Client { return &Client{bus: c.bus, node: node} }

// Close ends the connection that Dial opened; running watches end with ErrClosed.
func (c *Client) Close() {
	if c.own {
		c.bus.Close()
	}
}
