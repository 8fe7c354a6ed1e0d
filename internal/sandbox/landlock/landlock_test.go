package landlock_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"rookery/internal/sandbox"
	"rookery/internal/sandbox/landlock"
	"rookery/internal/sandbox/sandboxtest"
)

// nobody is an ordinary user.
const nobody = 65534

// TestMain runs the tests as an ordinary user: the backend is not for root.
func TestMain(m *testing.M) {
	landlock.Main(sandboxtest.Ops())
	sandboxtest.Main()
	if os.Geteuid() == 0 {
		os.Exit(asNobody())
	}
	os.Exit(m.Run())
}

func asNobody() int {
	args := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(a string) bool { // files that only root may write
		return strings.HasPrefix(a, "-test.testlogfile") || strings.HasPrefix(a, "-test.gocoverdir")
	})
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0], cmd.Dir, cmd.Stdout, cmd.Stderr = os.Args[0], os.TempDir(), os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}

func TestLandlock(t *testing.T) {
	sandboxtest.Run(t, func(_ *testing.T, ops sandbox.Ops) sandbox.Backend { return landlock.New(ops) })
}

func TestLandlock_SaysThatItIsReduced(t *testing.T) {
	r, err := landlock.New(nil).Check(t.Context())
	require.NoError(t, err)
	require.Equal(t, landlock.Warning, r.Warning)
	require.Len(t, r.Lines, 8)
}

func TestLandlock_WaysOut(t *testing.T) {
	sandboxtest.Escape(t, landlock.New(sandboxtest.Ops()),
		// It shares the host's namespaces: what is there can be seen, not touched.
		"files/the host's /etc/passwd is its own", "files/list the workspace by its path on the host",
		"proc and sys/the host's process", "proc and sys/host name of the host", "processes/a handle of a process of the host",
		// Without a capability the set of those to be had cannot be emptied; no_new_privs does it.
		"ids/CapBnd is 0000000000000000",
	)
}

func TestLandlock_EverydayWork(t *testing.T) {
	sandboxtest.Work(t, landlock.New(sandboxtest.Ops()),
		"user has a name", "programs in /tmp", "processes", "host name", "python threads and processes", "unix sockets", "loopback", "node",
		"curl", "a new terminal")
}

func TestLandlock_KeeperKillsWhatHides(t *testing.T) {
	// No environment, no parent, a session of its own: nothing is left to find it by.
	dir := t.TempDir()
	b := landlock.New(sandboxtest.Ops())
	s, err := b.Open(t.Context(), sandbox.SessionSpec{ID: "s", Workspace: dir, Scratch: t.TempDir()})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	c, err := s.Start(t.Context(), sandbox.CallSpec{Merge: true, Argv: []string{
		"sh", "-c", `(setsid env -i sh -c 'exec 9>lock; flock 9; : > held; sleep 1000' &) ; while [ ! -e held ]; do sleep 0.01; done`,
	}})
	require.NoError(t, err)
	_, err = c.Wait()
	require.NoError(t, err)
	f, err := os.Open(filepath.Join(dir, "lock"))
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	require.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), "it lives")
}
