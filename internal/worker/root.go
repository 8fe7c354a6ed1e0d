package worker

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"rookery/protocol"
)

// ErrInUse reports a root that another worker uses.
var ErrInUse = errors.New("another worker uses this directory")

// A root is a worker's own directory, locked.
type root struct {
	dir  string
	lock *os.File
}

func openRoot(dir string) (*root, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the worker's root: %w", err)
	}
	dir, err := realPath(dir)
	if err != nil {
		return nil, fmt.Errorf("worker's root: %w", err)
	}
	for _, d := range []string{filepath.Join(dir, "ws"), filepath.Join(dir, "scratch"), filepath.Join(dir, "journal")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("make the worker's root: %w", err)
		}
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the worker's lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s (give each worker its own root)", ErrInUse, dir)
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return &root{dir: dir, lock: f}, nil
}

// realPath is absolute and without links.
func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

func (r *root) path(names ...string) string {
	return filepath.Join(append([]string{r.dir}, names...)...)
}

func (r *root) close() error { return r.lock.Close() }

// identity returns the id kept in the root; a new root keeps the one asked for, or
// a made one. Another id than the kept one is refused: the journal is the kept one's.
func (r *root) identity(want protocol.ID) (protocol.ID, error) {
	name := r.path("id")
	b, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the worker's id: %w", err)
	}
	kept, err := protocol.ParseID(string(bytes.TrimSpace(b)))
	switch {
	case err != nil && want == "":
		want = protocol.ID("w-" + protocol.Token(6))
	case err == nil && (want == "" || want == kept):
		return kept, nil
	case err == nil:
		return "", fmt.Errorf("%s belongs to worker %s, not %s: use another root, or remove the file id in it", r.dir, kept, want)
	}
	if err := os.WriteFile(name, []byte(want+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("keep the worker's id: %w", err)
	}
	return want, nil
}
