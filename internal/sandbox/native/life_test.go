package native_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"rookery/internal/sandbox"
	"rookery/internal/sandbox/native"
	"rookery/internal/sandbox/sandboxtest"
)

// workerDir makes the test binary a worker that opens a session there.
const workerDir = "ROOKERY_TEST_WORKER"

// hold takes a lock, says so and stays, deaf to signals, in a session of its own.
const hold = `setsid sh -c 'trap "" TERM HUP INT; exec 9>lock; flock 9; echo held; sleep 1000' & wait`

func beWorker(dir string) int {
	n := native.New(sandboxtest.Ops(), native.Options{SoftLimits: soft})
	s, err := n.Open(context.Background(), sandbox.SessionSpec{ID: "victim", Workspace: filepath.Join(dir, "w"), Scratch: filepath.Join(dir, "s")})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if _, err := s.Do(context.Background(), "read", []byte(`"none"`)); err == nil { // the helper runs
		return 1
	}
	c, err := s.Start(context.Background(), sandbox.CallSpec{Argv: []string{"sh", "-c", hold}, Merge: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	out, _ := c.Output()
	_, _ = io.Copy(os.Stdout, out)
	return 0
}

func TestNative_NothingOutlivesTheWorker(t *testing.T) {
	for _, sig := range []syscall.Signal{unix.SIGKILL, unix.SIGTERM} {
		dir := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(dir, "w"), 0o700))
		require.NoError(t, os.Mkdir(filepath.Join(dir, "s"), 0o700))
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
		cmd.Env = append(os.Environ(), workerDir+"="+dir)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "held\n", line)
		family := descendants(cmd.Process.Pid)
		require.GreaterOrEqual(t, len(family), 5, "spawner, holder, helper, init, commands: %v", family)

		require.NoError(t, cmd.Process.Signal(sig))
		require.Error(t, cmd.Wait())
		lock, err := os.Open(filepath.Join(dir, "w", "lock"))
		require.NoError(t, err)
		require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX), "it waits until the command is gone")
		require.NoError(t, lock.Close())
		for _, pid := range family {
			gone(t, pid)
		}
		sweeps(t, cmd.Process.Pid)
	}
}

// gone waits until a process is dead: its handle becomes readable then.
func gone(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20_000)
	require.NoError(t, err)
	require.Equal(t, 1, n, "process %d lives", pid)
}

// sweeps expects the next worker to remove what one has left.
func sweeps(t *testing.T, pid int) {
	t.Helper()
	n := native.New(nil, native.Options{SoftLimits: soft})
	s, err := n.Open(t.Context(), sandbox.SessionSpec{ID: "next", Workspace: t.TempDir(), Scratch: t.TempDir()})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, n.Close())
	places, _, err := native.GroupPlaces("/")
	require.NoError(t, err)
	for _, dir := range places {
		left, err := filepath.Glob(filepath.Join(dir, fmt.Sprintf("rookery-%d-*", pid)))
		require.NoError(t, err)
		require.Empty(t, left)
		own, err := filepath.Glob(filepath.Join(dir, fmt.Sprintf("rookery-%d-*", os.Getpid()), "next"))
		require.NoError(t, err)
		require.Empty(t, own)
	}
}

// descendants lists the processes below pid, as the host sees them.
func descendants(pid int) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	below := map[int]bool{pid: true}
	for grown := true; grown; {
		grown = false
		for _, e := range entries {
			p, err := strconv.Atoi(e.Name())
			if err != nil || below[p] {
				continue
			}
			b, _ := os.ReadFile("/proc/" + e.Name() + "/stat")
			f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
			if len(f) < 2 {
				continue
			}
			if parent, _ := strconv.Atoi(f[1]); below[parent] {
				below[p], grown = true, true
				pids = append(pids, p)
			}
		}
	}
	return pids
}

// roles lists the sandbox's own processes below this one, by role.
func roles(role string) (pids []int) {
	for _, pid := range descendants(os.Getpid()) {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if string(b) == "rookery-sandbox\x00"+role+"\x00" {
			pids = append(pids, pid)
		}
	}
	return pids
}

