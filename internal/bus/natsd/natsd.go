package natsd

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Errors of Start.
var (
	// ErrPortInUse: choose another port, or use the broker that has it.
	ErrPortInUse = errors.New("port is in use")
	// ErrStore: the store can't be written.
	ErrStore = errors.New("store can't be used")
	// ErrNotReady: the server did not come up in time.
	ErrNotReady = errors.New("broker does not come up")
)

// Options of a Server.
type Options struct {
	StoreDir string // required; made when missing

	// Host to listen on. Default 127.0.0.1.
	Host string
	// Port to listen on; -1 takes a free one, 0 opens none (see InProcessConn).
	Port int
	// User and Password, when set, are asked of every client, also in process.
	User, Password string

	// SyncAlways waits for the disk before each acknowledgement; otherwise the
	// disk follows within a second, which a power cut may cost.
	SyncAlways bool
	// MaxStore and MaxMemory bound what is stored, in bytes. Default: 8 GiB, or
	// three quarters of what is free on the disk if that is less; 256 MiB.
	MaxStore, MaxMemory int64

	// Logger; nil discards.
	Logger *slog.Logger
}

// A Server is a running broker.
type Server struct {
	srv *server.Server
	max int64
}

// startTimeout bounds the recovery of a store.
const startTimeout = time.Minute

// Start runs a broker on a store. Only one may use a store at a time; the caller
// sees to that.
func Start(o Options) (*Server, error) {
	if o.StoreDir == "" {
		return nil, fmt.Errorf("%w: no directory given", ErrStore)
	}
	if err := writable(o.StoreDir); err != nil {
		return nil, fmt.Errorf("%w: %w; choose a directory that you may write to", ErrStore, err)
	}
	if o.MaxStore == 0 {
		o.MaxStore = defaultStore(o.StoreDir)
	}
	if o.MaxMemory == 0 {
		o.MaxMemory = 256 << 20
	}
	if o.Host == "" {
		o.Host = "127.0.0.1"
	}
	if err := portFree(o.Host, o.Port); err != nil {
		return nil, err
	}
	srv, err := server.NewServer(o.server())
	if err != nil {
		return nil, fmt.Errorf("configure broker: %w", err)
	}
	fatal := make(chan string, 1) // the server's logger writes its first fatal error
	srv.SetLoggerV2(&logger{log: o.Logger, fatal: fatal}, false, false, false)
	srv.Start()
	if err := ready(srv, fatal); err != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
		return nil, err
	}
	return &Server{srv: srv, max: o.MaxStore}, nil
}

// ready waits until the server serves, or says why it can't.
func ready(srv *server.Server, fatal <-chan string) error {
	for deadline := time.Now().Add(startTimeout); ; {
		switch {
		case srv.ReadyForConnections(50 * time.Millisecond):
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("%w: not ready after %s", ErrNotReady, startTimeout)
		}
		select {
		case why := <-fatal:
			return fmt.Errorf("%w: %s", ErrNotReady, why)
		default:
		}
	}
}

func (o Options) server() *server.Options {
	s := &server.Options{
		ServerName: "rookery", Host: o.Host, Port: o.Port, DontListen: o.Port == 0,
		NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: o.StoreDir, JetStreamMaxStore: o.MaxStore, JetStreamMaxMemory: o.MaxMemory,
		SyncInterval: time.Second, SyncAlways: o.SyncAlways,
		// A slow viewer would otherwise stall whoever publishes to it.
		NoFastProducerStall: true,
		WriteDeadline:       5 * time.Second,
		Username:            o.User, Password: o.Password,
	}
	s.JetStreamLimits.DefaultMaxConsumers = 4096
	return s
}

// ClientURL is where clients connect; without a port it is of no use.
func (s *Server) ClientURL() string { return s.srv.ClientURL() }

// MaxStore is the size of the file store, for bus.StoreOptions.
func (s *Server) MaxStore() int64 { return s.max }

// InProcessConn opens a connection without a socket.
func (s *Server) InProcessConn() (net.Conn, error) { return s.srv.InProcessConn() }

// Clients is the number of connections.
func (s *Server) Clients() int { return s.srv.NumClients() }

// Subscriptions is the number of subscriptions, those of the broker itself included.
func (s *Server) Subscriptions() uint32 { return s.srv.NumSubscriptions() }

// Shutdown ends the server and returns when the store is closed.
func (s *Server) Shutdown() {
	s.srv.Shutdown()
	s.srv.WaitForShutdown()
}

// writable makes dir and a file in it.
func writable(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".writable")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// portFree finds out before the server does, whose own answer ends the process.
func portFree(host string, port int) error {
	if port <= 0 {
		return nil
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port))) //nolint:noctx // immediate
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w: %s:%d; choose another one, or use the broker that listens there", ErrPortInUse, host, port)
	}
	if err != nil {
		return fmt.Errorf("listen on %s:%d: %w", host, port, err)
	}
	return l.Close()
}

func defaultStore(dir string) int64 {
	const most = 8 << 30
	var fs syscall.Statfs_t
	if err := syscall.Statfs(filepath.Clean(dir), &fs); err != nil {
		return most
	}
	return min(most, int64(fs.Bavail)*int64(fs.Bsize)/4*3) //nolint:gosec,unconvert // sizes differ by platform
}
