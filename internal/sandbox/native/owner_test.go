package native_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/sandbox"
	"rookery/internal/sandbox/native"
)

func run(t *testing.T, s sandbox.Session, script string) (string, sandbox.Result) {
	t.Helper()
	c, err := s.Start(t.Context(), sandbox.CallSpec{Argv: []string{"sh", "-c", script}, Merge: true})
	require.NoError(t, err)
	out, _ := c.Output()
	text, err := io.ReadAll(out)
	require.NoError(t, err)
	r, err := c.Wait()
	require.NoError(t, err)
	return string(text), r
}

func ownerOf(t *testing.T, path string) int {
	t.Helper()
	info, err := os.Lstat(path)
	require.NoError(t, err)
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

// A place is a session's directories, below one that has others.
func place(t *testing.T, id string, made bool) sandbox.SessionSpec {
	t.Helper()
	dir := t.TempDir()
	spec := sandbox.SessionSpec{ID: id, Workspace: filepath.Join(dir, "ws", id), Scratch: filepath.Join(dir, "scratch", id), Made: made}
	require.NoError(t, os.MkdirAll(spec.Workspace, 0o700))
	require.NoError(t, os.MkdirAll(spec.Scratch, 0o700))
	return spec
}

func opened(t *testing.T, spec sandbox.SessionSpec) sandbox.Session {
	t.Helper()
	s, err := shared.Open(t.Context(), spec)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// root says whether these tests see root's rules, or those of an ordinary user.
func root() bool { return os.Geteuid() == 0 }

const firstUser = 1_900_000_000

func TestNative_RootsWorkspaceStaysRoots(t *testing.T) {
	spec := place(t, "a", false)
	require.NoError(t, os.WriteFile(filepath.Join(spec.Workspace, "old"), []byte("old\n"), 0o600))
	s := opened(t, spec)
	out, _ := run(t, s, "id -u; stat -c %u . old; cat old; echo new > new; echo more >> old; chmod 755 new; chmod u+s new; chmod g+s .; true")
	require.Contains(t, out, "1000\n1000\n1000\nold\n")
	for _, name := range []string{"new", "old", "."} {
		require.Equal(t, os.Geteuid(), ownerOf(t, filepath.Join(spec.Workspace, name)), name)
	}
	info, err := os.Stat(filepath.Join(spec.Workspace, "new"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o755), info.Mode().Perm())
	if root() {
		require.Zero(t, info.Mode()&os.ModeSetuid, "a set-uid program of root")
		require.GreaterOrEqual(t, ownerOf(t, spec.Scratch), firstUser)
	}
}

func TestNative_OrdinaryWorkspaceIsItsOwners(t *testing.T) {
	spec := place(t, "a", false)
	want := os.Geteuid()
	if root() {
		want = 12345
		require.NoError(t, os.Chown(spec.Workspace, want, 0))
	}
	s := opened(t, spec)
	out, r := run(t, s, "echo x > f; mkdir d && chmod g+s d && cat /proc/self/gid_map")
	require.Zero(t, r.Exit, out)
	require.NotRegexp(t, `^\s*1000\s+0\s`, out, "root's group")
	require.Equal(t, want, ownerOf(t, filepath.Join(spec.Workspace, "f")))
	require.Equal(t, want, ownerOf(t, spec.Scratch))
}

func TestNative_MadeWorkspaceIsGivenAway(t *testing.T) {
	spec := place(t, "a", true)
	s := opened(t, spec)
	_, r := run(t, s, "echo x > f && chmod g+s .")
	require.Zero(t, r.Exit)
	user := ownerOf(t, spec.Workspace)
	require.Equal(t, user, ownerOf(t, filepath.Join(spec.Workspace, "f")))
	if !root() {
		return
	}
	require.GreaterOrEqual(t, user, firstUser)
	require.NoError(t, s.Close())
	out, r := run(t, opened(t, spec), "cat f && echo y > f") // the same user again
	require.Zero(t, r.Exit, out)
	require.Equal(t, user, ownerOf(t, spec.Workspace))
}

func TestNative_SessionsHaveUsersOfTheirOwn(t *testing.T) {
	if !root() {
		require.NotZero(t, os.Geteuid(), "an ordinary user's sessions are his")
		return
	}
	dir := t.TempDir()
	seen := map[int]bool{}
	for _, id := range []string{"a", "b", "c", "d"} {
		spec := sandbox.SessionSpec{ID: id, Workspace: filepath.Join(dir, "ws", id), Scratch: filepath.Join(dir, "scratch", id), Made: true}
		require.NoError(t, os.MkdirAll(spec.Workspace, 0o700))
		require.NoError(t, os.MkdirAll(spec.Scratch, 0o700))
		opened(t, spec)
		user := ownerOf(t, spec.Scratch)
		require.False(t, seen[user], "two sessions are user %d", user)
		seen[user] = true
	}
}

func TestNative_ReplacedWorkspaceIsRefused(t *testing.T) {
	spec := place(t, "a", false)
	dir, err := os.Open(spec.Workspace)
	require.NoError(t, err)
	defer func() { _ = dir.Close() }()
	require.NoError(t, os.Rename(spec.Workspace, spec.Workspace+".old"))
	require.NoError(t, os.Mkdir(spec.Workspace, 0o700))
	spec.Dir = dir
	_, err = shared.Open(t.Context(), spec)
	require.ErrorContains(t, err, "replaced by another directory")
	require.NoError(t, os.Remove(spec.Workspace))
	require.NoError(t, os.Symlink("/", spec.Workspace))
	_, err = shared.Open(t.Context(), spec)
	require.Error(t, err)
}

func TestNative_ReadOnlyDirectories(t *testing.T) {
	for _, tmp := range []string{t.TempDir(), filepath.Join("/var/tmp", fmt.Sprintf("rookery-test-%d", os.Getpid()))} {
		require.NoError(t, os.MkdirAll(tmp, 0o755))
		t.Cleanup(func() { _ = os.RemoveAll(tmp) })
		readOnly(t, tmp)
	}
}

func readOnly(t *testing.T, tools string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(tools, "x"), []byte("tool\n"), 0o644))
	require.NoError(t, os.Chmod(tools, 0o755))
	spec := place(t, "a", false)
	spec.ReadOnly = []string{tools}
	out, r := run(t, opened(t, spec), "cat "+tools+"/x && ! touch "+tools+"/y 2>/dev/null")
	require.Zero(t, r.Exit, out)
	require.Equal(t, "tool\n", out)
}

