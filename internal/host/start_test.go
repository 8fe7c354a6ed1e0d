package host_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/config"
	"rookery/internal/host"
)

// process reads a file of /proc of the broker.
func (h *home) process(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(h.broker(t)), name))
	require.NoError(t, err)
	return string(b)
}

func TestStart_ABrokerHasNoSecretsOfItsStarter(t *testing.T) {
	h := newHome(t)
	t.Setenv("OPENAI_API_KEY", "sk-secret")
	t.Setenv("NATS_CREDS", "")
	h.join(t)
	env := h.process(t, "environ")
	require.NotContains(t, env, "sk-secret")
	require.Contains(t, env, "HOME=")
}

func TestStart_ABrokerHoldsNothingOfItsStarter(t *testing.T) {
	h := newHome(t)
	name := filepath.Join(h.dir, "held")
	f, err := os.Create(name)
	require.NoError(t, err)
	defer f.Close()
	fd, err := syscall.Dup(int(f.Fd())) // one that a shell left open: not closed at exec
	require.NoError(t, err)
	defer syscall.Close(fd)
	h.join(t)

	fds := filepath.Join("/proc", strconv.Itoa(h.broker(t)), "fd")
	entries, err := os.ReadDir(fds)
	require.NoError(t, err)
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(fds, e.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		require.NotEqual(t, name, target)
		require.False(t, strings.HasPrefix(target, "pipe:"), "a pipe is left open: %s", target)
	}
}

func TestStart_ABrokerThatDiesIsAnErrorThatNamesTheLog(t *testing.T) {
	h := newHome(t)
	l := host.NewLocal(h.cfg, nil)
	l.Command = []string{"/bin/false"}
	_, err := l.Connect(t.Context())
	require.ErrorIs(t, err, host.ErrNoBroker)
	require.ErrorContains(t, err, "broker.log")

	l.Command = []string{filepath.Join(h.dir, "missing")}
	_, err = l.Connect(t.Context())
	require.ErrorIs(t, err, host.ErrNoBroker)
}

func TestStart_ABrokerThatIsSilentEndsWithTheContext(t *testing.T) {
	h := newHome(t)
	fifo := filepath.Join(h.dir, "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	script := filepath.Join(h.dir, "silent")
	// It says that it runs, then waits for the test's end.
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\necho > "+fifo+"; read line < "+fifo+"\n"), 0o700))
	l := host.NewLocal(h.cfg, nil)
	l.Command = []string{script}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	started := make(chan error, 1)
	go func() {
		_, err := os.ReadFile(fifo)
		cancel()
		started <- err
	}()
	_, err := l.Connect(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, <-started)
	require.NoError(t, os.WriteFile(fifo, []byte("end\n"), 0o600))
}

// The broker tells its starter what is wrong, whole: here a store of which the
// part that the server itself needs is a file.
func TestStart_AStoreThatTheBrokerCannotUse(t *testing.T) {
	h := newHome(t)
	require.NoError(t, os.MkdirAll(h.store, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(h.store, "jetstream"), nil, 0o600))
	_, err := host.NewLocal(h.cfg, nil).Connect(t.Context())
	require.Error(t, err)
	var told *host.BrokerError
	require.ErrorAs(t, err, &told)
	require.Equal(t, 1, strings.Count(err.Error(), h.store+":"), "%v", err)
}

func TestConfig_StrictAndSizeReachTheBroker(t *testing.T) {
	h := newHome(t)
	t.Setenv("ROOKERY_STORE_DURABILITY", "strict")
	t.Setenv("ROOKERY_STORE_SIZE", "1073741824")
	var err error
	h.cfg, err = config.Load(config.Sources{})
	require.NoError(t, err)
	h.join(t)
	argv := strings.Split(h.process(t, "cmdline"), "\x00")
	require.Contains(t, argv, "--strict")
	require.Contains(t, argv, "1073741824")
}
