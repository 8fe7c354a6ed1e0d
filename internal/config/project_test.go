package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/config"
)

func TestProject_MaySetFourThings(t *testing.T) {
	c := load(t, place{
		user:    "tools: {enabled: [read_file, write_file, exec_command], timeout: 5m}\n",
		project: "max_turns: 3\nmodel: small\ncompaction: {mode: discard, max_context_length: 1000}\ntools: {enabled: [read_file]}\n",
	})
	require.Equal(t, 3, c.MaxTurns)
	require.Equal(t, "small", c.Model)
	require.Equal(t, "discard", c.Compaction.Mode)
	require.Equal(t, []string{"read_file"}, c.Tools.Enabled)
}

// Every other key that a user file takes is refused, with the file that takes it.
func TestProject_MaySetNothingElse(t *testing.T) {
	allowed := []string{"max_turns", "model", "tools.enabled"}
	tried := 0
	for _, s := range load(t, place{}).Settings() {
		if strings.HasPrefix(s.Key, "compaction.") || slices.Contains(allowed, s.Key) {
			continue
		}
		tried++
		text := nested(s.Key)
		src := place{project: text}.sources(t)
		_, err := config.Load(src)
		require.ErrorContains(t, err, "can't be set by a project file; set it in "+src.File, "%s\n%s", s.Key, text)
	}
	require.Greater(t, tried, 30)
}

// nested writes a.b as a section with a key.
func nested(key string) string {
	text := ""
	for i, name := range strings.Split(key, ".") {
		text += strings.Repeat("  ", i) + name + ":\n"
	}
	return strings.TrimSuffix(text, "\n") + " x\n"
}

func TestProject_MayOnlyLeaveToolsOut(t *testing.T) {
	src := place{
		user:    "tools: {enabled: [read_file]}\n",
		project: "tools:\n  enabled:\n    - read_file\n    - exec_command\n",
	}.sources(t)
	_, err := config.Load(src)
	require.ErrorContains(t, err, ".rookery/config.yaml:4: tools.enabled: exec_command is not among the tools that "+src.File+" enables")
}

func TestProject_FileThatIsNoFileIsRefused(t *testing.T) {
	src := place{}.sources(t)
	path := filepath.Join(src.Workspace, ".rookery", "config.yaml")
	require.NoError(t, os.Remove(path))
	require.NoError(t, syscall.Mkfifo(path, 0o600)) // opening it would wait for ever
	_, err := config.Load(src)
	require.ErrorContains(t, err, path+": is not a regular file")
}

func TestProject_TheUsersOwnFileIsNoProjectFile(t *testing.T) {
	src := place{project: "approve: ask\n"}.sources(t)
	src.File = filepath.Join(src.Workspace, ".rookery", "config.yaml")
	c, err := config.Load(src)
	require.NoError(t, err)
	require.Equal(t, "ask", c.Approve)
}

func TestSettings_HoldEveryKeyOnceAndNoSecret(t *testing.T) {
	c := load(t, place{
		user:    "models:\n  - {name: a, api_key_env: KEY}\n",
		environ: []string{"KEY=hush-hush", "OPENAI_API_KEY=hush-hush"},
	})
	seen := map[string]bool{}
	for _, s := range c.Settings() {
		require.False(t, seen[s.Key], s.Key)
		seen[s.Key] = true
		require.NotContains(t, s.Value, "hush")
		require.NotContains(t, s.Value, "\n")
	}
	require.True(t, seen["compaction.max_context_length"])
	require.True(t, seen["models"])
}
