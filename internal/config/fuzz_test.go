package config_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/config"
)

// FuzzLoad: whatever a workspace's file holds, loading it returns, and a fault
// names the file.
func FuzzLoad(f *testing.F) {
	for _, s := range []string{
		"max_turns: 3\n", "compaction: {mode: discard}\n", "tools:\n  enabled: [a, b]\n", "? [a]\n: b\n", "<<: *x\n",
		"model: |\n  a\n", "model: !!str 5\n", "- a\n", "a: &x [*x]\n", "\"model\": >-\n", "max_turns:\n  - {", "\x00", "---\n...\n", "1: 2\n",
	} {
		f.Add([]byte(s))
	}
	dir := f.TempDir()
	path := filepath.Join(dir, ".rookery", "config.yaml")
	require.NoError(f, os.Mkdir(filepath.Dir(path), 0o700))
	require.NoError(f, os.WriteFile(filepath.Join(dir, "user.yaml"), nil, 0o600))
	f.Fuzz(func(t *testing.T, text []byte) {
		require.NoError(t, os.WriteFile(path, text, 0o600))
		c, err := config.Load(config.Sources{File: filepath.Join(dir, "user.yaml"), Workspace: dir, Environ: []string{}})
		if err != nil {
			require.ErrorContains(t, err, path)
			return
		}
		require.Equal(t, "https://api.openai.com/v1", c.BaseURL)
		require.Empty(t, c.Approve)
	})
}
