package sandbox_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"rookery/internal/sandbox"
	"rookery/internal/sandbox/sandboxtest"
)

func TestNone(t *testing.T) {
	sandboxtest.Run(t, func(_ *testing.T, ops sandbox.Ops) sandbox.Backend { return sandbox.NewNone(ops) })
}

func TestNone_SaysWhatToolsCanReach(t *testing.T) {
	r, err := sandbox.NewNone(nil).Check(t.Context())
	require.NoError(t, err)
	require.Equal(t, sandbox.NoneWarning, r.Warning)
}

func TestNone_RefusesReplacedWorkspace(t *testing.T) {
	dir := t.TempDir()
	work, scratch := filepath.Join(dir, "w"), t.TempDir()
	require.NoError(t, os.Mkdir(work, 0o700))
	opened, err := os.Open(work)
	require.NoError(t, err)
	defer func() { _ = opened.Close() }()
	require.NoError(t, os.Rename(work, filepath.Join(dir, "old")))
	require.NoError(t, os.Mkdir(work, 0o700))

	_, err = sandbox.NewNone(nil).Open(t.Context(), sandbox.SessionSpec{Workspace: work, Scratch: scratch, Dir: opened})
	require.ErrorContains(t, err, "replaced by another directory")
}

func TestView_Find(t *testing.T) {
	open := func(dir string) sandbox.Tree {
		root, err := os.OpenRoot(dir)
		require.NoError(t, err)
		return sandbox.Tree{Path: dir, Root: root}
	}
	work, scratch := t.TempDir(), t.TempDir()
	v := &sandbox.View{Workspace: open(work), Scratch: open(scratch)}
	t.Cleanup(func() { require.NoError(t, v.Close()) })

	for path, want := range map[string]string{
		"a/b": "a/b", "./a//b": "a/b", "a/../b": "b", "": ".", ".": ".",
		work: ".", work + "/x": "x", work + "/x/../y": "y",
	} {
		tree, rel, err := v.Find("", path)
		require.NoError(t, err, path)
		require.Equal(t, work, tree.Path)
		require.Equal(t, want, rel, path)
	}
	tree, rel, err := v.Find("", scratch+"/output/1")
	require.NoError(t, err)
	require.Equal(t, scratch, tree.Path)
	require.Equal(t, "output/1", rel)
	for _, path := range []string{"..", "../x", "a/../../x", "/", "/etc/passwd", work + "x", work + "/../x"} {
		_, _, err := v.Find("", path)
		require.ErrorIs(t, err, sandbox.ErrOutside, path)
	}
	_, _, err = v.Find("", "a\x00b")
	require.ErrorContains(t, err, "NUL")
}

func TestEnviron_LaterEntryReplaces(t *testing.T) {
	env := sandbox.Environ("/h", "/t", []string{"PATH=/a", "X=1"}, []string{"X=2"})
	require.Contains(t, env, "PATH=/a")
	require.Contains(t, env, "X=2")
	require.NotContains(t, env, "X=1")
	require.Contains(t, env, "HOME=/h")
}

// TestNone_CommandsDieWithTheWorker kills a process that runs a command: this test
// binary, which finds itself started by the test.
func TestNone_CommandsDieWithTheWorker(t *testing.T) {
	if dir := os.Getenv("ROOKERY_TEST_WORKSPACE"); dir != "" {
		s, err := sandbox.NewNone(nil).Open(t.Context(), sandbox.SessionSpec{Workspace: dir, Scratch: filepath.Join(dir, "scratch")})
		require.NoError(t, err)
		_, err = s.Start(t.Context(), sandbox.CallSpec{Argv: []string{"sh", "-c", "exec 9>lock; flock 9; touch held; exec sleep 1000"}})
		require.NoError(t, err)
		select {} // until it is killed
	}
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "scratch"), 0o700))
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestNone_CommandsDieWithTheWorker$")
	cmd.Env = append(os.Environ(), "ROOKERY_TEST_WORKSPACE="+dir)
	require.NoError(t, cmd.Start())
	for {
		if _, err := os.Stat(filepath.Join(dir, "held")); err == nil {
			break
		}
		require.NoError(t, t.Context().Err())
	}
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	f, err := os.Open(filepath.Join(dir, "lock"))
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	require.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_EX)) // returns when the command is gone
}

func BenchmarkNone_True(b *testing.B) {
	s, err := sandbox.NewNone(nil).Open(b.Context(), sandbox.SessionSpec{Workspace: b.TempDir(), Scratch: b.TempDir()})
	require.NoError(b, err)
	for b.Loop() {
		c, err := s.Start(b.Context(), sandbox.CallSpec{Argv: []string{"true"}, Merge: true})
		require.NoError(b, err)
		_, err = c.Wait()
		require.NoError(b, err)
	}
	require.NoError(b, s.Close())
}
