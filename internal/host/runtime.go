package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"rookery/internal/config"
)

// A runtimeInfo is what the runtime file of a store tells of its broker.
type runtimeInfo struct {
	URL      string `json:"url"`
	User     string `json:"user"`
	Password string `json:"password"`
	Store    string `json:"store"`
	PID      int    `json:"pid"`
	// Boot names one run of one broker.
	Boot string `json:"boot"`
}

// A place is where a store and what belongs to it lie.
type place struct {
	store   string // absolute, without symbolic links
	runtime string // the runtime file
}

// findPlace makes the store's directory and finds its runtime file. One store
// has one runtime file, whatever path it is reached by.
func findPlace(dir string) (place, error) {
	if dir == "" {
		dir = config.FindPaths().Store
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return place{}, &BrokerError{
			Store: dir, Err: fmt.Errorf("make the store: %w", storeFault(err)),
			Hint: "choose a directory that you may write to (ROOKERY_STORE_DIR)",
		}
	}
	store, err := filepath.EvalSymlinks(dir)
	if err == nil {
		store, err = filepath.Abs(store)
	}
	if err != nil {
		return place{}, fmt.Errorf("find store %s: %w", dir, err)
	}
	file, err := config.RuntimeFile(store)
	if err != nil {
		return place{}, brokerError(store, fmt.Errorf("%w: %w", ErrForeign, err))
	}
	return place{store: store, runtime: file}, nil
}

// read returns what the runtime file says; fs.ErrNotExist when there is none,
// ErrForeign when it is not ours alone.
func (p place) read() (runtimeInfo, error) {
	f, err := os.OpenFile(p.runtime, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return runtimeInfo{}, fmt.Errorf("%w: %s is a symbolic link", ErrForeign, p.runtime)
	}
	if err != nil {
		return runtimeInfo{}, fmt.Errorf("open the runtime file: %w", err)
	}
	defer f.Close()
	if err := ours(f); err != nil {
		return runtimeInfo{}, err
	}
	var r runtimeInfo
	if err := json.NewDecoder(f).Decode(&r); err != nil {
		return runtimeInfo{}, fmt.Errorf("%w: read %s: %w", ErrForeign, p.runtime, err)
	}
	return r, nil
}

// ours refuses a file that others could have written or read.
func ours(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("look at the runtime file: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return fmt.Errorf("%w: %s is no regular file", ErrForeign, f.Name())
	case ok && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%w: %s belongs to user %d", ErrForeign, f.Name(), st.Uid)
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%w: %s is open to others (mode %o)", ErrForeign, f.Name(), info.Mode().Perm())
	}
	return nil
}

// write puts the runtime file in place at once and whole.
func (p place) write(r runtimeInfo) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the runtime file: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(p.runtime), ".broker-*") // mode 0600
	if err != nil {
		return fmt.Errorf("write the runtime file: %w", err)
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), p.runtime)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write the runtime file: %w", err), os.Remove(f.Name()))
	}
	return nil
}

// remove takes the runtime file away if it is still that of this run.
func (p place) remove(boot string) error {
	r, err := p.read()
	if errors.Is(err, fs.ErrNotExist) || err == nil && r.Boot != boot {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.Remove(p.runtime); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the runtime file: %w", err)
	}
	return nil
}