func TestNative_HostsCannotBeAllowed(t *testing.T) {
	spec := place(t, "a", false)
	spec.Net.Allow = []string{"example.com"}
	_, err := shared.Open(t.Context(), spec)
	require.ErrorContains(t, err, "cannot be allowed")
}

func TestNative_SessionKeepsFilesAndNotProcesses(t *testing.T) {
	s := opened(t, place(t, "a", false))
	_, r := run(t, s, "echo x > /tmp/f; echo y > ~/g; echo z > /scratch/h; sleep 1000 & :")
	require.Zero(t, r.Exit)
	out, _ := run(t, s, "cat /tmp/f ~/g /scratch/h; cat /proc/[0-9]*/comm")
	require.Contains(t, out, "x\ny\nz\n")
	require.NotContains(t, out, "sleep")
}

func TestNative_CPULimit(t *testing.T) {
	s := opened(t, place(t, "cpu", false))
	spec := sandbox.CallSpec{Argv: []string{"sleep", "1000"}, Merge: true, Limits: &sandbox.Limits{CPU: 250 * time.Millisecond}}
	c, err := s.Start(t.Context(), spec)
	if soft {
		require.ErrorContains(t, err, "control groups")
		return
	}
	require.NoError(t, err)
	places, v2, err := native.GroupPlaces("/")
	require.NoError(t, err)
	dirs, err := filepath.Glob(filepath.Join(places["cpu"], fmt.Sprintf("rookery-%d-*", os.Getpid()), "cpu", "1"))
	require.NoError(t, err)
	require.Len(t, dirs, 1)
	dir := dirs[0]
	if v2 {
		require.Equal(t, "25000 100000\n", read(t, dir, "cpu.max"))
	} else {
		require.Equal(t, "25000\n", read(t, dir, "cpu.cfs_quota_us"))
	}
	require.NotEmpty(t, read(t, dir, "cgroup.procs"), "init and command are in it")
	c.Kill(sandbox.Killed)
	_, err = c.Wait()
	require.NoError(t, err)
}
