package bus

import (
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// resolveURL stands in the client's server list where Resolve has the real one.
const resolveURL = "nats://127.0.0.1:1"

// dialTimeout bounds one attempt to open a connection.
const dialTimeout = 2 * time.Second

// A resolver asks for address and credentials each time the client dials, because
// a one-machine broker comes back on another port with other credentials.
type resolver struct {
	resolve func() (url, user, password string, err error)

	mu             sync.Mutex // the client dials and logs on from its own goroutines
	user, password string
}

func newResolver(f func() (url, user, password string, err error)) *resolver {
	return &resolver{resolve: f}
}

func (r *resolver) options() []nats.Option {
	return []nats.Option{
		nats.SetCustomDialer(r), nats.SkipHostLookup(), nats.IgnoreDiscoveredServers(),
		nats.UserInfoHandler(r.userInfo),
	}
}

// Dial implements the client's dialer; the address it is given is resolveURL's.
func (r *resolver) Dial(network, _ string) (net.Conn, error) {
	address, user, password, err := r.resolve()
	if err != nil {
		return nil, fmt.Errorf("find the broker: %w", err)
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("broker address %.200q is no URL", address)
	}
	r.mu.Lock()
	r.user, r.password = user, password
	r.mu.Unlock()
	return net.DialTimeout(network, u.Host, dialTimeout) //nolint:noctx // the client's dialer has no context
}

func (r *resolver) userInfo() (user, password string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.user, r.password
}

func joinServers(servers []string) string {
	if len(servers) == 0 {
		return nats.DefaultURL
	}
	return strings.Join(servers, ",")
}
