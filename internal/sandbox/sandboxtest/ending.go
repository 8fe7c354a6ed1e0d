package sandboxtest

import (
	"io"
	"os"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/sandbox"
)

func (b *bench) testCheck() {
	t := b.t
	r, err := b.backend.Check(t.Context())
	require.NoError(t, err)
	require.Equal(t, b.backend.Name(), r.Backend)
	require.NotEmpty(t, r.Lines)
}

func (b *bench) testExit() {
	t := b.t
	spec := sh("echo out; echo err >&2; exit 3")
	spec.Merge = false
	c := b.start(spec)
	stdout, stderr := c.Output()
	out, err := io.ReadAll(stdout)
	require.NoError(t, err)
	errs, err := io.ReadAll(stderr)
	require.NoError(t, err)
	r, err := c.Wait()
	require.NoError(t, err)
	require.Equal(t, "out\n", string(out))
	require.Equal(t, "err\n", string(errs))
	require.Equal(t, 3, r.Exit)
	require.Equal(t, sandbox.Exited, r.Reason)
	require.Nil(t, c.Stdin())
}

func (b *bench) testMerge() {
	t := b.t
	out, r := b.run(sh("for i in 1 2 3; do echo o$i; echo e$i >&2; done"))
	require.Equal(t, "o1\ne1\no2\ne2\no3\ne3\n", out)
	require.Zero(t, r.Exit)
}

func (b *bench) testSignalled() {
	t := b.t
	_, r := b.run(sh("kill -SEGV $$; sleep 10"))
	require.Equal(t, int(syscall.SIGSEGV), r.Signal)
	require.Equal(t, 128+int(syscall.SIGSEGV), r.Exit)
	require.Equal(t, sandbox.Exited, r.Reason)
}

// testIgnoredSignals: Run has this process ignore them.
func (b *bench) testIgnoredSignals() {
	t := b.t
	for _, s := range []string{"HUP", "INT"} {
		out, r := b.run(sh("trap 'echo caught; exit 5' " + s + "; kill -" + s + " $$; sleep 10"))
		require.Equal(t, "caught\n", out, s)
		require.Equal(t, 5, r.Exit, s)
	}
}

func (b *bench) testKillIsPolite() {
	t := b.t
	c := b.start(sh("trap 'echo bye; exit 4' TERM; echo ready; while :; do sleep 0.02; done"))
	out, _ := c.Output()
	expect(t, out, "ready\n")
	c.Kill(sandbox.WorkerStopped)
	c.Kill(sandbox.Killed) // the first reason counts
	expect(t, out, "bye\n")
	r, err := c.Wait()
	require.NoError(t, err)
	require.Equal(t, sandbox.WorkerStopped, r.Reason)
	require.Equal(t, 4, r.Exit)
}

func (b *bench) testKillWins() {
	t := b.t
	c := b.start(sh("trap '' TERM INT HUP; echo ready; while :; do sleep 0.02; done"))
	out, _ := c.Output()
	expect(t, out, "ready\n")
	c.Kill(sandbox.Killed)
	r, err := c.Wait()
	require.NoError(t, err)
	require.Equal(t, int(syscall.SIGKILL), r.Signal)
	require.Equal(t, sandbox.Killed, r.Reason)
	require.ErrorIs(t, c.Signal(syscall.SIGTERM), os.ErrProcessDone)
}

func (b *bench) testTimeout() {
	t := b.t
	spec := sh("echo before; sleep 1000")
	spec.Timeout = 50 * time.Millisecond
	_, r := b.run(spec)
	require.Equal(t, sandbox.TimedOut, r.Reason)
	require.GreaterOrEqual(t, r.Usage.Wall, spec.Timeout)
}

// hold is a script that takes the lock, says so and stays, deaf to signals.
const hold = `trap "" TERM HUP INT; exec 9>lock; flock 9; touch held; sleep 1000`

func (b *bench) testKillTree() {
	t := b.t
	c := b.start(sh("sh -c '" + hold + "' & setsid sh -c 'sleep 1000' & while [ ! -e held ]; do sleep 0.01; done; echo ready; wait"))
	out, _ := c.Output()
	expect(t, out, "ready\n")
	c.Kill(sandbox.Killed)
	_, err := io.ReadAll(out)
	require.NoError(t, err)
	_, err = c.Wait()
	require.NoError(t, err)
	b.free("lock")
}

func (b *bench) testDaemonDies() {
	t := b.t
	// The daemon leaves session, group and parent, and keeps the output open.
	out, r := b.run(sh("(setsid sh -c '" + hold + "' &) ; while [ ! -e held ]; do sleep 0.01; done; echo done"))
	require.Equal(t, "done\n", out)
	require.Equal(t, sandbox.Exited, r.Reason)
	b.free("lock")
}
