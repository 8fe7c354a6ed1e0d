package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/client"
	"rookery/internal/trace"
	"rookery/protocol"
)

// No case depends on these: they end what hangs.
const (
	patience  = 60 * time.Second
	pollEvery = 20 * time.Millisecond
)

// A world is a user on a machine: a home of its own, a workspace, processes.
type world struct {
	t   *testing.T
	dir string
	// workspace is where commands are run.
	workspace string
	env       map[string]string

	mu    sync.Mutex // processes are started from the test, but may be read in cleanups
	procs []*proc
}

// newWorld makes a fresh home without network, keys or configuration.
func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{t: t, dir: dir, workspace: filepath.Join(dir, "work"), env: map[string]string{
		"PATH": os.Getenv("PATH"), "HOME": filepath.Join(dir, "home"), "TMPDIR": filepath.Join(dir, "tmp"),
		"XDG_RUNTIME_DIR": filepath.Join(dir, "run"), "LANG": "C.UTF-8",
		"ROOKERY_EXIT_IDLE": "20s", "ROOKERY_SANDBOX": "none",
		// Whoever asks the world outside is refused at once.
		"HTTP_PROXY": "http://127.0.0.1:1", "HTTPS_PROXY": "http://127.0.0.1:1", "NO_PROXY": "127.0.0.1",
	}}
	for _, d := range []string{w.workspace, w.env["HOME"], w.env["TMPDIR"], w.env["XDG_RUNTIME_DIR"]} {
		require.NoError(t, os.MkdirAll(d, 0o700))
	}
	t.Cleanup(w.end)
	return w
}

// file writes a file of the workspace.
func (w *world) file(name, text string) {
	w.t.Helper()
	require.NoError(w.t, os.WriteFile(filepath.Join(w.workspace, name), []byte(text), 0o600))
}

func (w *world) store() string {
	return filepath.Join(w.env["HOME"], ".local", "share", "rookery", "store")
}

// end kills what still runs and waits until nothing uses the store.
func (w *world) end() {
	for _, p := range w.procs {
		p.signal(syscall.SIGKILL)
		<-p.done
	}
	if pid := w.broker().PID; pid != 0 {
		_ = syscall.Kill(pid, syscall.SIGTERM)
		w.untilFree()
	}
	if w.t.Failed() {
		for _, p := range w.procs {
			w.t.Logf("%s: exit %d\nstdout:\n%s\nstderr:\n%s", p.name, p.code, tail(p.stdout.String()), tail(p.stderr.String()))
		}
	}
}

func tail(s string) string { return s[max(0, len(s)-6000):] }

// A runtimeFile is what the broker of the store tells.
type runtimeFile struct {
	URL, User, Password string
	PID                 int
}

// broker reads the runtime file; zero when there is none.
func (w *world) broker() runtimeFile {
	w.t.Helper()
	files, err := filepath.Glob(filepath.Join(w.env["XDG_RUNTIME_DIR"], "rookery", "broker-*.json"))
	require.NoError(w.t, err)
	if len(files) == 0 {
		return runtimeFile{}
	}
	require.Len(w.t, files, 1)
	var r runtimeFile
	b, err := os.ReadFile(files[0])
	if errors.Is(err, os.ErrNotExist) {
		return r
	}
	require.NoError(w.t, err)
	require.NoError(w.t, protocol.Unmarshal(b, &r))
	return r
}

func (w *world) untilFree() {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		f, err := os.Open(filepath.Join(w.store(), "lock"))
		if err != nil {
			return errors.Is(err, os.ErrNotExist)
		}
		defer f.Close()
		return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
	}, patience, pollEvery, "the store stays locked")
}

// A proc is a process of a world.
type proc struct {
	w              *world
	name           string
	cmd            *exec.Cmd
	stdout, stderr *output
	done           chan struct{} // closed once code is there
	code           int           // 128 + signal after a signal
}

// An output is what a process has written so far.
type output struct {
	mu sync.Mutex // the process's copier writes, the test reads
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// start starts one of the binaries in the workspace. Its input is empty.
func (w *world) start(program string, args ...string) *proc {
	w.t.Helper()
	return w.spawn(exec.Command(filepath.Join(binaries, program), args...), nil)
}

func (w *world) spawn(cmd *exec.Cmd, stdin io.Reader) *proc {
	w.t.Helper()
	p := &proc{
		w: w, name: filepath.Base(cmd.Path) + " " + strings.Join(cmd.Args[1:], " "), cmd: cmd,
		stdout: &output{}, stderr: &output{}, done: make(chan struct{}),
	}
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = w.workspace, stdin, p.stdout, p.stderr
	for k, v := range w.env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// A descendant that holds the pipes must not hold the test: it would be a fault
	// that the case sees by other means.
	cmd.WaitDelay = patience
	require.NoError(w.t, cmd.Start())
	w.mu.Lock()
	w.procs = append(w.procs, p)
	w.mu.Unlock()
	go func() { // end waits for it
		defer close(p.done)
		err := cmd.Wait()
		p.code = cmd.ProcessState.ExitCode()
		if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
			p.code = 128 + int(s.Signal())
		}
		if errors.Is(err, exec.ErrWaitDelay) {
			p.code = -2 // somebody else holds its output
		}
	}()
	return p
}

