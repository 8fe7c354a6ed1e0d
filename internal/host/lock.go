package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// lockWait is how long a store's lock is waited for, lockStarting how long
	// when its holder is still reading the store.
	lockWait     = 5 * time.Second
	lockStarting = 70 * time.Second
	lockPoll     = 20 * time.Millisecond
)

// A holder is what the lock file says of the process that has the lock.
type holder struct {
	PID int `json:"pid"`
	// Kind is broker for a detached one, which may be asked to end, or serve.
	Kind     string `json:"kind"`
	Starting bool   `json:"starting"`
}

const (
	kindBroker = "broker"
	kindServe  = "serve"
)

// patienceEnds reports that the holder was waited for long enough: a store with
// much in it takes time to come up.
func (h holder) patienceEnds(began time.Time) bool {
	waited := time.Since(began)
	return waited > lockStarting || waited > lockWait && !h.Starting
}

// A lock is held on a file until close, or the end of the process.
type lock struct{ file *os.File }

// errLocked reports a lock that somebody else has.
var errLocked = errors.New("locked")

// storeLock is the file whose lock is that of a store.
func storeLock(dir string) string { return filepath.Join(dir, "lock") }

// tryLock takes the lock of a file, which it makes, or returns errLocked.
func tryLock(name string) (*lock, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", storeFault(err))
	}
	for {
		switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case err == nil:
			return &lock{f}, nil
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return nil, errors.Join(errLocked, f.Close())
		default:
			return nil, errors.Join(fmt.Errorf("lock %s: %w", name, err), f.Close())
		}
	}
}

// say writes who holds the lock.
func (l *lock) say(h holder) error {
	b, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("encode the lock: %w", err)
	}
	// One write of one page: a reader sees the old text or the new one. Spaces
	// cover what was longer before.
	if _, err := l.file.WriteAt(fmt.Appendf(nil, "%-120s\n", b), 0); err != nil {
		return fmt.Errorf("write %s: %w", l.file.Name(), storeFault(err))
	}
	return nil
}

func (l *lock) close() error { return l.file.Close() }

// readHolder reads who holds the lock of a store; the zero holder if it does not
// say.
func readHolder(dir string) holder {
	var h holder
	f, err := os.Open(storeLock(dir))
	if err != nil {
		return h
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 4<<10))
	if err != nil || json.Unmarshal(b, &h) != nil {
		return holder{}
	}
	return h
}

// lockStore waits for a store's lock. stop, asked while it waits, ends it with
// an error.
func lockStore(ctx context.Context, dir string, stop func() error) (*lock, error) {
	began := time.Now()
	for {
		l, err := tryLock(storeLock(dir))
		if !errors.Is(err, errLocked) {
			return l, err
		}
		if err := stop(); err != nil {
			return nil, err
		}
		if h := readHolder(dir); h.patienceEnds(began) {
			return nil, fmt.Errorf("%w: process %d holds its lock (%s)", ErrStoreBusy, h.PID, h.Kind)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the lock of %s: %w", dir, context.Cause(ctx))
		case <-time.After(lockPoll):
		}
	}
}

// free reports that nobody holds the lock of a store.
func free(dir string) bool {
	l, err := tryLock(storeLock(dir))
	if err != nil {
		return false
	}
	return l.close() == nil
}
