package sandboxtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

func fileProbes() []probe {
	list := each("read %s", func(_ host, path string) string { return readable(path) },
		"/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh", "/etc/crontab", "/etc/machine-id", "/etc/fstab", "/root", "/home/root",
		"/boot", "/srv", "/mnt", "/media", "/var/log", "/var/lib", "/var/spool", "/var/run", "/var/cache", "/run", "/run/docker.sock",
		"/run/systemd", "/run/dbus/system_bus_socket", "/run/user", "/sys", "/sys/fs/cgroup", "/sys/kernel/debug", "/lost+found")
	list = append(list, each("the host's %s is its own", func(_ host, path string) string {
		b, _ := os.ReadFile(path)
		if path == "/etc/passwd" && strings.Count(string(b), "\n") > 3 || path == "/etc/resolv.conf" && len(b) > 0 {
			return fmt.Sprintf("%.60q", b)
		}
		return ""
	}, "/etc/passwd", "/etc/resolv.conf")...)
	return append(list, []probe{
		{"read the canary", func(h host) string { return readable(h.File) }},
		{"list the canary's directory", func(h host) string { return readable(h.Dir) }},
		{"list the workspace by its path on the host", func(h host) string { return readable(h.Workspace) }},
		{"list what lies beside the workspace", func(h host) string { return readable(filepath.Dir(h.Workspace)) }},
		{"this program's host path", func(h host) string { return readable("/.init") }},
	}...)
}

func writeProbes() []probe {
	list := each("make a file in %s", func(_ host, dir string) string { return creatable(dir) },
		"/", "/usr", "/usr/bin", "/usr/local/bin", "/bin", "/lib", "/etc", "/etc/ssl", "/dev", "/run", "/var", "/proc", "/home")
	list = append(list, each("write %s", func(_ host, path string) string { return writable(path) },
		"/etc/passwd", "/etc/hosts", "/bin/sh", "/usr/bin/env", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe",
		"/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches", "/proc/sys/net/ipv4/ip_forward", "/proc/sysrq-trigger",
		"/proc/irq/default_smp_affinity", "/proc/bus/pci/devices", "/proc/fs/nfsd/export", "/proc/acpi/wakeup", "/proc/scsi/scsi")...)
	return append(list, []probe{
		{"write the canary", func(h host) string { return writable(h.File) }},
		{"make a file beside the canary", func(h host) string { return creatable(h.Dir) }},
		{"make a file beside the workspace", func(h host) string { return creatable(filepath.Dir(h.Workspace)) }},
		{"replace /etc/passwd", func(host) string {
			if os.WriteFile("/tmp/p", []byte("root::0:0::/:/bin/sh\n"), 0o644) == nil && os.Rename("/tmp/p", "/etc/passwd") == nil {
				return "replaced"
			}
			return ""
		}},
		{"change the owner of /usr", func(host) string { return denied(unix.SYS_FCHOWNAT, atCwd, text("/usr"), 1000, 1000) }},
	}...)
}

// atCwd is AT_FDCWD as an argument of a raw system call.
const atCwd = ^uintptr(99)

// text is a string for a raw system call. The memory stays: probes are few.
func text(s string) uintptr {
	b := append([]byte(s), 0)
	kept = append(kept, b)
	return uintptr(unsafe.Pointer(&b[0]))
}

var kept [][]byte //nolint:gochecknoglobals // keeps what raw system calls point to

func linkProbes() []probe {
	via := func(target string) string {
		link := filepath.Join(".", "probe-link")
		_ = os.Remove(link)
		if err := os.Symlink(target, link); err != nil {
			return ""
		}
		defer func() { _ = os.Remove(link) }()
		return readable(link)
	}
	list := each("symbolic link to %s", func(_ host, target string) string { return via(target) },
		"/etc/shadow", "/root", "/proc/1/root/etc/shadow", "/proc/1/cwd", "/proc/1/environ", "../../../../root", "/proc/self/root/../root")
	return append(list, []probe{
		{"symbolic link to the canary", func(h host) string { return via(h.File) }},
		{"hard link to the canary", func(h host) string {
			if os.Link(h.File, "probe-hard") == nil {
				return "linked"
			}
			return ""
		}},
		{"hard link to a program", func(host) string {
			if os.Link("/usr/bin/env", "probe-hard2") == nil {
				return "linked"
			}
			return ""
		}},
		{"many ..", func(h host) string { return readable(strings.Repeat("../", 40) + strings.TrimPrefix(h.File, "/")) }},
		{"chroot", func(host) string { return refused(unix.SYS_CHROOT, text("/tmp")) }},
		{"chroot to nowhere", func(host) string { return refused(unix.SYS_CHROOT, 1) }},
		{"open by handle", func(host) string { return refused(unix.SYS_OPEN_BY_HANDLE_AT, atCwd, 1, 0) }},
		{"name to handle", func(host) string { return refused(unix.SYS_NAME_TO_HANDLE_AT, atCwd, 1, 1, 1, 0) }},
		{"a host directory through the root's ..", func(h host) string {
			fd, err := unix.Open("/..", unix.O_PATH|unix.O_DIRECTORY, 0)
			if err != nil {
				return ""
			}
			defer func() { _ = unix.Close(fd) }()
			if got, err := unix.Openat(fd, "../.."+h.File, unix.O_RDONLY, 0); err == nil {
				_ = unix.Close(got)
				return "opened"
			}
			return ""
		}},
	}...)
}

