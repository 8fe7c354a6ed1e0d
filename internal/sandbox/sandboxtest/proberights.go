package sandboxtest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

func idProbes() []probe {
	field := func(name, want string) probe {
		return probe{name + " is " + want, func(host) string {
			if got := statusField("self", name); got != want {
				return "it is " + got
			}
			return ""
		}}
	}
	const none = "0000000000000000"
	all := [2]unix.CapUserData{{Effective: ^uint32(0), Permitted: ^uint32(0)}, {Effective: ^uint32(0), Permitted: ^uint32(0)}}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	list := []probe{
		field("CapInh", none), field("CapPrm", none), field("CapEff", none), field("CapBnd", none), field("CapAmb", none),
		field("NoNewPrivs", "1"), field("Seccomp", "2"),
		{"take all capabilities", func(host) string {
			return denied(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&all[0])))
		}},
		{"raise an ambient capability", func(host) string {
			return denied(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_SYS_ADMIN, 0, 0)
		}},
		{"keep capabilities over a change of user", func(host) string {
			return denied(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, 1<<4, 0, 0, 0)
		}},
		{"become root", func(host) string { return denied(unix.SYS_SETUID, 0) }},
		{"become root's group", func(host) string { return denied(unix.SYS_SETGID, 0) }},
		{"become somebody else", func(host) string { return denied(unix.SYS_SETRESUID, 65533, 65533, 65533) }},
		{"join groups", func(host) string {
			groups := [2]uint32{0, 42}
			return denied(unix.SYS_SETGROUPS, 2, uintptr(unsafe.Pointer(&groups[0])))
		}},
		{"map root into this namespace", func(host) string { return writable2("/proc/self/uid_map", "0 0 1") }},
		{"allow setgroups", func(host) string { return writable2("/proc/self/setgroups", "allow") }},
	}
	list = append(list, each("outside, %s is not root", func(_ host, file string) string {
		b, _ := os.ReadFile("/proc/self/" + file)
		var first, outside, n int
		if _, err := fmt.Sscan(string(b), &first, &outside, &n); err != nil || os.Getuid()-first+outside == 0 {
			return fmt.Sprintf("%q", b)
		}
		return ""
	}, "uid_map", "gid_map")...)
	return append(list, each("%s does not make root", func(_ host, path string) string {
		info, err := os.Stat(path)
		if err != nil || info.Mode()&os.ModeSetuid == 0 {
			return ""
		}
		var st unix.Statfs_t
		if err := unix.Statfs(path, &st); (err != nil || st.Flags&unix.ST_NOSUID == 0) && statusField("self", "NoNewPrivs") != "1" {
			return "it lies on a file system with set-uid programs"
		}
		return ""
	}, "/usr/bin/su", "/usr/bin/sudo", "/usr/bin/mount", "/usr/bin/passwd", "/usr/bin/pkexec", "/usr/bin/newgrp")...)
}

func writable2(path, value string) string {
	if os.WriteFile(path, []byte(value), 0) == nil {
		return "written"
	}
	return ""
}

// modeProbes try to make set-id files; whether that mattered is seen from outside:
// only files that root owns there count.
func modeProbes() []probe {
	const mode = 0o6755
	made := func(name string, try func(path string) error) probe {
		return probe{name, func(host) string {
			path := "setid-" + strings.ReplaceAll(name, " ", "-")
			_ = try(path)
			return ""
		}}
	}
	empty := func(path string) error { return os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755) }
	raw := func(nr uintptr, args ...uintptr) error {
		var a [6]uintptr
		copy(a[:], args)
		if _, _, e := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); e != 0 {
			return e
		}
		return nil
	}
	opened := func(nr uintptr, args ...uintptr) error {
		var a [6]uintptr
		copy(a[:], args)
		fd, _, e := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		if e != 0 {
			return e
		}
		return unix.Close(int(fd))
	}
	list := []probe{
		made("by fchmod", func(path string) error {
			f, err := os.Create(path)
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }()
			return raw(unix.SYS_FCHMOD, f.Fd(), mode)
		}),
		made("by fchmodat", func(path string) error {
			_ = empty(path)
			return raw(unix.SYS_FCHMODAT, atCwd, text(path), mode)
		}),
		made("by fchmodat2", func(path string) error {
			_ = empty(path)
			return raw(unix.SYS_FCHMODAT2, atCwd, text(path), mode, 0)
		}),
		made("by fchmodat with a high half", func(path string) error {
			_ = empty(path)
			return raw(unix.SYS_FCHMODAT, atCwd, text(path), mode|1<<32)
		}),
		made("by openat", func(path string) error {
			return opened(unix.SYS_OPENAT, atCwd, text(path), unix.O_CREAT|unix.O_WRONLY, mode)
		}),
		made("by openat and O_TMPFILE", func(path string) error {
			fd, _, e := unix.RawSyscall6(unix.SYS_OPENAT, atCwd, text("."), unix.O_TMPFILE|unix.O_WRONLY, mode, 0, 0)
			if e != 0 {
				return e
			}
			defer func() { _ = unix.Close(int(fd)) }()
			return unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(fd)), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
		}),
		made("by openat2", func(path string) error {
			how := unix.OpenHow{Flags: unix.O_CREAT | unix.O_WRONLY, Mode: mode}
			return opened(unix.SYS_OPENAT2, atCwd, text(path), uintptr(unsafe.Pointer(&how)), unsafe.Sizeof(how))
		}),
		made("by mknodat", func(path string) error { return raw(unix.SYS_MKNODAT, atCwd, text(path), unix.S_IFREG|mode, 0) }),
		made("by mkdirat", func(path string) error { return raw(unix.SYS_MKDIRAT, atCwd, text(path), mode) }),
		made("by a set-id directory", func(path string) error {
			if err := os.Mkdir(path, 0o755); err != nil {
				return err
			}
			return raw(unix.SYS_FCHMODAT, atCwd, text(path), 0o2755)
		}),
		made("by capabilities of a file", func(path string) error {
			_ = empty(path)
			return unix.Setxattr(path, "security.capability", []byte("\x01\x00\x00\x02\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0)
		}),
	}
	for name, nr := range legacyModes() {
		list = append(list, made("by "+name, func(path string) error {
			if name == "chmod" {
				_ = empty(path)
			}
			switch name {
			case "creat":
				return opened(nr, text(path), mode)
			case "open":
				return opened(nr, text(path), unix.O_CREAT|unix.O_WRONLY, mode)
			}
			return raw(nr, text(path), mode)
		}))
	}
	return list
}

