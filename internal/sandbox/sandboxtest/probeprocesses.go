package sandboxtest

import (
	"fmt"
	"maps"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

func processProbes() []probe {
	attach := func(pid func(h host) int, request uintptr) func(host) string {
		return func(h host) string {
			p := pid(h)
			if _, _, e := unix.RawSyscall6(unix.SYS_PTRACE, request, uintptr(p), 0, 0, 0, 0); e != 0 {
				return ""
			}
			_, _ = unix.Wait4(p, nil, 0, nil)
			_ = unix.PtraceDetach(p)
			return "attached"
		}
	}
	first, outside := func(host) int { return 1 }, func(h host) int { return h.Process }
	memory := func(nr uintptr) func(host) string {
		return func(host) string {
			b := make([]byte, 8)
			local := unix.Iovec{Base: &b[0], Len: 8}
			remote := unix.RemoteIovec{Base: 0x400000, Len: 8}
			return denied(nr, 1, uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
		}
	}
	return []probe{
		{"trace the call's init", attach(first, unix.PTRACE_ATTACH)},
		{"seize the call's init", attach(first, unix.PTRACE_SEIZE)},
		{"trace a process of the host", attach(outside, unix.PTRACE_ATTACH)},
		{"read the memory of the call's init", memory(unix.SYS_PROCESS_VM_READV)},
		{"write the memory of the call's init", memory(unix.SYS_PROCESS_VM_WRITEV)},
		{"signal a process of the host", func(h host) string { return denied(unix.SYS_KILL, uintptr(h.Process), 0) }},
		{"a handle of a process of the host", func(h host) string { return denied(unix.SYS_PIDFD_OPEN, uintptr(h.Process), 0) }},
		{"take a descriptor of the call's init", func(host) string {
			fd, err := unix.PidfdOpen(1, 0)
			if err != nil {
				return ""
			}
			defer func() { _ = unix.Close(fd) }()
			return refused(unix.SYS_PIDFD_GETFD, uintptr(fd), 3, 0)
		}},
		{"stop the call's init", func(host) string {
			_ = unix.Kill(1, unix.SIGSTOP)
			if s := statusField("1", "State"); len(s) > 0 && s[0] == 'T' {
				return "it is stopped"
			}
			return ""
		}},
		{"kill the call's init", func(host) string {
			_ = unix.Kill(1, unix.SIGKILL)
			return "" // who reads this has survived
		}},
		{"compare processes", func(host) string { return refused(unix.SYS_KCMP, uintptr(os.Getpid()), 1, 0, 0, 0) }},
		{"advise another's memory", func(host) string { return refused(unix.SYS_PROCESS_MADVISE, 0, 0, 0, 0, 0) }},
		{"move another's pages", func(host) string { return refused(unix.SYS_MOVE_PAGES, 1, 0, 0, 0, 0, 0) }},
		{"migrate another's pages", func(host) string { return refused(unix.SYS_MIGRATE_PAGES, 1, 0, 0, 0) }},
		{"signal everybody", func(host) string {
			_ = unix.Kill(-1, unix.SIGCONT)
			return ""
		}},
	}
}

func keyProbes() []probe {
	kind, name := "user", "rookery-probe"
	return []probe{
		{"read the session keyring", func(host) string { return refused(unix.SYS_KEYCTL, unix.KEYCTL_READ, ^uintptr(2), 0, 0) }},
		{"read the user keyring", func(host) string { return refused(unix.SYS_KEYCTL, unix.KEYCTL_READ, ^uintptr(3), 0, 0) }},
		{"search keyrings", func(host) string {
			return refused(unix.SYS_KEYCTL, unix.KEYCTL_SEARCH, ^uintptr(3), text(kind), text(name), 0)
		}},
		{"the persistent keyring", func(host) string { return refused(unix.SYS_KEYCTL, unix.KEYCTL_GET_PERSISTENT, 0, ^uintptr(2)) }},
		{"add a key", func(host) string { return refused(unix.SYS_ADD_KEY, text(kind), text(name), text("x"), 1, ^uintptr(2)) }},
		{"request a key", func(host) string { return refused(unix.SYS_REQUEST_KEY, text(kind), text(name), 0, ^uintptr(2)) }},
	}
}

// callProbes are made with arguments that no kernel accepts: if the filter lets one
// pass, nothing happens but another error.
func callProbes() []probe {
	const bad = ^uintptr(0)
	calls := map[string]uintptr{
		"io_uring_setup": unix.SYS_IO_URING_SETUP, "io_uring_enter": unix.SYS_IO_URING_ENTER, "io_uring_register": unix.SYS_IO_URING_REGISTER,
		"bpf": unix.SYS_BPF, "perf_event_open": unix.SYS_PERF_EVENT_OPEN, "userfaultfd": unix.SYS_USERFAULTFD,
		"init_module": unix.SYS_INIT_MODULE, "finit_module": unix.SYS_FINIT_MODULE, "delete_module": unix.SYS_DELETE_MODULE,
		"kexec_load": unix.SYS_KEXEC_LOAD, "reboot": unix.SYS_REBOOT, "swapon": unix.SYS_SWAPON, "swapoff": unix.SYS_SWAPOFF,
		"acct": unix.SYS_ACCT, "quotactl": unix.SYS_QUOTACTL, "quotactl_fd": unix.SYS_QUOTACTL_FD, "settimeofday": unix.SYS_SETTIMEOFDAY,
		"clock_settime": unix.SYS_CLOCK_SETTIME, "sethostname": unix.SYS_SETHOSTNAME, "setdomainname": unix.SYS_SETDOMAINNAME,
		"vhangup": unix.SYS_VHANGUP, "fanotify_init": unix.SYS_FANOTIFY_INIT, "nfsservctl": unix.SYS_NFSSERVCTL, "mbind": unix.SYS_MBIND,
		"set_mempolicy": unix.SYS_SET_MEMPOLICY, "lsm_set_self_attr": unix.SYS_LSM_SET_SELF_ATTR, "memfd_secret": unix.SYS_MEMFD_SECRET,
		"statmount": unix.SYS_STATMOUNT, "listmount": unix.SYS_LISTMOUNT, "listns": unix.SYS_LISTNS,
	}
	maps.Copy(calls, legacyCalls())
	var list []probe
	for name, nr := range calls {
		list = append(list, probe{name, func(host) string { return refused(nr, bad, bad, bad, bad, bad, bad) }})
	}
	return append(list,
		probe{"a 32-bit personality", func(host) string { return refused(unix.SYS_PERSONALITY, 0x0008|0x0800000) }},
		probe{"a system call that does not exist yet", func(host) string {
			if _, _, e := unix.RawSyscall(500, 0, 0, 0); e != unix.ENOSYS {
				return errnoText(e)
			}
			return ""
		}},
	)
}

func abiProbes() []probe {
	x32 := func(name string, nr uintptr) probe {
		return probe{"x32 " + name, func(host) string { return refused(0x40000000|nr, 1, 1, 0) }}
	}
	return []probe{
		{"int 0x80", func(host) string {
			status, err := aside("abi")
			if err != nil {
				return err.Error()
			}
			if status == 1 {
				return "the kernel answered"
			}
			return ""
		}},
		x32("getpid", unix.SYS_GETPID), x32("socket", unix.SYS_SOCKET), x32("ptrace", 521), x32("execve", 520), x32("ioctl", 514),
	}
}

func familyProbes() []probe {
	families := map[string]uintptr{
		"AF_VSOCK": unix.AF_VSOCK, "AF_PACKET": unix.AF_PACKET, "AF_ALG": unix.AF_ALG, "AF_BLUETOOTH": unix.AF_BLUETOOTH, "AF_CAN": unix.AF_CAN,
		"AF_TIPC": unix.AF_TIPC, "AF_XDP": unix.AF_XDP, "AF_KEY": unix.AF_KEY, "AF_RDS": unix.AF_RDS, "AF_SMC": unix.AF_SMC, "AF_NFC": unix.AF_NFC,
		"AF_QIPCRTR": unix.AF_QIPCRTR, "AF_KCM": unix.AF_KCM, "AF_PPPOX": unix.AF_PPPOX, "AF_LLC": unix.AF_LLC, "AF_MCTP": unix.AF_MCTP,
		"AF_PHONET": unix.AF_PHONET, "AF_IEEE802154": unix.AF_IEEE802154, "AF_AX25": unix.AF_AX25, "AF_APPLETALK": unix.AF_APPLETALK,
	}
	var list []probe
	for name, f := range families {
		list = append(list, probe{name, func(host) string { return refused(unix.SYS_SOCKET, f, unix.SOCK_DGRAM, 0) }})
	}
	for name, p := range map[string]uintptr{
		"audit": unix.NETLINK_AUDIT, "netfilter": unix.NETLINK_NETFILTER, "uevent": unix.NETLINK_KOBJECT_UEVENT, "generic": unix.NETLINK_GENERIC,
		"xfrm": unix.NETLINK_XFRM, "sock_diag": unix.NETLINK_SOCK_DIAG, "crypto": unix.NETLINK_CRYPTO, "connector": unix.NETLINK_CONNECTOR,
		"selinux": unix.NETLINK_SELINUX, "rdma": unix.NETLINK_RDMA,
	} {
		list = append(list, probe{"netlink " + name, func(host) string { return refused(unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, p) }})
	}
	return append(list,
		probe{"AF_VSOCK with a high half", func(host) string { return refused(unix.SYS_SOCKET, unix.AF_VSOCK|1<<32, unix.SOCK_STREAM, 0) }},
		probe{"AF_UNIX with a high half", func(host) string { return refused(unix.SYS_SOCKET, unix.AF_UNIX|1<<32, unix.SOCK_STREAM, 0) }},
		probe{"a pair of AF_TIPC", func(host) string { return refused(unix.SYS_SOCKETPAIR, unix.AF_TIPC, unix.SOCK_STREAM, 0, 0) }},
		probe{"raw sockets", func(host) string { return refused(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW) }},
		probe{"raw ICMP", func(host) string { return refused(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP) }},
	)
}

func terminalProbes() []probe {
	tty := func(request uintptr) func(host) string {
		return func(host) string {
			fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0)
			if err != nil {
				return ""
			}
			defer func() { _ = unix.Close(fd) }()
			c := byte('x')
			return refused(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(&c)))
		}
	}
	const tiocLinux = 0x541c
	return []probe{
		{"TIOCSTI", tty(unix.TIOCSTI)},
		{"TIOCSTI with a high half", tty(unix.TIOCSTI | 1<<32)},
		{"TIOCLINUX", tty(tiocLinux)},
		{"TIOCSETD", tty(unix.TIOCSETD)},
		{"TIOCCONS", func(host) string { return denied(unix.SYS_IOCTL, 0, unix.TIOCCONS, 0) }},
		{"terminals of the host", func(host) string {
			entries, _ := os.ReadDir("/dev/pts")
			if len(entries) > 2 {
				return fmt.Sprintf("%d terminals", len(entries))
			}
			return ""
		}},
	}
}
