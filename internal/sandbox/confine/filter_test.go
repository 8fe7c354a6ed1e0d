package confine_test

import (
	"encoding/binary"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"

	"rookery/internal/sandbox/confine"
)

// answers of a filter.
const (
	allow  = uint32(unix.SECCOMP_RET_ALLOW)
	eperm  = uint32(unix.SECCOMP_RET_ERRNO) | uint32(unix.EPERM)
	enosys = uint32(unix.SECCOMP_RET_ERRNO) | uint32(unix.ENOSYS)
)

const (
	archI386  = 0x40000003
	archArm   = 0x40000028
	tiocLinux = 0x541c
	high      = 1 << 32
	any32     = 0xffffffff
)

func here() uint32 {
	if runtime.GOARCH == "arm64" {
		return linux.AUDIT_ARCH_AARCH64
	}
	return linux.AUDIT_ARCH_X86_64
}

// A machine runs a filter as the kernel does.
type machine struct{ program bpf.Program }

func load(t *testing.T, k confine.Kind) machine {
	t.Helper()
	b, err := confine.Filter(k)
	require.NoError(t, err)
	var ins []bpf.Instruction
	for ; len(b) > 0; b = b[8:] {
		ins = append(ins, bpf.Instruction{
			OpCode: binary.NativeEndian.Uint16(b), JumpIfTrue: b[2], JumpIfFalse: b[3], K: binary.NativeEndian.Uint32(b[4:]),
		})
	}
	require.Less(t, len(ins), 4096, "the kernel takes no longer ones")
	p, err := bpf.Compile(ins, false)
	require.NoError(t, err)
	return machine{p}
}

func (m machine) run(t *testing.T, arch uint32, nr uintptr, args ...uint64) uint32 {
	t.Helper()
	d := linux.SeccompData{Nr: int32(uint32(nr)), Arch: arch}
	copy(d.Args[:], args)
	r, err := bpf.Exec[bpf.NativeEndian](m.program, seccomp.DataAsBPFInput(&d, make([]byte, d.SizeBytes())))
	require.NoError(t, err)
	return r
}

type row struct {
	name string
	nr   uintptr
	args []uint64
	want uint32
}

func (m machine) check(t *testing.T, rows []row) {
	t.Helper()
	for _, r := range rows {
		require.Equal(t, r.want, m.run(t, here(), r.nr, r.args...), "%s %x", r.name, r.args)
	}
}

