package bustest

import (
	"cmp"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats-server/v2/server/ats"
	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/bus/natsd"
)

// The server's access time service is one goroutine for the whole binary. Held
// from the beginning it belongs to no bubble.
var _ = func() bool { ats.Register(); return true }()

// Start runs a broker for this test and returns a bus with everything set up.
func Start(tb testing.TB) *bus.Bus {
	tb.Helper()
	return NewServer(tb).Bus(tb)
}

// A Server is a broker of one test.
type Server struct {
	opts natsd.Options

	mu      sync.Mutex // tests and client libraries
	srv     *natsd.Server
	conns   []*conn
	dialers map[*bus.Bus]*dialer
}

// NewServer runs a broker without sockets on an empty store and sets it up.
func NewServer(tb testing.TB) *Server {
	tb.Helper()
	return newServer(tb, natsd.Options{})
}

// NewSmall runs a broker whose store holds size bytes.
func NewSmall(tb testing.TB, size int64) *Server {
	tb.Helper()
	return newServer(tb, natsd.Options{MaxStore: size})
}

// NewTCP runs a broker that also listens on a free port of the loopback. Not for
// bubbles.
func NewTCP(tb testing.TB) *Server {
	tb.Helper()
	return newServer(tb, natsd.Options{Port: -1})
}

func newServer(tb testing.TB, o natsd.Options) *Server {
	tb.Helper()
	o.StoreDir, o.MaxStore = tb.TempDir(), cmp.Or(o.MaxStore, 1<<30)
	s := &Server{opts: o, dialers: map[*bus.Bus]*dialer{}}
	s.start(tb)
	tb.Cleanup(func() { s.current().Shutdown() })
	b := s.connect(tb, bus.Options{})
	defer b.Close()
	require.NoError(tb, b.Setup(tb.Context(), bus.StoreOptions{MaxStore: o.MaxStore}))
	return s
}

func (s *Server) start(tb testing.TB) {
	tb.Helper()
	srv, err := natsd.Start(s.opts)
	require.NoError(tb, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.srv = srv
}

func (s *Server) current() *natsd.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.srv
}

// Bus connects another bus to the broker; it is closed with the test.
func (s *Server) Bus(tb testing.TB) *bus.Bus {
	tb.Helper()
	return s.Connect(tb, bus.Options{})
}

// Connect is Bus with options of the test's own.
func (s *Server) Connect(tb testing.TB, o bus.Options) *bus.Bus {
	tb.Helper()
	b := s.connect(tb, o)
	tb.Cleanup(b.Close)
	return b
}

func (s *Server) connect(tb testing.TB, o bus.Options) *bus.Bus {
	tb.Helper()
	d := &dialer{Server: s}
	if o.InProcess == nil && o.Servers == nil && o.Resolve == nil {
		o.InProcess = d
	}
	b, err := bus.Connect(tb.Context(), o)
	require.NoError(tb, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dialers[b] = d
	return b
}

// Subscriptions is how many the broker has, its own included.
func (s *Server) Subscriptions() uint32 { return s.current().Subscriptions() }

// URL is the address of a NewTCP broker.
func (s *Server) URL() string { return s.current().ClientURL() }

// InProcessConn implements bus.Options.InProcess: it leads to the broker that runs
// now.
func (s *Server) InProcessConn() (net.Conn, error) {
	c, err := s.current().InProcessConn()
	if err != nil {
		return nil, err
	}
	w := &conn{Conn: c}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = append(s.conns, w)
	return w, nil
}

// A dialer remembers which connections are one bus's.
type dialer struct {
	*Server
	mu    sync.Mutex // client libraries dial at once
	conns []*conn
}

// InProcessConn implements bus.Options.InProcess.
func (d *dialer) InProcessConn() (net.Conn, error) {
	c, err := d.Server.InProcessConn()
	if err == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.conns = append(d.conns, c.(*conn))
	}
	return c, err
}

// Cut breaks all in-process connections; the buses reconnect.
func (s *Server) Cut() {
	s.mu.Lock()
	conns := s.conns
	s.conns = nil
	s.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

// DeafenBus loses everything that the broker says to b on its present connections,
// until Cut: what b sends still arrives.
func (s *Server) DeafenBus(b *bus.Bus) {
	for _, c := range s.connsOf(b) {
		c.deaf.Store(true)
	}
}

// CutBus breaks the in-process connections of one bus; it reconnects.
func (s *Server) CutBus(b *bus.Bus) {
	for _, c := range s.connsOf(b) {
		_ = c.Close()
	}
}

func (s *Server) connsOf(b *bus.Bus) []*conn {
	s.mu.Lock()
	d := s.dialers[b]
	s.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.conns)
}

// Stop ends the broker; Restart brings it back.
func (s *Server) Stop() { s.current().Shutdown() }

// Restart ends the broker and starts another one on the same store.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	s.Stop()
	s.start(tb)
}

// A conn can lose what it reads.
type conn struct {
	net.Conn
	deaf atomic.Bool
}

func (c *conn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.deaf.Load() {
			return n, err
		}
	}
}
