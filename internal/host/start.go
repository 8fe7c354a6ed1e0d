package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rookery/internal/config"
)

// readyVariable names, in a broker's environment, the descriptor on which its
// starter waits to be told.
const readyVariable = "ROOKERY_READY_FD"

// An answer is what a broker tells its starter: ready, or why not.
type answer struct {
	OK   bool   `json:"ok"`
	Code string `json:"code,omitempty"`
	Text string `json:"text,omitempty"`
}

// starter returns how to tell whoever started this process; without one, nothing
// is told.
func starter() func(error) {
	fd, err := strconv.Atoi(os.Getenv(readyVariable))
	if err != nil || fd < 3 {
		return func(error) {}
	}
	f := os.NewFile(uintptr(fd), "starter")
	unix.CloseOnExec(fd)
	return func(err error) {
		a := answer{OK: err == nil}
		if err != nil {
			if known, ok := errors.AsType[*BrokerError](err); ok {
				err = known.Err // the starter says the rest
			}
			a.Code, a.Text = codeOf(err), err.Error()
		}
		_ = json.NewEncoder(f).Encode(a) // it may have gone
		_ = f.Close()
	}
}

// start runs a broker as a process of its own and waits until it is ready.
// errRunning: another one was first.
func (l Local) start(ctx context.Context, p place) error {
	argv, err := l.argv(p)
	if err != nil {
		return err
	}
	log, err := openLog()
	if err != nil {
		return err
	}
	defer log.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	defer null.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe to the broker: %w", err)
	}
	defer r.Close()
	closeOnExec()
	proc, err := os.StartProcess(argv[0], argv, &os.ProcAttr{
		Dir: "/", Env: brokerEnvironment(os.Environ()),
		Files: []*os.File{null, null, log, w},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	_ = w.Close()
	if err != nil {
		return brokerError(p.store, fmt.Errorf("%w: %w", ErrNoBroker, err))
	}
	err = await(ctx, r, log.Name())
	if err != nil && ctx.Err() == nil {
		_, werr := proc.Wait() // it has said its last word
		return brokerError(p.store, errors.Join(err, werr))
	}
	return errors.Join(brokerError(p.store, err), proc.Release())
}

// await reads the broker's answer.
func await(ctx context.Context, r *os.File, log string) error {
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	b, err := io.ReadAll(io.LimitReader(r, 64<<10))
	if ctx.Err() != nil {
		return fmt.Errorf("wait for the broker to start: %w", context.Cause(ctx))
	}
	var a answer
	if err != nil || json.Unmarshal(b, &a) != nil {
		return fmt.Errorf("%w: it ended without a word; see %s", ErrNoBroker, log)
	}
	if a.OK {
		return nil
	}
	is, ok := codes[a.Code]
	if !ok {
		is = ErrNoBroker
	}
	return &toldError{text: a.Text, is: is}
}

func (l Local) argv(p place) ([]string, error) {
	argv := slices.Clone(l.Command)
	if len(argv) == 0 {
		exe, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find the program to start a broker with: %w", err)
		}
		argv = []string{exe, "broker"}
	}
	argv = append(argv, "--store", p.store, "--exit-idle", l.exitIdle().String())
	if l.Strict {
		argv = append(argv, "--strict")
	}
	if l.MaxStore > 0 {
		argv = append(argv, "--size", strconv.FormatInt(l.MaxStore, 10))
	}
	return argv, nil
}

// exitIdle is the variable ROOKERY_EXIT_IDLE, which tests set, or the default.
func (l Local) exitIdle() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("ROOKERY_EXIT_IDLE")); err == nil && d != 0 {
		return d
	}
	return DefaultExitIdle
}

// brokerEnvironment keeps what a broker needs: no keys, no credentials.
func brokerEnvironment(environ []string) []string {
	keep := []string{
		"HOME", "PATH", "TMPDIR", "LANG", "TZ", "GOMAXPROCS", "GOMEMLIMIT", "GOCOVERDIR",
		"XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME",
	}
	env := []string{readyVariable + "=3"}
	for _, kv := range environ {
		if name, _, _ := strings.Cut(kv, "="); slices.Contains(keep, name) {
			env = append(env, kv)
		}
	}
	return env
}

// closeOnExec keeps descriptors that this process got from its own starter, such
// as the pipe of a command substitution, from the processes that it starts.
func closeOnExec() {
	const maxFD = ^uint(0) >> 1
	if unix.CloseRange(3, maxFD&0xffffffff, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	for fd := 3; fd < 1024; fd++ { // a system older than the call
		unix.CloseOnExec(fd)
	}
}

// openLog opens the log of detached brokers; what is long already is put aside.
func openLog() (*os.File, error) {
	const long = 1 << 20
	dir := config.FindPaths().Logs
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of logs: %w", err)
	}
	name := filepath.Join(dir, "broker.log")
	if info, err := os.Stat(name); err == nil && info.Size() > long {
		if err := os.Rename(name, name+".old"); err != nil {
			return nil, fmt.Errorf("put the broker's log aside: %w", err)
		}
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the broker's log: %w", err)
	}
	return f, nil
}
