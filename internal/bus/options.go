package bus

import (
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/natscontext"

	"rookery/protocol"
)

// Errors of a connection.
var (
	// ErrUnreachable reports that no broker answered.
	ErrUnreachable = errors.New("broker unreachable")
	// ErrAuth reports that the broker refused the credentials.
	ErrAuth = errors.New("broker refused the credentials")
	// ErrClosed reports the use of a closed Bus.
	ErrClosed = errors.New("bus is closed")
)

// Options say where the broker is. The zero value is nats://127.0.0.1:4222
// without credentials.
type Options struct {
	// Servers are the broker's addresses.
	Servers []string
	// Creds is a credentials file; Context the name or absolute path of a nats
	// context, which brings address and credentials of its own. User with
	// Password, or Token, are the plain ways.
	Creds, Context        string
	User, Password, Token string
	// Resolve, when set, is asked before each attempt to connect, the first and
	// every later one, and replaces Servers, User and Password.
	Resolve func() (url, user, password string, err error)
	// InProcess, when set, opens the connections instead of a socket.
	InProcess interface {
		InProcessConn() (net.Conn, error)
	}

	// Name is shown by the broker's monitoring. Default rookery.
	Name string
	// Prefix is the first token of all subjects. Default rk.
	Prefix string
	// Retry makes Connect wait for a broker that can't be reached until its
	// context ends, instead of failing at once.
	Retry bool
	// Logger; nil discards.
	Logger *slog.Logger
}

func (o Options) withDefaults() (Options, error) {
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if err := checkIDs(protocol.ID(o.Prefix)); err != nil {
		return o, fmt.Errorf("prefix: %w", err)
	}
	if o.Name == "" {
		o.Name = "rookery"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, nil
}

// dial opens one connection with the given handlers.
func (o Options) dial(opts ...nats.Option) (*nats.Conn, error) {
	switch {
	case o.Creds != "":
		opts = append(opts, nats.UserCredentials(o.Creds))
	case o.Token != "":
		opts = append(opts, nats.Token(o.Token))
	case o.User != "" && o.Resolve == nil:
		opts = append(opts, nats.UserInfo(o.User, o.Password))
	}
	var nc *nats.Conn
	var err error
	switch {
	case o.InProcess != nil:
		nc, err = nats.Connect("", append(opts, nats.InProcessServer(o.InProcess))...)
	case o.Resolve != nil:
		nc, err = nats.Connect(resolveURL, append(opts, newResolver(o.Resolve).options()...)...)
	case o.Context != "":
		nc, _, err = natscontext.Connect(o.Context, opts...)
	default:
		nc, err = nats.Connect(joinServers(o.Servers), opts...)
	}
	if err != nil {
		return nil, classifyDial(err)
	}
	return nc, nil
}

func classifyDial(err error) error {
	for _, auth := range []error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired} {
		if errors.Is(err, auth) {
			return fmt.Errorf("%w: %w", ErrAuth, err)
		}
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}
