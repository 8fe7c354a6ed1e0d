package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
)

// A person sits at a terminal in which the command runs.
type person struct {
	t      *testing.T
	pty    *os.File
	cmd    *exec.Cmd
	reader sync.WaitGroup

	mu   sync.Mutex // the reader writes, the test reads
	seen bytes.Buffer
}

// sit runs the command in a terminal, in a workspace with a README.
func sit(t *testing.T, home, ws string, args ...string) *person {
	t.Helper()
	exe, err := exec.LookPath("rookery")
	require.NoError(t, err)
	p := &person{t: t, cmd: exec.CommandContext(t.Context(), exe, args...)}
	p.cmd.Dir = ws
	p.cmd.Env = append(os.Environ(), settings(home)...)
	p.pty, err = pty.Start(p.cmd)
	require.NoError(t, err)
	p.reader.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, err := p.pty.Read(buf)
			p.mu.Lock()
			p.seen.Write(buf[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		_ = p.pty.Close()
		p.reader.Wait()
	})
	return p
}

func (p *person) screen() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen.String()
}

// sees waits for a text on the screen.
func (p *person) sees(s string) {
	p.t.Helper()
	require.True(p.t, eventually(func() bool { return strings.Contains(p.screen(), s) }), "no %q on\n%s", s, p.screen())
}

func (p *person) types(s string) {
	p.t.Helper()
	_, err := p.pty.WriteString(s + "\n")
	require.NoError(p.t, err)
}

// leaves waits for the end of the command and returns its exit status.
func (p *person) leaves() int {
	p.t.Helper()
	_ = p.cmd.Wait() // the status tells
	return p.cmd.ProcessState.ExitCode()
}

func machine(t *testing.T) (home, ws string) {
	t.Helper()
	home, ws = t.TempDir(), t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(home, "run"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(ws, "README.md"), []byte("one two three four\n"), 0o600))
	t.Cleanup(func() { awaitNoBroker(t, home) })
	return home, ws
}

func TestTerminal_APersonDenies(t *testing.T) {
	home, ws := machine(t)
	p := sit(t, home, ws, "run", "count the words in README.md")
	p.sees("call demo#2: exec_command (may change things)\r\n  cmd: wc -w < README.md")
	p.sees("allow? [y]es, [n]o, or why not:")
	p.types("not on my machine")
	p.sees("denied by user: not on my machine")
	require.Equal(t, 0, p.leaves(), p.screen())
}

func TestTerminal_APersonAllows(t *testing.T) {
	home, ws := machine(t)
	p := sit(t, home, ws, "run", "count the words in README.md")
	p.sees("allow? [y]es")
	p.types("y")
	p.sees("README.md has 4 words.")
	require.Equal(t, 0, p.leaves(), p.screen())
}

func TestTerminal_CtrlCWhileAsked(t *testing.T) {
	home, ws := machine(t)
	p := sit(t, home, ws, "run", "count the words in README.md")
	p.sees("allow? [y]es")
	_, err := p.pty.Write([]byte{3}) // what Ctrl-C sends
	require.NoError(t, err)
	require.Equal(t, 130, p.leaves(), p.screen())
	require.Contains(t, p.screen(), "task aborted")
}

func TestTerminal_AnotherViewerDecides(t *testing.T) {
	home, ws := machine(t)
	p := sit(t, home, ws, "run", "run cat README.md")
	p.sees("allow? [y]es")
	_, rest, _ := strings.Cut(p.screen(), "session ")
	session, _, _ := strings.Cut(rest, ",")
	viewer := sit(t, home, ws, "attach", session)
	viewer.sees("/approve demo, or /deny demo REASON")
	viewer.types("/nonsense")
	viewer.sees("/nonsense is none of /approve CALL")
	viewer.types("/approve demo")
	require.Equal(t, 0, p.leaves(), p.screen())
	viewer.sees("one two three four")
	viewer.types("/quit")
	require.Equal(t, 0, viewer.leaves(), viewer.screen())
}

func TestTerminal_AttachSteersAndAborts(t *testing.T) {
	home, ws := machine(t)
	p := sit(t, home, ws, "run", "--approve", "allow-all", "run touch begun; sleep 60")
	require.True(t, eventually(func() bool { _, err := os.Stat(filepath.Join(ws, "begun")); return err == nil }), p.screen())
	_, rest, _ := strings.Cut(p.screen(), "session ")
	session, _, _ := strings.Cut(rest, ",")
	viewer := sit(t, home, ws, "attach", session)
	viewer.sees("→ exec_command")
	viewer.types("look at the tests, too")
	viewer.sees("steering accepted")
	viewer.types("/abort")
	viewer.sees("task aborted")
	require.Equal(t, 130, p.leaves(), p.screen())
	require.NoError(t, viewer.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 0, viewer.leaves(), viewer.screen())
}