func session(t *testing.T, n *native.Native) sandbox.Session {
	t.Helper()
	s, err := n.Open(t.Context(), sandbox.SessionSpec{ID: "life", Workspace: t.TempDir(), Scratch: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func own(t *testing.T) *native.Native {
	t.Helper()
	n := native.New(sandboxtest.Ops(), native.Options{SoftLimits: soft})
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return n
}

func TestNative_HelperIsStartedAgain(t *testing.T) {
	s := session(t, shared)
	_, err := s.Do(t.Context(), "read", []byte(`"missing"`))
	require.ErrorContains(t, err, "no such file")
	helpers := roles("helper")
	require.Len(t, helpers, 1)
	require.NoError(t, unix.Kill(helpers[0], unix.SIGKILL))
	gone(t, helpers[0])
	_, err = s.Do(t.Context(), "read", []byte(`"missing"`))
	require.ErrorContains(t, err, "no such file")
}

func TestNative_HolderDies(t *testing.T) {
	n := own(t)
	s := session(t, n)
	c, err := s.Start(t.Context(), sandbox.CallSpec{Argv: []string{"sleep", "1000"}, Merge: true})
	require.NoError(t, err)
	for _, pid := range roles("holder") {
		require.NoError(t, unix.Kill(pid, unix.SIGKILL))
	}
	r, err := c.Wait()
	require.ErrorContains(t, err, "has died")
	require.Equal(t, sandbox.Killed, r.Reason)
	_, err = s.Start(t.Context(), sandbox.CallSpec{Argv: []string{"true"}, Merge: true})
	require.ErrorContains(t, err, "has died")
	_, err = s.Do(t.Context(), "read", []byte(`"x"`))
	require.Error(t, err)
	require.NoError(t, s.Close())
	works(t, session(t, n))
}

func TestNative_SpawnerDies(t *testing.T) {
	n := own(t)
	others := roles("spawner")
	s := session(t, n)
	mine := slices.DeleteFunc(roles("spawner"), func(pid int) bool { return slices.Contains(others, pid) })
	require.Len(t, mine, 1)
	require.NoError(t, unix.Kill(mine[0], unix.SIGKILL))
	gone(t, mine[0])
	require.Eventually(t, func() bool { // the kernel kills what came from it a moment later
		c, err := s.Start(t.Context(), sandbox.CallSpec{Argv: []string{"true"}, Merge: true})
		if err == nil {
			_, _ = c.Wait()
		}
		return err != nil
	}, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, s.Close())
	works(t, session(t, n))
}

func works(t *testing.T, s sandbox.Session) {
	t.Helper()
	c, err := s.Start(t.Context(), sandbox.CallSpec{Argv: []string{"true"}, Merge: true})
	require.NoError(t, err)
	r, err := c.Wait()
	require.NoError(t, err)
	require.Zero(t, r.Exit)
}

func TestNative_ClosedBackendOpensNothing(t *testing.T) {
	n := native.New(nil, native.Options{SoftLimits: soft})
	require.NoError(t, n.Close())
	_, err := n.Open(t.Context(), sandbox.SessionSpec{Workspace: t.TempDir(), Scratch: t.TempDir()})
	require.ErrorContains(t, err, "closed")
	require.NoError(t, n.Close())
}

func TestNative_KeepsNoDescriptors(t *testing.T) {
	s := session(t, shared)
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(entries)
	}
	turn := func(i int) {
		spec := sandbox.CallSpec{Argv: []string{"true"}, Merge: i%2 == 0, Stdin: i%3 == 0}
		if i%5 == 0 {
			spec.PTY = &sandbox.Size{Rows: 2, Cols: 2}
		}
		if i%7 == 0 {
			spec.Argv = []string{"no-such-program"}
		}
		c, err := s.Start(t.Context(), spec)
		if err != nil {
			require.ErrorIs(t, err, sandbox.ErrNotFound)
			return
		}
		out, stderr := c.Output()
		_, _ = io.Copy(io.Discard, out)
		if stderr != nil {
			_, _ = io.Copy(io.Discard, stderr)
		}
		_, err = c.Wait()
		require.NoError(t, err)
		_, err = s.Do(t.Context(), "read", []byte(`"x"`))
		require.Error(t, err)
	}
	turn(1)
	before := count()
	for i := range 40 {
		turn(i)
	}
	require.LessOrEqual(t, count(), before+2) // a pidfd or a poll descriptor may come and go
}