func deviceProbes() []probe {
	list := each("device %s", func(_ host, path string) string {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		switch err {
		case nil:
			_ = unix.Close(fd)
			return "opened"
		case unix.ENOENT, unix.ENOTDIR, unix.EACCES, unix.EPERM:
			return ""
		}
		return "the device answered: " + err.Error()
	}, "/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/dev/sda", "/dev/vda", "/dev/nvme0n1", "/dev/vsock", "/dev/fuse", "/dev/kvm",
		"/dev/net/tun", "/dev/loop0", "/dev/loop-control", "/dev/mapper/control", "/dev/dri/card0", "/dev/input/event0", "/dev/hpet",
		"/dev/rtc0", "/dev/console", "/dev/tty0", "/dev/tty1", "/dev/userfaultfd", "/dev/snapshot", "/dev/uinput", "/dev/vhost-net")
	node := func(name string, mode uint32, major, minor uint32) func(host) string {
		return func(host) string {
			if err := unix.Mknod(name, mode|0o666, int(unix.Mkdev(major, minor))); err != nil {
				return ""
			}
			defer func() { _ = os.Remove(name) }()
			if fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
				_ = unix.Close(fd)
				return "made and opened"
			}
			return "made"
		}
	}
	return append(list, []probe{
		{"devices but the harmless ones", func(host) string {
			entries, _ := os.ReadDir("/dev")
			for _, e := range entries {
				if !strings.Contains(" fd full null ptmx pts random shm stderr stdin stdout tty urandom zero ", " "+e.Name()+" ") {
					return e.Name()
				}
			}
			return ""
		}},
		{"make a memory device in the workspace", node("probe-mem", unix.S_IFCHR, 1, 1)},
		{"make a disk in the workspace", node("probe-disk", unix.S_IFBLK, 254, 0)},
		{"make a memory device in /tmp", node("/tmp/probe-mem", unix.S_IFCHR, 1, 1)},
		{"make a disk in /dev/shm", node("/dev/shm/probe-disk", unix.S_IFBLK, 8, 0)},
		{"run a program in /dev/shm", func(host) string {
			if err := os.WriteFile("/dev/shm/x", []byte("#!/bin/sh\n"), 0o700); err != nil {
				return ""
			}
			p, err := os.StartProcess("/dev/shm/x", []string{"x"}, &os.ProcAttr{})
			if err != nil {
				return ""
			}
			_, _ = p.Wait()
			return "ran"
		}},
	}...)
}

func procProbes() []probe {
	list := each("read /proc/%s", func(_ host, name string) string { return readable("/proc/" + name) },
		"kcore", "keys", "key-users", "timer_list", "sysrq-trigger", "kallsyms", "kpageflags", "kpagecount", "sched_debug", "interrupts",
		"kmsg", "slabinfo", "vmallocinfo", "config.gz", "modules", "1/environ", "1/mem", "1/maps", "1/fd", "1/root", "1/cwd", "1/exe", "1/stack",
		"1/syscall", "1/io")
	return append(list, []probe{
		{"write the memory of the call's init", func(host) string { return writable("/proc/1/mem") }},
		{"processes of others", func(host) string {
			entries, _ := os.ReadDir("/proc")
			n := 0
			for _, e := range entries {
				if e.IsDir() && strings.Trim(e.Name(), "0123456789") == "" {
					n++
				}
			}
			if n > 4 {
				return fmt.Sprintf("%d processes are seen", n)
			}
			return ""
		}},
		{"the host's process", func(h host) string {
			if exists(fmt.Sprintf("/proc/%d/status", h.Process)) {
				return "is seen"
			}
			return ""
		}},
		{"control groups of the host in /proc", func(host) string {
			b, _ := os.ReadFile("/proc/self/cgroup")
			if strings.Contains(string(b), "rookery") {
				return string(b)
			}
			return ""
		}},
		{"directories of the host in the list of mounts", func(h host) string {
			b, _ := os.ReadFile("/proc/self/mountinfo")
			if strings.Contains(string(b), "/.init") {
				return "the sandbox's own program is mounted"
			}
			return ""
		}},
		{"the kernel's log", func(host) string { return refused(unix.SYS_SYSLOG, 3, 0, 0) }},
		{"host name of the host", func(host) string {
			if n, err := os.Hostname(); err != nil || n != "sandbox" {
				return n
			}
			return ""
		}},
	}...)
}
