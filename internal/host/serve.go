package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"rookery/internal/bus"
	"rookery/internal/bus/natsd"
	"rookery/internal/config"
	"rookery/protocol"
)

// DefaultListen is where Serve listens.
const DefaultListen = "127.0.0.1:4222"

// ServeOptions are those of Serve. The zero value is fine.
type ServeOptions struct {
	// Listen is HOST:PORT; port 0 takes a free one. Default DefaultListen.
	Listen string
	// Roles beside the broker. Default: orchestrator and worker.
	Roles Roles
	// Out is told the address and how to join, once all serves. nil: nobody is.
	Out io.Writer
	// Log; nil discards.
	Log *slog.Logger
}

// Serve runs a broker on the configured store, an orchestrator and a worker until
// ctx is done or one of them ends. A detached broker of that store is asked to
// end first; sessions that run on it go on here. Errors of the broker are
// *BrokerError.
func Serve(ctx context.Context, cfg *config.Config, o ServeOptions) error {
	if !o.Roles.Orchestrator && !o.Roles.Worker {
		o.Roles.Orchestrator, o.Roles.Worker = true, true
	}
	s, err := serveBroker(ctx, cfg, o)
	if err != nil {
		return err
	}
	err = s.serve(ctx, cfg, o)
	return errors.Join(err, s.close())
}

func (s *storeServer) serve(ctx context.Context, cfg *config.Config, o ServeOptions) error {
	b, err := bus.Connect(ctx, bus.Options{
		Servers: []string{s.url}, User: s.info.User, Password: s.info.Password, Prefix: cfg.Prefix, Logger: o.Log,
	})
	if err != nil {
		return brokerError(s.store, err)
	}
	defer b.Close()
	stack, err := Start(ctx, b, cfg, o.Roles, o.Log)
	if err != nil {
		return err
	}
	defer stack.Stop()
	if o.Out != nil {
		if _, err := io.WriteString(o.Out, s.welcome()); err != nil {
			return fmt.Errorf("say where the broker is: %w", err)
		}
	}
	select {
	case <-ctx.Done():
		return nil
	case <-stack.ended:
		return stack.Wait()
	}
}

// welcome tells how to join.
func (s *storeServer) welcome() string {
	u := url.URL{Scheme: "nats", Host: strings.TrimPrefix(s.url, "nats://"), User: url.UserPassword(s.info.User, s.info.Password)}
	return fmt.Sprintf(`rookery serves at %s, store %s
  you, on this machine:  rookery run, ls, attach … find it by themselves
  everybody else:        export NATS_URL=%s
                         (who knows this address can run commands here)
`, s.url, s.store, u.String())
}

func serveBroker(ctx context.Context, cfg *config.Config, o ServeOptions) (*storeServer, error) {
	if o.Listen == "" {
		o.Listen = DefaultListen
	}
	host, port, err := listenAddress(o.Listen)
	if err != nil {
		return nil, err
	}
	p, err := findPlace(cfg.Store.Dir)
	if err != nil {
		return nil, err
	}
	asked := map[int]bool{}
	l, err := lockStore(ctx, p.store, func() error { return p.askToEnd(asked) })
	if err != nil {
		return nil, brokerError(p.store, err)
	}
	password, err := servePassword(p.store)
	if err == nil {
		var s *storeServer
		if s, err = serveStore(p, l, kindServe, natsd.Options{
			Host: host, Port: port, User: "rookery", Password: password,
			SyncAlways: cfg.Store.Durability == "strict", MaxStore: cfg.Store.Size, Logger: logger(o.Log),
		}); err == nil {
			return s, nil
		}
	}
	return nil, brokerError(p.store, errors.Join(err, l.close()))
}

// askToEnd ends a detached broker, once; who else holds the lock is left alone.
func (p place) askToEnd(asked map[int]bool) error {
	h := readHolder(p.store)
	if h.Kind != kindBroker || h.PID <= 1 || asked[h.PID] {
		return nil
	}
	asked[h.PID] = true
	if err := syscall.Kill(h.PID, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("ask broker process %d to end: %w", h.PID, err)
	}
	return nil
}

// servePassword keeps the password of a store, so that who joined finds the same
// one after a restart.
func servePassword(store string) (string, error) {
	name := filepath.Join(store, "password")
	b, err := os.ReadFile(name)
	if password := strings.TrimSpace(string(b)); err == nil && password != "" {
		return password, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read the store's password: %w", err)
	}
	password := protocol.Token(24)
	if err := os.WriteFile(name, []byte(password+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write the store's password: %w", storeFault(err))
	}
	return password, nil
}

func listenAddress(s string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, fmt.Errorf("listen address %q is not HOST:PORT: %w", s, err)
	}
	port, err = strconv.Atoi(text)
	if err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("listen address %q: %q is no port", s, text)
	}
	if port == 0 {
		port = -1 // how the broker is told to take a free one
	}
	if host == "" {
		host = "0.0.0.0"
	}
	return host, port, nil
}
