package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/adrg/xdg"
)

const app = "rookery"

// Paths are the places of a user on this machine, by the XDG rules.
type Paths struct {
	// User is the user file; system_config.yaml lies beside it.
	User string
	// Store holds the broker's data, Worker the root of a worker of our own.
	Store, Worker string
	// Logs is the directory of log files.
	Logs string
}

// reading guards xdg's variables, which Reload writes.
//
//nolint:gochecknoglobals // what it guards is global
var reading sync.Mutex

// FindPaths returns the places; it makes none of them.
func FindPaths() Paths {
	reading.Lock()
	defer reading.Unlock()
	xdg.Reload() // the environment may have changed since the program's start
	return Paths{
		User:   filepath.Join(xdg.ConfigHome, app, "config.yaml"),
		Store:  filepath.Join(xdg.DataHome, app, "store"),
		Worker: filepath.Join(xdg.DataHome, app, "worker"),
		Logs:   filepath.Join(xdg.StateHome, app),
	}
}

// RuntimeFile returns where the broker of a store tells its address and
// credentials, one file a store. It makes the directory, mode 0700, and refuses
// one that others may enter or that is not ours: under XDG_RUNTIME_DIR when that
// is sound, else under the cache.
func RuntimeFile(store string) (string, error) {
	abs, err := filepath.Abs(store)
	if err != nil {
		return "", fmt.Errorf("find the runtime file of %s: %w", store, err)
	}
	dir := runtimeDir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make the runtime directory: %w", err)
	}
	if err := private(dir); err != nil {
		return "", fmt.Errorf("use the runtime directory: %w", err)
	}
	sum := sha256.Sum256([]byte(abs))
	return filepath.Join(dir, "broker-"+hex.EncodeToString(sum[:6])+".json"), nil
}

func runtimeDir() string {
	reading.Lock()
	defer reading.Unlock()
	xdg.Reload()
	if private(xdg.RuntimeDir) != nil {
		return filepath.Join(xdg.CacheHome, app, "run")
	}
	return filepath.Join(xdg.RuntimeDir, app)
}

// private reports why a directory is not ours alone.
func private(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case ok && int(st.Uid) != os.Getuid():
		return fmt.Errorf("%s belongs to another user", dir)
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%s is open to others; chmod 700 it", dir)
	}
	return nil
}
