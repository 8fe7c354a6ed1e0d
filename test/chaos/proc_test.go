package chaos_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A proc is a process of a rig.
type proc struct {
	t      *testing.T
	name   string
	cmd    *exec.Cmd
	stderr *output
	done   chan struct{} // closed once code is there
	code   int           // 128 + signal after a signal
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

// binary is the path of a program that TestMain built, or of one of the system's.
func binary(t *testing.T, program string) string {
	t.Helper()
	path := filepath.Join(binaries, program)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	path, err := exec.LookPath(program)
	require.NoError(t, err)
	return path
}

// start starts a program with the given environment; the rig ends it.
func (r *rig) start(program string, env map[string]string, args ...string) *proc {
	r.t.Helper()
	p := &proc{
		t: r.t, name: program + " " + strings.Join(args, " "), cmd: exec.Command(binary(r.t, program), args...),
		stderr: &output{}, done: make(chan struct{}),
	}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = r.dir, p.stderr, p.stderr
	for k, v := range env {
		p.cmd.Env = append(p.cmd.Env, k+"="+v)
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = patience
	require.NoError(r.t, p.cmd.Start())
	r.mu.Lock()
	r.procs = append(r.procs, p)
	r.mu.Unlock()
	go func() { // end waits for it
		defer close(p.done)
		_ = p.cmd.Wait()
		p.code = p.cmd.ProcessState.ExitCode()
		if s, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
			p.code = 128 + int(s.Signal())
		}
	}()
	return p
}

func (p *proc) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// kill ends it as a power cut would.
func (p *proc) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

func (p *proc) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// crashed waits until the process has killed itself.
func (p *proc) crashed() {
	p.t.Helper()
	select {
	case <-p.done:
		require.Equal(p.t, 128+int(syscall.SIGKILL), p.code, "%s ended otherwise\n%s", p.name, p.stderr)
	case <-time.After(patience):
		require.FailNow(p.t, "the place was not reached: "+p.name)
	}
}

// stop ends it gracefully.
func (p *proc) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(patience):
		p.signal(syscall.SIGQUIT) // its goroutines go to stderr
		<-p.done
	}
	require.Zero(p.t, p.code, "%s\n%s", p.name, tail(p.stderr.String()))
}

// says waits until the process has written a text.
func (p *proc) says(text string) {
	p.t.Helper()
	within(patience, func() bool { return !p.alive() || strings.Contains(p.stderr.String(), text) })
	require.Contains(p.t, p.stderr.String(), text, p.name)
}

func tail(s string) string { return s[max(0, len(s)-5000):] }

// strays lists processes that were started by a rig's processes and live on: their
// working directory is in the rig's.
func (r *rig) strays() []string {
	var found []string
	entries, err := os.ReadDir("/proc")
	require.NoError(r.t, err)
	for _, e := range entries {
		cwd, err := os.Readlink(filepath.Join("/proc", e.Name(), "cwd"))
		if err == nil && (cwd == r.dir || strings.HasPrefix(cwd, r.dir+"/")) {
			line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")) // it may have ended
			if len(line) > 0 {
				found = append(found, e.Name()+" "+strings.ReplaceAll(string(line), "\x00", " "))
			}
		}
	}
	return found
}
