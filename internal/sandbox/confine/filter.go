package confine

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"
)

// A Kind is one of the system call filters.
type Kind struct {
	// NoSetID refuses set-user-ID and set-group-ID modes.
	NoSetID bool
	// Shared is for a process that shares namespaces with the host: no sockets but
	// connected pairs, no look into other processes, no System V or POSIX queues.
	Shared bool
}

// Filter compiles the filter of a kind into what Install takes. That costs tens of
// milliseconds: compile once, pass the bytes on.
func Filter(k Kind) ([]byte, error) {
	ins, err := program(k)
	if err != nil {
		return nil, err
	}
	b := make([]byte, 0, 8*len(ins))
	for _, i := range ins {
		b = append(b, unsafe.Slice((*byte)(unsafe.Pointer(&i)), 8)...)
	}
	return b, nil
}

func program(k Kind) ([]bpf.Instruction, error) {
	allow := seccomp.NewSyscallRules()
	for _, nr := range append(plain(), legacy()...) {
		allow.Set(nr, seccomp.MatchAll{})
	}
	k.sockets(allow)
	k.modes(allow)
	k.processes(allow)
	for _, p := range []uintptr{0, 8, 0x20000, 0x20008, addrNoRandomize, 0xffffffff} {
		allow.Add(unix.SYS_PERSONALITY, args(seccomp.EqualTo(p)))
	}
	allow.Set(unix.SYS_IOCTL, seccomp.MatchAll{})

	refuse := seccomp.NewSyscallRules()
	for _, c := range []uintptr{unix.TIOCSTI, tiocLinux, unix.TIOCSETD} {
		// The kernel looks at 32 bits.
		refuse.Add(unix.SYS_IOCTL, args(seccomp.AnyValue{}, seccomp.MaskedEqual(0xffffffff, c)))
	}
	eperm, enosys := seccomp.ReturnError.Code(uint16(unix.EPERM)), seccomp.ReturnError.Code(uint16(unix.ENOSYS))
	p := seccomp.Program{
		RuleSets: []seccomp.RuleSet{
			{Rules: refuse, Action: eperm},
			{Rules: k.unknown(), Action: enosys},
			{Rules: allow, Action: seccomp.Allow},
		},
		Options: seccomp.ProgramOptions{DefaultAction: eperm, BadArchAction: eperm},
	}
	ins, _, err := p.Build()
	if err != nil {
		return nil, fmt.Errorf("compile the system call filter: %w", err)
	}
	return ins, nil
}

const (
	addrNoRandomize = 0x40000 // what debuggers ask for
	tiocLinux       = 0x541c
	setID           = unix.S_ISUID | unix.S_ISGID
	// makesFile are the flags of open with which its mode counts; O_TMPFILE
	// without O_DIRECTORY, which it includes.
	makesFile  = unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY
	namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
		unix.CLONE_NEWPID | unix.CLONE_NEWNET
)

func args(vs ...seccomp.ValueMatcher) seccomp.PerArg {
	var p seccomp.PerArg
	for i := range p {
		p[i] = seccomp.AnyValue{}
	}
	copy(p[:], vs)
	return p
}

func (k Kind) sockets(allow seccomp.SyscallRules) {
	unixFamily := seccomp.EqualTo(unix.AF_UNIX)
	if k.Shared {
		// A pair of datagram sockets could still be connected to somebody else.
		for _, t := range []uintptr{unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
			allow.Add(unix.SYS_SOCKETPAIR, args(unixFamily, seccomp.MaskedEqual(0xf, t)))
		}
		return
	}
	allow.Add(unix.SYS_SOCKETPAIR, args(unixFamily))
	for _, f := range []uintptr{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6} {
		allow.Add(unix.SYS_SOCKET, args(seccomp.EqualTo(f)))
	}
	allow.Add(unix.SYS_SOCKET, args(seccomp.EqualTo(unix.AF_NETLINK), seccomp.AnyValue{}, seccomp.EqualTo(unix.NETLINK_ROUTE)))
}

func (k Kind) processes(allow seccomp.SyscallRules) {
	allow.Add(unix.SYS_CLONE, args(seccomp.MaskedEqual(namespaces, 0)))
	if k.Shared {
		return
	}
	for _, nr := range []uintptr{
		unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV,
		unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_SHMDT, unix.SYS_SHMCTL, unix.SYS_MSGGET, unix.SYS_MSGSND, unix.SYS_MSGRCV,
		unix.SYS_MSGCTL, unix.SYS_SEMGET, unix.SYS_SEMOP, unix.SYS_SEMTIMEDOP, unix.SYS_SEMCTL,
		unix.SYS_MQ_OPEN, unix.SYS_MQ_UNLINK, unix.SYS_MQ_TIMEDSEND, unix.SYS_MQ_TIMEDRECEIVE, unix.SYS_MQ_NOTIFY, unix.SYS_MQ_GETSETATTR,
	} {
		allow.Set(nr, seccomp.MatchAll{})
	}
}

// modes allows what gives a file a mode.
func (k Kind) modes(allow seccomp.SyscallRules) {
	for nr, arg := range modeArgs() {
		if !k.NoSetID {
			allow.Set(nr, seccomp.MatchAll{})
			continue
		}
		p := args()
		p[arg] = seccomp.MaskedEqual(setID, 0)
		allow.Add(nr, p)
		if flags, ok := openArgs()[nr]; ok {
			p := args()
			p[flags] = seccomp.MaskedEqual(makesFile, 0)
			allow.Add(nr, p)
		}
	}
	if !k.NoSetID {
		allow.Set(unix.SYS_OPENAT2, seccomp.MatchAll{})
	}
}

// unknown is what programs must find missing, not forbidden, to do it another way:
// clone3 and, where modes count, openat2, whose arguments a filter cannot see; and
// what is newer than this list.
func (k Kind) unknown() seccomp.SyscallRules {
	r := seccomp.NewSyscallRules()
	r.Set(unix.SYS_CLONE3, seccomp.MatchAll{})
	if k.NoSetID {
		r.Set(unix.SYS_OPENAT2, seccomp.MatchAll{})
	}
	for nr := uintptr(newest + 1); nr < firstX32; nr++ {
		r.Set(nr, seccomp.MatchAll{})
	}
	return r
}

const (
	newest   = 471 // numbers above are not known here
	firstX32 = 512 // numbers from here to 547 belong to another architecture
)

// Install puts all threads of this process, and what they start, under a filter
// for good. no_new_privs must be set.
func Install(filter []byte) error {
	if len(filter) == 0 || len(filter)%8 != 0 {
		return fmt.Errorf("a system call filter has %d bytes", len(filter))
	}
	prog := unix.SockFprog{Len: uint16(len(filter) / 8), Filter: (*unix.SockFilter)(unsafe.Pointer(&filter[0]))}
	r, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if e != 0 {
		return os.NewSyscallError("seccomp", e)
	}
	if r != 0 {
		return fmt.Errorf("seccomp: thread %d could not be put under the filter", r)
	}
	return nil
}