// signal sends to the process alone.
func (p *proc) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// kill ends it as a power cut would.
func (p *proc) kill() {
	p.w.t.Helper()
	p.signal(syscall.SIGKILL)
	p.wait()
}

// wait returns the exit status.
func (p *proc) wait() int {
	p.w.t.Helper()
	select {
	case <-p.done:
		return p.code
	case <-time.After(patience):
		p.signal(syscall.SIGQUIT) // its goroutines go to stderr
		<-p.done
		require.FailNow(p.w.t, "process hangs: "+p.name, "stdout:\n%s\nstderr:\n%s", tail(p.stdout.String()), tail(p.stderr.String()))
		return p.code
	}
}

// says waits until the process has written a text to stderr or stdout.
func (p *proc) says(text string) {
	p.w.t.Helper()
	require.Eventually(p.w.t, func() bool {
		return strings.Contains(p.stderr.String(), text) || strings.Contains(p.stdout.String(), text)
	}, patience, pollEvery, "%s does not say %q", p.name, text)
}

// run runs a command of the command line to its end.
func (w *world) run(args ...string) *proc {
	w.t.Helper()
	p := w.start("rookery", args...)
	p.wait()
	return p
}

// ok is run for a command that must exit with 0.
func (w *world) ok(args ...string) string {
	w.t.Helper()
	p := w.run(args...)
	require.Equal(w.t, protocol.ExitOK, p.code, "%s\nstdout:\n%s\nstderr:\n%s", p.name, tail(p.stdout.String()), tail(p.stderr.String()))
	return p.stdout.String()
}

// nats starts a server of its own.
func (w *world) nats() (host string, server *proc) {
	w.t.Helper()
	host = ownAddress()
	return host, w.natsAt(host)
}

// ownAddress is an address of the loopback that only this test uses: a port of
// 127.0.0.1 that is free now may be taken before the server listens.
func ownAddress() string {
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
}

func brokerAt(host string) string { return "nats://" + host + ":4222" }

func (w *world) natsAt(host string) *proc {
	w.t.Helper()
	p := w.start("nats-server", "-a", host, "-p", "4222", "-js", "-sd", filepath.Join(w.dir, "jetstream"))
	p.says("Server is ready")
	return p
}

// dial connects to the configured broker, else to the one of the store.
func (w *world) dial() *client.Client {
	w.t.Helper()
	o := client.Options{}
	if url := w.env["NATS_URL"]; url != "" {
		o.Server = []string{url}
	} else {
		r := w.broker()
		require.NotZero(w.t, r.PID, "no broker")
		o.Server, o.User, o.Password = []string{r.URL}, r.User, r.Password
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	c, err := client.Dial(ctx, o)
	require.NoError(w.t, err)
	return c
}

// verify holds the session's whole trace against the rules.
func (w *world) verify(sid protocol.ID) []trace.Record {
	w.t.Helper()
	c := w.dial()
	defer c.Close()
	var rs []trace.Record
	for r, err := range c.Records(w.t.Context(), sid) {
		require.NoError(w.t, err)
		if r.Own == nil {
			rs = append(rs, trace.Record{Context: r.Context, Private: r.Private, Message: r.Message})
		}
	}
	require.NotEmpty(w.t, rs, "session %s has no trace", sid)
	require.Empty(w.t, trace.Verify(rs, nil))
	return rs
}

// session waits for the session whose first prompt is text.
func (w *world) session(text string) protocol.ID {
	w.t.Helper()
	var found protocol.ID
	require.Eventually(w.t, func() bool {
		if w.env["NATS_URL"] == "" && w.broker().PID == 0 {
			return false
		}
		c := w.dial()
		defer c.Close()
		for e, err := range c.List(w.t.Context()) {
			if err == nil && firstPrompt(w.t, c, e.Session) == text {
				found = e.Session
			}
		}
		return found != ""
	}, patience, pollEvery, "no session has the prompt %q", text)
	return found
}

func firstPrompt(t *testing.T, c *client.Client, sid protocol.ID) string {
	t.Helper()
	for e, err := range c.History(t.Context(), sid, protocol.Cursor{}) {
		if err != nil {
			return ""
		}
		if p, ok := e.Message.Payload.(protocol.Text); ok && p.Role == protocol.User {
			return p.Text
		}
	}
	return ""
}
