package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"syscall"
	"time"

	"rookery/internal/bus/natsd"
	"rookery/protocol"
)

// DefaultExitIdle is how long a detached broker outlives its last client.
const DefaultExitIdle = 60 * time.Second

// minFree is the least room on the disk with which a broker starts.
const minFree = 16 << 20

// BrokerOptions are those of a detached broker.
type BrokerOptions struct {
	// Store is its directory; empty = the user's.
	Store string
	// ExitIdle ends it when it had no client for that long. Default
	// DefaultExitIdle; negative = never.
	ExitIdle time.Duration
	// Strict waits for the disk before each acknowledgement.
	Strict bool
	// MaxStore bounds the store, in bytes. Default: see natsd.Options.
	MaxStore int64
	// Log; nil discards.
	Log *slog.Logger
}

// RunBroker is the whole life of a detached broker: it takes the store's lock,
// serves on a free port of loopback until ctx is done or it was idle for too
// long, and leaves nothing behind. When a broker of this store already answers,
// it does nothing and returns nil. Its error is a *BrokerError. Who started the
// process is told of the outcome on descriptor 3 (see Local).
func RunBroker(ctx context.Context, o BrokerOptions) error {
	tell := starter()
	s, err := startBroker(ctx, o)
	tell(err)
	if errors.Is(err, errRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	s.log.InfoContext(ctx, "broker serves", "store", s.place.store, "url", s.url)
	s.untilIdle(ctx, o.ExitIdle)
	s.log.InfoContext(ctx, "broker ends", "store", s.place.store)
	return s.close()
}

// A storeServer is a broker on a store that this process has locked.
type storeServer struct {
	place
	lock *lock
	srv  *natsd.Server
	url  string
	info runtimeInfo
	log  *slog.Logger
}

func startBroker(ctx context.Context, o BrokerOptions) (*storeServer, error) {
	p, err := findPlace(o.Store)
	if err != nil {
		return nil, err
	}
	l, err := lockStore(ctx, p.store, p.answers)
	if err != nil {
		return nil, brokerError(p.store, err)
	}
	s, err := serveStore(p, l, kindBroker, natsd.Options{
		Port: -1, User: "rookery", Password: protocol.Token(24),
		SyncAlways: o.Strict, MaxStore: o.MaxStore, Logger: logger(o.Log),
	})
	if err != nil {
		return nil, brokerError(p.store, errors.Join(err, l.close()))
	}
	return s, nil
}

// answers returns errRunning when the broker of the runtime file can be reached.
func (p place) answers() error {
	r, err := p.read()
	if err != nil {
		return nil //nolint:nilerr // none is written yet; who reads it for credentials tells more
	}
	u, err := url.Parse(r.URL)
	if err != nil {
		return nil //nolint:nilerr // written by another version; the lock decides
	}
	c, err := net.DialTimeout("tcp", u.Host, time.Second) //nolint:noctx // bounded and local
	if err != nil {
		return nil //nolint:nilerr // that is the answer
	}
	_ = c.Close()
	return errRunning
}

// serveStore starts the broker of a locked store and tells where it is.
func serveStore(p place, l *lock, kind string, o natsd.Options) (*storeServer, error) {
	me := holder{PID: os.Getpid(), Kind: kind, Starting: true}
	if err := errors.Join(room(p.store), l.say(me)); err != nil {
		return nil, err
	}
	o.StoreDir = p.store
	srv, err := natsd.Start(o)
	if err != nil {
		return nil, storeFault(err)
	}
	s := &storeServer{place: p, lock: l, srv: srv, url: srv.ClientURL(), log: o.Logger, info: runtimeInfo{
		URL: srv.ClientURL(), User: o.User, Password: o.Password,
		Store: p.store, PID: os.Getpid(), Boot: protocol.Token(8),
	}}
	me.Starting = false
	if err := errors.Join(p.write(s.info), l.say(me)); err != nil {
		srv.Shutdown()
		return nil, errors.Join(err, p.remove(s.info.Boot))
	}
	return s, nil
}

// untilIdle returns when ctx is done or there was no client for as long as idle.
// In the latter case the runtime file is gone.
func (s *storeServer) untilIdle(ctx context.Context, idle time.Duration) {
	if idle == 0 {
		idle = DefaultExitIdle
	}
	if idle < 0 {
		<-ctx.Done()
		return
	}
	tick := time.NewTicker(min(max(idle/20, 5*time.Millisecond), time.Second))
	defer tick.Stop()
	since := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		switch {
		case s.srv.Clients() > 0:
			since = time.Now()
		case time.Since(since) >= idle && s.leave():
			return
		}
	}
}

// leave takes the runtime file away. Who has connected before that keeps the
// broker; who connects later looks for the file again and does not find it.
func (s *storeServer) leave() bool {
	if err := s.remove(s.info.Boot); err != nil {
		s.log.Warn("runtime file stays", "err", err)
		return true
	}
	if s.srv.Clients() == 0 {
		return true
	}
	if err := s.write(s.info); err != nil {
		s.log.Warn("runtime file is not written again", "err", err)
	}
	return false
}

// close ends the broker; the lock is given up last.
func (s *storeServer) close() error {
	err := s.remove(s.info.Boot)
	s.srv.Shutdown()
	return errors.Join(err, s.lock.close())
}

// room reports a disk without space for a store.
func room(dir string) error {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("look at the disk of %s: %w", dir, err)
	}
	if left := int64(fs.Bavail) * int64(fs.Bsize); left < minFree { //nolint:gosec,unconvert // types differ by platform
		return fmt.Errorf("%w: %d KiB are left, a store needs %d", ErrDiskFull, left>>10, minFree>>10)
	}
	return nil
}

// storeFault names what the system says of a store that can't be written.
func storeFault(err error) error {
	switch {
	case errors.Is(err, natsd.ErrStore):
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %w", ErrDiskFull, err)
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: %w", natsd.ErrStore, err)
	}
	return err
}

func logger(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}
