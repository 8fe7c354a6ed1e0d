package host_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/bus/natsd"
	"rookery/internal/config"
	"rookery/internal/host"
	"rookery/internal/sandbox/backend"
	"rookery/internal/tool"
	"rookery/protocol"
)

// TestMain is also the program that a Local starts: the tests' binary with the
// argument broker.
func TestMain(m *testing.M) {
	backend.Main(tool.Ops())
	if len(os.Args) > 1 && os.Args[1] == "broker" {
		os.Exit(brokerMain(os.Args[2:]))
	}
	os.Exit(m.Run())
}

func brokerMain(args []string) int {
	var o host.BrokerOptions
	f := flag.NewFlagSet("broker", flag.ExitOnError)
	f.StringVar(&o.Store, "store", "", "")
	f.DurationVar(&o.ExitIdle, "exit-idle", 0, "")
	f.BoolVar(&o.Strict, "strict", false, "")
	f.Int64Var(&o.MaxStore, "size", 0, "")
	_ = f.Parse(args)
	o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := host.RunBroker(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

const (
	patience  = 20 * time.Second
	pollEvery = 10 * time.Millisecond
)

// A home is a user's of its own: directories, configuration, broker.
type home struct {
	dir, store string
	cfg        *config.Config
}

func newHome(t *testing.T) *home {
	t.Helper()
	dir := t.TempDir()
	for name, sub := range map[string]string{
		"HOME": "", "XDG_DATA_HOME": "data", "XDG_STATE_HOME": "state", "XDG_CACHE_HOME": "cache",
		"XDG_CONFIG_HOME": "config", "XDG_RUNTIME_DIR": "run",
	} {
		path := filepath.Join(dir, sub)
		require.NoError(t, os.MkdirAll(path, 0o700))
		t.Setenv(name, path)
	}
	for _, name := range []string{"NATS_URL", "NATS_CREDS", "NATS_CONTEXT", "ROOKERY_MODEL"} {
		t.Setenv(name, "")
	}
	t.Setenv("ROOKERY_EXIT_IDLE", "30s")
	cfg, err := config.Load(config.Sources{})
	require.NoError(t, err)
	h := &home{dir: dir, store: filepath.Join(dir, "data", "rookery", "store"), cfg: cfg}
	t.Cleanup(func() { h.end(t) })
	return h
}

func (h *home) join(t *testing.T) *bus.Bus {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	b, err := host.Join(ctx, h.cfg, nil)
	require.NoError(t, err)
	t.Cleanup(b.Close)
	return b
}

// broker is the process that the runtime file names; 0 when there is none.
func (h *home) broker(t *testing.T) int {
	t.Helper()
	file, err := config.RuntimeFile(h.store)
	require.NoError(t, err)
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	require.NoError(t, err)
	var r struct {
		PID int `json:"pid"`
	}
	require.NoError(t, protocol.Unmarshal(b, &r))
	return r.PID
}

// end ends the broker and waits for its lock.
func (h *home) end(t *testing.T) {
	t.Helper()
	pid := h.broker(t)
	if pid == 0 {
		return
	}
	_ = syscall.Kill(pid, syscall.SIGTERM)
	h.untilFree(t)
}

func (h *home) untilFree(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		f, err := os.Open(filepath.Join(h.store, "lock"))
		if err != nil {
			return errors.Is(err, os.ErrNotExist)
		}
		defer f.Close()
		return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
	}, patience, pollEvery, "the store is still locked")
}

func TestJoin_StartsABrokerAndTheNextOneJoinsIt(t *testing.T) {
	h := newHome(t)
	require.Zero(t, h.broker(t))
	b := h.join(t)
	pid := h.broker(t)
	require.NotZero(t, pid)
	require.NotEqual(t, os.Getpid(), pid)
	require.NoError(t, b.PutSession(t.Context(), protocol.Entry{Session: "s1", State: protocol.StateIdle}))

	other := h.join(t)
	require.Equal(t, pid, h.broker(t), "a second broker")
	e, err := other.Session(t.Context(), "s1")
	require.NoError(t, err)
	require.Equal(t, protocol.StateIdle, e.State)

	sid, err := syscall.Getpgid(pid)
	require.NoError(t, err)
	require.Equal(t, pid, sid, "the broker is in the group of its starter")
}

func TestJoin_ManyAtOnceShareOneBroker(t *testing.T) {
	h := newHome(t)
	const n = 6
	ids := make(chan string, n)
	errs := make(chan error, n)
	for range n {
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			b, err := host.Join(ctx, h.cfg, nil)
			if err != nil {
				errs <- err
				return
			}
			defer b.Close()
			ids <- b.Link().Server
		}()
	}
	seen := map[string]bool{}
	for range n {
		select {
		case err := <-errs:
			require.NoError(t, err)
		case id := <-ids:
			seen[id] = true
		}
	}
	require.Len(t, seen, 1)
}

