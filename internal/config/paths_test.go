package config_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/config"
)

// home points all of XDG into a fresh directory.
func home(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	for _, v := range []string{"CONFIG", "DATA", "STATE", "CACHE"} {
		t.Setenv("XDG_"+v+"_HOME", "")
	}
	t.Setenv("XDG_RUNTIME_DIR", filepath.Join(dir, "missing"))
	return dir
}

func TestFindPaths_FollowXDG(t *testing.T) {
	dir := home(t)
	require.Equal(t, config.Paths{
		User:   dir + "/.config/rookery/config.yaml",
		Store:  dir + "/.local/share/rookery/store",
		Worker: dir + "/.local/share/rookery/worker",
		Logs:   dir + "/.local/state/rookery",
	}, config.FindPaths())
	t.Setenv("XDG_DATA_HOME", "/data")
	require.Equal(t, "/data/rookery/store", config.FindPaths().Store)
}

func TestRuntimeFile_IsPrivate(t *testing.T) {
	dir := home(t)
	a, err := config.RuntimeFile("/store/a")
	require.NoError(t, err)
	require.Equal(t, dir+"/.cache/rookery/run", filepath.Dir(a), "no runtime directory: under the cache")
	info, err := os.Stat(filepath.Dir(a))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	b, err := config.RuntimeFile("/store/b")
	require.NoError(t, err)
	require.NotEqual(t, a, b, "one file a store")

	require.NoError(t, os.Chmod(filepath.Dir(a), 0o755)) //nolint:gosec // the fault under test
	_, err = config.RuntimeFile("/store/a")
	require.ErrorContains(t, err, "is open to others")
}

func TestRuntimeFile_UsesASoundRuntimeDirOnly(t *testing.T) {
	dir := home(t)
	run := filepath.Join(dir, "run")
	require.NoError(t, os.Mkdir(run, 0o700))
	t.Setenv("XDG_RUNTIME_DIR", run)
	f, err := config.RuntimeFile("/store")
	require.NoError(t, err)
	require.Equal(t, run+"/rookery", filepath.Dir(f))

	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(run, link))
	t.Setenv("XDG_RUNTIME_DIR", link)
	f, err = config.RuntimeFile("/store")
	require.NoError(t, err)
	require.Equal(t, dir+"/.cache/rookery/run", filepath.Dir(f), "a link may be turned elsewhere")
}
