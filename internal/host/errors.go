package host

import (
	"errors"
	"fmt"

	"rookery/internal/bus/natsd"
)

// Errors of having a broker of one's own.
var (
	// ErrStoreBusy reports that another process uses the store and does not answer.
	ErrStoreBusy = errors.New("store is in use by another process")
	// ErrDiskFull reports a disk without room for a store.
	ErrDiskFull = errors.New("disk is full")
	// ErrForeign reports a runtime file or directory that is not this user's alone.
	ErrForeign = errors.New("runtime file can't be trusted")
	// ErrNoBroker reports a broker that ended before it was ready.
	ErrNoBroker = errors.New("broker did not start")

	// errRunning reports a broker that answers: join it.
	errRunning = errors.New("a broker runs on this store")
	// errEnded reports a broker that ended on purpose and that nobody has started since.
	errEnded = errors.New("the broker of this store has ended")
)

// A BrokerError says why this user's own broker can't be used. Err wraps one of
// the errors of this package or of natsd.
type BrokerError struct {
	Store string
	Err   error
	// Hint says what to do.
	Hint string
}

func (e *BrokerError) Error() string {
	s := fmt.Sprintf("broker for store %s: %v", e.Store, e.Err)
	if e.Hint != "" {
		s += "; " + e.Hint
	}
	return s
}

// Unwrap returns the cause.
func (e *BrokerError) Unwrap() error { return e.Err }

// brokerError adds what to do to an error of the broker's.
func brokerError(store string, err error) error {
	var known *BrokerError
	if err == nil || errors.As(err, &known) || errors.Is(err, errRunning) {
		return err
	}
	return &BrokerError{Store: store, Err: err, Hint: hint(err)}
}

func hint(err error) string {
	switch {
	case errors.Is(err, ErrStoreBusy):
		return "end that process, or choose another store (ROOKERY_STORE_DIR)"
	case errors.Is(err, ErrDiskFull):
		return "free some space, or choose a store on another disk (ROOKERY_STORE_DIR)"
	case errors.Is(err, ErrForeign):
		return "remove it if it is yours, or set XDG_RUNTIME_DIR to a directory of your own"
	case errors.Is(err, natsd.ErrStore):
		return "ROOKERY_STORE_DIR names another one"
	}
	return ""
}

// codes name errors on the pipe between a broker that starts and its starter.
//
//nolint:gochecknoglobals // a table of constants
var codes = map[string]error{
	"running":   errRunning,
	"busy":      ErrStoreBusy,
	"disk_full": ErrDiskFull,
	"foreign":   ErrForeign,
	"store":     natsd.ErrStore,
	"port":      natsd.ErrPortInUse,
	"not_ready": natsd.ErrNotReady,
}

// codeOf returns the name of the error that err wraps, "" for an unknown one.
func codeOf(err error) string {
	for code, e := range codes {
		if errors.Is(err, e) {
			return code
		}
	}
	return ""
}

// A toldError is an error of another process: its text, and what it is.
type toldError struct {
	text string
	is   error
}

func (e *toldError) Error() string { return e.text }
func (e *toldError) Unwrap() error { return e.is }
