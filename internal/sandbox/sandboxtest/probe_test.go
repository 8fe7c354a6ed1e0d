package sandboxtest_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	sandboxtest.Main()
	os.Exit(m.Run())
}

// TestProbes_SeeWhatIsOpen runs the prober as an ordinary user without a sandbox: a
// probe that finds nothing there may find nothing anywhere.
func TestProbes_SeeWhatIsOpen(t *testing.T) {
	const nobody = 65534
	dir, err := os.MkdirTemp("", "rookery-open-") //nolint:usetesting // t.TempDir is under directories that only root enters
	require.NoError(t, err)
	defer func() { require.NoError(t, os.RemoveAll(dir)) }()
	require.NoError(t, os.Chmod(dir, 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "canary"), []byte("x"), 0o666))
	require.NoError(t, os.Chmod(filepath.Join(dir, "canary"), 0o666))
	host, err := json.Marshal(map[string]any{"Dir": dir, "File": filepath.Join(dir, "canary"), "Workspace": dir, "Sibling": dir, "Process": 1})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "probe.json"), host, 0o644))

	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Args, cmd.Dir = []string{"rookery-probe", "escape"}, dir
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	out, err := cmd.Output()
	require.NoError(t, err)
	leaks := map[string]int{}
	for line := range strings.Lines(string(out)) {
		var v struct{ Group, Name, Leak string }
		require.NoError(t, json.Unmarshal([]byte(line), &v))
		if v.Leak != "" {
			leaks[v.Group]++
		}
	}
	t.Log(leaks)
	for _, group := range []string{
		"files", "writing", "links", "proc and sys", "ids", "namespaces", "processes", "system calls", "architectures", "socket families",
		"network", "terminals", "keyrings", "descriptors and environment", "other sessions",
	} {
		require.Positive(t, leaks[group], "nothing is seen of %s", group)
	}
}