// always are the rows of every kind.
func always() []row {
	u := func(v ...uint64) []uint64 { return v }
	return []row{
		{"read", unix.SYS_READ, nil, allow},
		{"execve", unix.SYS_EXECVE, nil, allow},
		{"futex", unix.SYS_FUTEX, nil, allow},
		{"mmap", unix.SYS_MMAP, nil, allow},
		{"getrandom", unix.SYS_GETRANDOM, nil, allow},
		{"socket of vsock", unix.SYS_SOCKET, u(unix.AF_VSOCK, 1), eperm},
		{"socket of vsock, high", unix.SYS_SOCKET, u(unix.AF_VSOCK|high, 1), eperm},
		{"socket of unix, high", unix.SYS_SOCKET, u(unix.AF_UNIX|high, 1), eperm},
		{"socket of packet", unix.SYS_SOCKET, u(unix.AF_PACKET, 3), eperm},
		{"socket of alg", unix.SYS_SOCKET, u(unix.AF_ALG, 5), eperm},
		{"socket of ioctl's number", unix.SYS_SOCKET, u(unix.SYS_IOCTL, 3, 9), eperm},
		{"netlink netfilter", unix.SYS_SOCKET, u(unix.AF_NETLINK, 3, unix.NETLINK_NETFILTER), eperm},
		{"netlink route, high", unix.SYS_SOCKET, u(unix.AF_NETLINK, 3, unix.NETLINK_ROUTE|high), eperm},
		{"pair of tipc", unix.SYS_SOCKETPAIR, u(unix.AF_TIPC, 1), eperm},
		{"pair of unix", unix.SYS_SOCKETPAIR, u(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC), allow},
		{"ioctl TCGETS", unix.SYS_IOCTL, u(0, unix.TCGETS), allow},
		{"ioctl TIOCSTI", unix.SYS_IOCTL, u(0, unix.TIOCSTI), eperm},
		{"ioctl TIOCSTI, high", unix.SYS_IOCTL, u(0, unix.TIOCSTI|high), eperm},
		{"ioctl TIOCSTI, all high", unix.SYS_IOCTL, u(0, unix.TIOCSTI|any32<<32), eperm},
		{"ioctl TIOCSTI of any descriptor", unix.SYS_IOCTL, u(high|7, unix.TIOCSTI, 1, 2, 3, 4), eperm},
		{"ioctl TIOCLINUX", unix.SYS_IOCTL, u(0, tiocLinux), eperm},
		{"ioctl TIOCSETD", unix.SYS_IOCTL, u(0, unix.TIOCSETD), eperm},
		{"ioctl, negative", unix.SYS_IOCTL, u(0, 0xffffffff80045430), allow},
		{"clone of a thread", unix.SYS_CLONE, u(0x3d0f00), allow},
		{"clone by vfork", unix.SYS_CLONE, u(unix.CLONE_VFORK | unix.CLONE_VM | 17), allow},
		{"clone3", unix.SYS_CLONE3, nil, enosys},
		{"unshare", unix.SYS_UNSHARE, u(unix.CLONE_NEWUSER), eperm},
		{"unshare nothing", unix.SYS_UNSHARE, u(0), eperm},
		{"setns", unix.SYS_SETNS, nil, eperm},
		{"mount", unix.SYS_MOUNT, nil, eperm},
		{"open_tree", unix.SYS_OPEN_TREE, nil, eperm},
		{"keyctl", unix.SYS_KEYCTL, nil, eperm},
		{"bpf", unix.SYS_BPF, nil, eperm},
		{"io_uring_setup", unix.SYS_IO_URING_SETUP, nil, eperm},
		{"perf_event_open", unix.SYS_PERF_EVENT_OPEN, nil, eperm},
		{"userfaultfd", unix.SYS_USERFAULTFD, nil, eperm},
		{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, nil, eperm},
		{"pidfd_getfd", unix.SYS_PIDFD_GETFD, nil, eperm},
		{"kcmp", unix.SYS_KCMP, nil, eperm},
		{"personality of linux", unix.SYS_PERSONALITY, u(0), allow},
		{"personality asked", unix.SYS_PERSONALITY, u(any32), allow},
		{"personality without random addresses", unix.SYS_PERSONALITY, u(0x40000), allow},
		{"personality that reads implies execution", unix.SYS_PERSONALITY, u(0x400000), eperm},
		{"a number of the future", 500, nil, enosys},
		{"a number of the far future", 600, nil, eperm},
		{"a negative number", uintptr(any32), nil, eperm},
	}
}

func TestFilter_Table(t *testing.T) {
	u := func(v ...uint64) []uint64 { return v }
	for _, k := range []confine.Kind{{}, {NoSetID: true}, {Shared: true}, {NoSetID: true, Shared: true}} {
		m := load(t, k)
		m.check(t, always())
		for _, flag := range []uint64{
			unix.CLONE_NEWNS, unix.CLONE_NEWUSER, unix.CLONE_NEWNET, unix.CLONE_NEWPID, unix.CLONE_NEWIPC, unix.CLONE_NEWUTS, unix.CLONE_NEWCGROUP,
		} {
			m.check(t, []row{{"clone", unix.SYS_CLONE, u(flag | 17), eperm}, {"clone, high", unix.SYS_CLONE, u(flag | high), eperm}})
		}
		own := allow
		if k.Shared {
			own = eperm
		}
		m.check(t, []row{
			{"socket of unix", unix.SYS_SOCKET, u(unix.AF_UNIX, 1), own},
			{"socket of inet", unix.SYS_SOCKET, u(unix.AF_INET, 1), own},
			{"socket of inet6", unix.SYS_SOCKET, u(unix.AF_INET6, 2), own},
			{"netlink route", unix.SYS_SOCKET, u(unix.AF_NETLINK, 3, unix.NETLINK_ROUTE), own},
			{"pair of datagrams", unix.SYS_SOCKETPAIR, u(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC), own},
			{"ptrace", unix.SYS_PTRACE, nil, own},
			{"process_vm_readv", unix.SYS_PROCESS_VM_READV, nil, own},
			{"shmget", unix.SYS_SHMGET, nil, own},
			{"mq_open", unix.SYS_MQ_OPEN, nil, own},
		})
	}
}