func TestJoin_FindsABrokerThatWasKilledAndStartedAnew(t *testing.T) {
	h := newHome(t)
	b := h.join(t)
	require.NoError(t, b.PutSession(t.Context(), protocol.Entry{Session: "kept"}))
	first := h.broker(t)
	require.NoError(t, syscall.Kill(first, syscall.SIGKILL))

	other := h.join(t)
	_, err := other.Session(t.Context(), "kept")
	require.NoError(t, err)
	require.NotEqual(t, first, h.broker(t))
	require.Eventually(t, func() bool {
		return b.Connected() && b.Link().Server == other.Link().Server
	}, patience, pollEvery, "the first one does not find the new broker")
}

func TestJoin_WhoIsConnectedStartsAKilledBrokerAnew(t *testing.T) {
	h := newHome(t)
	b := h.join(t)
	old := b.Link().Server
	require.NoError(t, syscall.Kill(h.broker(t), syscall.SIGKILL))
	require.Eventually(t, func() bool { return b.Connected() && b.Link().Server != old }, patience, pollEvery)
}

func TestJoin_LeavesABrokerAloneThatEndedOnPurpose(t *testing.T) {
	h := newHome(t)
	b := h.join(t)
	require.NoError(t, syscall.Kill(h.broker(t), syscall.SIGTERM))
	h.untilFree(t)
	require.Zero(t, h.broker(t))
	require.Eventually(t, func() bool { return !b.Connected() }, patience, pollEvery)

	h.join(t)
	require.Eventually(t, b.Connected, patience, pollEvery)
}

func TestBroker_EndsWhenItHasNoClientForLong(t *testing.T) {
	h := newHome(t)
	t.Setenv("ROOKERY_EXIT_IDLE", "50ms")
	b := h.join(t)
	pid := h.broker(t)
	require.NotZero(t, pid)
	b.Close()
	h.untilFree(t)
	require.Zero(t, h.broker(t), "it left its runtime file")
}

func TestJoin_TellsWhatToDo(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, h *home)
		is      error
		says    string
	}{
		"store below a file": {func(t *testing.T, h *home) {
			t.Helper()
			file := filepath.Join(h.dir, "file")
			require.NoError(t, os.WriteFile(file, nil, 0o600))
			h.cfg.Store.Dir = filepath.Join(file, "store")
		}, natsd.ErrStore, "ROOKERY_STORE_DIR"},
		"a runtime file that is open to others": {func(t *testing.T, h *home) {
			t.Helper()
			require.NoError(t, os.MkdirAll(h.store, 0o700))
			file, err := config.RuntimeFile(h.store)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(file, []byte(`{"url":"nats://127.0.0.1:4222"}`), 0o600))
			require.NoError(t, os.Chmod(file, 0o644))
			t.Cleanup(func() { require.NoError(t, os.Remove(file)) })
		}, host.ErrForeign, "open to others"},
		"a runtime file that is a link": {func(t *testing.T, h *home) {
			t.Helper()
			require.NoError(t, os.MkdirAll(h.store, 0o700))
			file, err := config.RuntimeFile(h.store)
			require.NoError(t, err)
			require.NoError(t, os.Symlink(os.DevNull, file))
			t.Cleanup(func() { require.NoError(t, os.Remove(file)) })
		}, host.ErrForeign, "symbolic link"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHome(t)
			c.prepare(t, h)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, err := host.Join(ctx, h.cfg, nil)
			require.ErrorIs(t, err, c.is)
			var told *host.BrokerError
			require.ErrorAs(t, err, &told)
			require.ErrorContains(t, err, c.says)
		})
	}
}

func TestJoin_ReplacesARuntimeFileThatIsStale(t *testing.T) {
	h := newHome(t)
	require.NoError(t, os.MkdirAll(h.store, 0o700))
	file, err := config.RuntimeFile(h.store)
	require.NoError(t, err)
	stale := `{"url":"nats://127.0.0.1:1","user":"x","password":"y","pid":1,"boot":"old"}`
	require.NoError(t, os.WriteFile(file, []byte(stale), 0o600))
	require.True(t, h.join(t).Connected())
}

func TestJoin_AConfiguredBrokerThatIsNotThere(t *testing.T) {
	h := newHome(t)
	h.cfg.Server = []string{"nats://someone:secret@127.0.0.1:1"}
	_, err := host.Join(t.Context(), h.cfg, nil)
	require.ErrorIs(t, err, bus.ErrUnreachable)
	require.NotContains(t, err.Error(), "secret")
	require.Zero(t, h.broker(t), "it started one of its own")
}

func TestRunBroker_AStoreInUseIsAnError(t *testing.T) {
	h := newHome(t)
	require.NoError(t, os.MkdirAll(h.store, 0o700))
	f, err := os.OpenFile(filepath.Join(h.store, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	err = host.RunBroker(t.Context(), host.BrokerOptions{Store: h.store})
	require.ErrorIs(t, err, host.ErrStoreBusy)
}