func mountProbes() []probe {
	m := func(source, target, fs string, flags uintptr) func(host) string {
		return func(host) string { return refused(unix.SYS_MOUNT, text(source), text(target), text(fs), flags, 0) }
	}
	return []probe{
		{"mount a tmpfs", m("t", "/tmp", "tmpfs", 0)},
		{"mount proc", m("proc", "/tmp", "proc", 0)},
		{"mount sysfs", m("sys", "/tmp", "sysfs", 0)},
		{"mount an overlay", m("o", "/tmp", "overlay", 0)},
		{"mount cgroups", m("c", "/tmp", "cgroup2", 0)},
		{"bind the root", m("/", "/tmp", "", unix.MS_BIND)},
		{"remount the root for writing", m("", "/", "", unix.MS_REMOUNT|unix.MS_BIND)},
		{"remount /usr for writing", m("", "/usr", "", unix.MS_REMOUNT|unix.MS_BIND)},
		{"remount /proc/sys for writing", m("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND)},
		{"make mounts shared", m("", "/", "", unix.MS_SHARED|unix.MS_REC)},
		{"unmount /proc", func(host) string { return refused(unix.SYS_UMOUNT2, text("/proc"), unix.MNT_DETACH) }},
		{"unmount a mask", func(host) string { return refused(unix.SYS_UMOUNT2, text("/proc/kcore"), unix.MNT_DETACH) }},
		{"unmount the root", func(host) string { return refused(unix.SYS_UMOUNT2, text("/"), unix.MNT_DETACH) }},
		{"pivot_root", func(host) string { return refused(unix.SYS_PIVOT_ROOT, text("."), text(".")) }},
		{"open_tree", func(host) string { return refused(unix.SYS_OPEN_TREE, atCwd, text("/"), unix.OPEN_TREE_CLONE) }},
		{"open_tree_attr", func(host) string {
			return refused(unix.SYS_OPEN_TREE_ATTR, atCwd, text("/"), unix.OPEN_TREE_CLONE, 0, 0)
		}},
		{"move_mount", func(host) string { return refused(unix.SYS_MOVE_MOUNT, atCwd, text("/tmp"), atCwd, text("/home"), 0) }},
		{"fsopen", func(host) string { return refused(unix.SYS_FSOPEN, text("tmpfs"), 0) }},
		{"fspick", func(host) string { return refused(unix.SYS_FSPICK, atCwd, text("/"), 0) }},
		{"fsconfig", func(host) string { return refused(unix.SYS_FSCONFIG, 0, 0, 0, 0, 0) }},
		{"fsmount", func(host) string { return refused(unix.SYS_FSMOUNT, 0, 0, 0) }},
		{"mount_setattr", func(host) string { return refused(unix.SYS_MOUNT_SETATTR, atCwd, text("/"), 0, 1, 32) }},
	}
}

func namespaceProbes() []probe {
	spaces := map[string]uintptr{
		"mount": unix.CLONE_NEWNS, "user": unix.CLONE_NEWUSER, "network": unix.CLONE_NEWNET, "pid": unix.CLONE_NEWPID,
		"ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS, "cgroup": unix.CLONE_NEWCGROUP,
	}
	var list []probe
	for name, flag := range spaces {
		list = append(list,
			probe{"unshare " + name, func(host) string { return refused(unix.SYS_UNSHARE, flag) }},
			probe{"unshare " + name + " with a user namespace", func(host) string { return refused(unix.SYS_UNSHARE, flag|unix.CLONE_NEWUSER) }},
			// An impossible flag beside it: a kernel that gets to see this call refuses it otherwise.
			probe{"clone into a new " + name, func(host) string {
				return refused(unix.SYS_CLONE, flag|unix.CLONE_SIGHAND, 0, 0, 0, 0)
			}},
		)
	}
	args := make([]uint64, 11)
	args[0] = unix.CLONE_NEWUSER
	list = append(list,
		probe{"unshare time", func(host) string { return refused(unix.SYS_UNSHARE, unix.CLONE_NEWTIME) }},
		probe{"clone3", func(host) string { return refused(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args[0])), 8) }},
		probe{"setns by number", func(host) string { return refused(unix.SYS_SETNS, 0, 0) }},
	)
	return append(list, each("enter the %s namespace of the call's init", func(_ host, name string) string {
		fd, err := unix.Open("/proc/1/ns/"+name, unix.O_RDONLY, 0)
		if err != nil {
			return ""
		}
		defer func() { _ = unix.Close(fd) }()
		return refused(unix.SYS_SETNS, uintptr(fd), 0)
	}, "mnt", "user", "net", "pid", "ipc", "uts", "cgroup")...)
}