func TestFilter_SetIDModes(t *testing.T) {
	u := func(v ...uint64) []uint64 { return v }
	plain, strict := load(t, confine.Kind{}), load(t, confine.Kind{NoSetID: true})
	both := func(want uint32, rows ...row) {
		for _, r := range rows {
			r.want = allow
			plain.check(t, []row{r})
			r.want = want
			strict.check(t, []row{r})
		}
	}
	for _, mode := range []uint64{0o4755, 0o2755, 0o6000, 0o4755 | high, 0o7777} {
		both(eperm,
			row{"fchmod", unix.SYS_FCHMOD, u(3, mode), 0},
			row{"fchmodat", unix.SYS_FCHMODAT, u(3, 1, mode), 0},
			row{"fchmodat2", unix.SYS_FCHMODAT2, u(3, 1, mode, 0), 0},
			row{"openat", unix.SYS_OPENAT, u(3, 1, unix.O_CREAT|unix.O_RDWR, mode), 0},
			row{"openat of a nameless file", unix.SYS_OPENAT, u(3, 1, unix.O_TMPFILE|unix.O_RDWR, mode), 0},
			row{"mkdirat", unix.SYS_MKDIRAT, u(3, 1, mode), 0},
			row{"mknodat", unix.SYS_MKNODAT, u(3, 1, unix.S_IFREG|mode, 0), 0},
		)
		both(allow,
			row{"openat for reading, where the mode is noise", unix.SYS_OPENAT, u(3, 1, unix.O_RDONLY|unix.O_DIRECTORY, mode), 0},
		)
	}
	for _, mode := range []uint64{0, 0o755, 0o1777, 0o600} {
		both(allow,
			row{"fchmod", unix.SYS_FCHMOD, u(3, mode), 0},
			row{"openat", unix.SYS_OPENAT, u(3, 1, unix.O_CREAT|unix.O_RDWR, mode), 0},
			row{"mknodat", unix.SYS_MKNODAT, u(3, 1, unix.S_IFIFO|mode, 0), 0},
		)
	}
	both(enosys, row{"openat2", unix.SYS_OPENAT2, nil, 0})
}

func TestFilter_RefusesOtherArchitectures(t *testing.T) {
	m := load(t, confine.Kind{})
	for _, arch := range []uint32{archI386, archArm, 0, here() ^ 1} {
		for _, nr := range []uintptr{0, 1, 3, 20, 39, 102, 288, 311} {
			require.Equal(t, eperm, m.run(t, arch, nr), "%x %d", arch, nr)
		}
	}
	if runtime.GOARCH != "amd64" {
		return
	}
	const x32 = 0x40000000
	for nr := range uintptr(548) {
		require.Equal(t, eperm, m.run(t, here(), x32|nr), "x32 %d", nr)
	}
	for nr := uintptr(512); nr < 548; nr++ {
		require.Equal(t, eperm, m.run(t, here(), nr), "x32's %d without its bit", nr)
	}
}

func TestInstall_RefusesWhatIsNoFilter(t *testing.T) {
	for _, b := range [][]byte{nil, {1, 2, 3}} {
		require.ErrorContains(t, confine.Install(b), "bytes")
	}
}
