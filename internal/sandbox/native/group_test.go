package native_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"rookery/internal/sandbox"
	"rookery/internal/sandbox/native"
)

// tree makes files below a directory, which stands for the root of a system.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o644))
	}
	return root
}

func read(t *testing.T, names ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(names...))
	require.NoError(t, err)
	return string(b)
}

const (
	mount1 = `30 23 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw
31 30 0:27 / /sys/fs/cgroup/memory rw,relatime shared:1 - cgroup cgroup rw,memory
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 /docker/abc /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
34 30 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
`
	mount2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
)

func TestGroups_PlacesOfVersion1(t *testing.T) {
	root := tree(t, map[string]string{
		"proc/self/mountinfo":                          mount1,
		"proc/self/cgroup":                             "4:memory:/user/x\n3:cpu,cpuacct:/\n2:pids:/docker/abc/in\n0::/\n",
		"sys/fs/cgroup/unified/cgroup.controllers":     "hugetlb\n",
		"sys/fs/cgroup/memory/user/x/memory.something": "",
	})
	places, v2, err := native.GroupPlaces(root)
	require.NoError(t, err)
	require.False(t, v2)
	require.Equal(t, map[string]string{
		"memory": filepath.Join(root, "sys/fs/cgroup/memory/user/x"),
		"cpu":    filepath.Join(root, "sys/fs/cgroup/cpu,cpuacct"),
		"pids":   filepath.Join(root, "sys/fs/cgroup/pids/in"),
	}, places)
}

const ownGroup = "rookery-1-2-test"

// version2 is a system with the unified hierarchy, where this process is alone in a
// delegated group; the kernel's files of groups that will be made are there, too.
func version2(t *testing.T) (root, base string) {
	t.Helper()
	const group = "sys/fs/cgroup/app.service/"
	files := map[string]string{
		"proc/self/mountinfo":                  mount2,
		"proc/self/cgroup":                     "0::/app.service\n",
		"sys/fs/cgroup/cgroup.controllers":     "cpuset cpu io memory pids\n",
		group + "cgroup.controllers":           "cpu memory pids\n",
		group + "cgroup.type":                  "domain\n",
		group + "cgroup.procs":                 "",
		group + "cgroup.subtree_control":       "",
		group + "rookery/cgroup.procs":         "",
		group + "rookery-1x-2/cgroup.procs":    "", // not ours
		group + "rookery-999999999-1-x/s/nope": "", // a dead worker's, not empty: it stays for the next
	}
	own := group + ownGroup + "/"
	for _, dir := range []string{own, own + "s/", own + "s/1/"} {
		for _, f := range []string{"cgroup.procs", "cgroup.subtree_control", "memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cpu.max"} {
			files[dir+f] = ""
		}
	}
	files[own+"s/1/memory.events"] = "low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n"
	root = tree(t, files)
	return root, filepath.Join(root, group)
}

func TestGroups_Version2(t *testing.T) {
	root, base := version2(t)
	g, err := native.FindGroups(root, ownGroup)
	require.NoError(t, err)
	require.Equal(t, "0", read(t, base, "rookery/cgroup.procs"), "this process makes room")
	require.Contains(t, read(t, base, "cgroup.subtree_control"), "+")
	dirs, oom, err := g.Call(sandbox.Limits{Memory: 64 << 20, Pids: 77, CPU: 500 * time.Millisecond})
	require.NoError(t, err)
	require.True(t, oom)
	call := dirs["memory"]
	require.Equal(t, filepath.Join(base, ownGroup, "s/1"), call)
	for file, want := range map[string]string{
		"memory.max": "67108864", "memory.swap.max": "0", "memory.oom.group": "1", "pids.max": "77", "cpu.max": "50000 100000",
	} {
		require.Equal(t, want, read(t, call, file), file)
	}
}

func TestGroups_Version2WhereOthersAre(t *testing.T) {
	root, base := version2(t)
	require.NoError(t, os.WriteFile(filepath.Join(base, "cgroup.procs"), []byte("1\n"), 0o644))
	places, v2, err := native.GroupPlaces(root)
	if os.Geteuid() == 0 { // root has the whole hierarchy
		require.NoError(t, err)
		require.True(t, v2)
		require.Equal(t, filepath.Join(root, "sys/fs/cgroup"), places["memory"])
		return
	}
	require.Error(t, err)
}

func TestGroups_None(t *testing.T) {
	root := tree(t, map[string]string{"proc/self/mountinfo": mount2, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cgroup.controllers": "cpu\n"})
	_, err := native.FindGroups(root, ownGroup)
	require.ErrorContains(t, err, "no usable controller memory")
	text := native.ExplainGroups(err).Error()
	for _, want := range []string{"cannot be enforced", "Delegate=yes", "--soft-limits", "--sandbox landlock", "--sandbox none"} {
		require.Contains(t, text, want)
	}
}

func TestExplain_NamesTheRemedy(t *testing.T) {
	for _, c := range []struct {
		stage string
		err   error
		want  string
	}{
		{"make the namespaces", unix.EPERM, "seccomp"},
		{"make the namespaces", unix.ENOSPC, "user.max_user_namespaces"},
		{"make the view", &os.PathError{Op: "mount proc on", Path: "/tmp/proc", Err: unix.EPERM}, "systempaths=unconfined"},
		{"mount /proc", unix.EPERM, "systempaths=unconfined"},
		{"make the view", unix.EPERM, "AppArmor"},
		{"bring up the loopback interface", unix.EPERM, "userns,"},
		{"make the view", unix.ENOSYS, "Linux 5.12"},
		{"map the workspace's owner", unix.EINVAL, "chown"},
	} {
		err := native.Explain(c.stage, c.err)
		require.ErrorContains(t, err, c.want, "%s: %v", c.stage, c.err)
		require.ErrorContains(t, err, "--sandbox landlock")
		require.ErrorIs(t, err, errnoOf(c.err))
	}
	plain := native.Explain("open the terminal", unix.EIO)
	require.NotContains(t, plain.Error(), "--sandbox", "what is not known is not explained")
}

func errnoOf(err error) unix.Errno {
	no, _ := errors.AsType[unix.Errno](err)
	return no
}

func TestCountDisk_CountsEachFileOnce(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	block := make([]byte, 1<<20)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a"), block, 0o600))
	empty, whole := native.CountDisk(other)
	require.True(t, whole)
	one, _ := native.CountDisk(dir)
	require.GreaterOrEqual(t, one, int64(1<<20))
	require.NoError(t, os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b")))
	require.NoError(t, os.Symlink("/", filepath.Join(dir, "c")))
	again, _ := native.CountDisk(dir, other)
	require.Less(t, again, one+empty+1<<16)
	require.NoError(t, os.WriteFile(filepath.Join(other, "d"), block, 0o600))
	two, _ := native.CountDisk(dir, other)
	require.GreaterOrEqual(t, two, int64(2<<20))
}
