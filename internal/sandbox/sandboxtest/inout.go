package sandboxtest

import (
	"io"
	"strings"
	"syscall"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"rookery/internal/sandbox"
)

func (b *bench) testStdin() {
	t := b.t
	spec := sh("cat; echo end")
	spec.Stdin = true
	c := b.start(spec)
	out, _ := c.Output()
	_, err := io.WriteString(c.Stdin(), "one\n")
	require.NoError(t, err)
	expect(t, out, "one\n")
	require.NoError(t, c.Stdin().Close())
	expect(t, out, "end\n")
	_, err = c.Wait()
	require.NoError(t, err)
}

func (b *bench) testNoStdin() {
	t := b.t
	out, _ := b.run(sh("cat; echo end"))
	require.Equal(t, "end\n", out)
}

func (b *bench) testSignal() {
	t := b.t
	c := b.start(sh("trap 'echo int; exit 0' INT; echo ready; while :; do sleep 0.02; done"))
	out, _ := c.Output()
	expect(t, out, "ready\n")
	require.NoError(t, c.Signal(syscall.SIGINT))
	expect(t, out, "int\n")
	r, err := c.Wait()
	require.NoError(t, err)
	require.Equal(t, sandbox.Exited, r.Reason)
}

func (b *bench) testTerminal() {
	t := b.t
	spec := sh("test -t 0 && test -t 1 && test -t 2 && stty size && read x && stty size")
	spec.PTY = &sandbox.Size{Rows: 7, Cols: 31}
	c := b.start(spec)
	out, stderr := c.Output()
	require.Nil(t, stderr)
	expect(t, out, "7 31\r\n")
	require.NoError(t, c.Resize(sandbox.Size{Rows: 9, Cols: 40}))
	_, err := io.WriteString(c.Stdin(), "go\n")
	require.NoError(t, err)
	expect(t, out, "9 40\r\n")
	_, err = io.ReadAll(out)
	require.NoError(t, err)
	r, err := c.Wait()
	require.NoError(t, err)
	require.Zero(t, r.Exit)
}

func (b *bench) testTerminalInput() {
	t := b.t
	spec := sh("stty -echo; echo ready; cat; echo end")
	spec.PTY = &sandbox.Size{Rows: 24, Cols: 80}
	c := b.start(spec)
	out, _ := c.Output()
	expect(t, out, "ready\r\n")
	require.NoError(t, c.Stdin().Close())
	expect(t, out, "end\r\n")
	_, err := c.Wait()
	require.NoError(t, err)
}

func (b *bench) testEnvironment() {
	t := b.t
	t.Setenv("ROOKERY_TEST_SECRET", "leaked")
	spec := sh("env")
	spec.Env = []string{"FROM_CALL=1", "LANG=de_DE.UTF-8"}
	out, _ := b.run(spec)
	require.NotContains(t, out, "leaked")
	for _, want := range []string{"FROM_SESSION=yes\n", "FROM_CALL=1\n", "LANG=de_DE.UTF-8\n", "PATH=/", "HOME=/", "TMPDIR=/"} {
		require.Contains(t, out, want)
	}
	require.Equal(t, 1, strings.Count("\n"+out, "\nLANG="))
}

func (b *bench) testDescriptors() {
	t := b.t
	fd, err := unix.Open("/dev/null", unix.O_RDONLY, 0) // as if inherited: not closed on exec
	require.NoError(t, err)
	defer func() { _ = unix.Close(fd) }()
	out, _ := b.run(sh("i=3; while [ $i -lt 260 ]; do [ -e /proc/$$/fd/$i ] && echo $i; i=$((i+1)); done"))
	require.Empty(t, out)
}

func (b *bench) testLargeOutput() {
	t := b.t
	c := b.start(sh("head -c 20000000 /dev/zero"))
	out, _ := c.Output()
	n, err := io.Copy(io.Discard, out)
	require.NoError(t, err)
	require.EqualValues(t, 20_000_000, n)
}

func (b *bench) testLateReader() {
	t := b.t
	c := b.start(sh("(setsid sleep 1000 &); head -c 50000 /dev/zero"))
	_, err := c.Wait()
	require.NoError(t, err)
	out, _ := c.Output()
	n, err := io.Copy(io.Discard, out)
	require.NoError(t, err)
	require.EqualValues(t, 50_000, n)
}
