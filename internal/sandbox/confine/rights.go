package confine

import (
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// CloseFrom marks every descriptor from fd on to be closed by the next exec.
func CloseFrom(fd uint) error {
	return os.NewSyscallError("close_range", unix.CloseRange(fd, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC))
}

// Hide keeps other processes of the same user out of this one.
func Hide() error {
	return os.NewSyscallError("prctl PR_SET_DUMPABLE", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}

// NoNewPrivileges makes sure that no program gives this thread, or what it
// starts, rights that it does not have.
func NoNewPrivileges() error {
	return os.NewSyscallError("prctl PR_SET_NO_NEW_PRIVS", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
}

// DropInherited empties this thread's bounding and ambient sets: what it starts
// has no capabilities, except those that it hands on explicitly. It needs
// CAP_SETPCAP.
func DropInherited() error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl PR_CAP_AMBIENT", err)
	}
	for c := uintptr(0); ; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) && c > unix.CAP_AUDIT_READ {
			return nil // there are no more
		}
		if err != nil {
			return os.NewSyscallError(fmt.Sprintf("prctl PR_CAPBSET_DROP %d", c), err)
		}
	}
}

// DropCapabilities gives up all capabilities of all threads.
func DropCapabilities() error {
	if _, _, e := psx.Syscall6(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0, 0); e != 0 {
		return os.NewSyscallError("prctl PR_CAP_AMBIENT", e)
	}
	return capset()
}

// Limit sets resource limits, soft and hard.
func Limit(limits map[int]uint64) error {
	for res, v := range limits {
		if err := unix.Setrlimit(res, &unix.Rlimit{Cur: v, Max: v}); err != nil {
			return fmt.Errorf("set resource limit %d to %d: %w", res, v, err)
		}
	}
	return nil
}

// Landlock puts this thread, and what it starts, under the rules: files only, as
// far as the kernel can. no_new_privs must be set.
func Landlock(rules ...landlock.Rule) error {
	cfg := landlock.V9.BestEffort()
	cfg.HandledAccessNet, cfg.Scoped = 0, 0
	fd, flags, err := cfg.NewRulesetFD(rules...)
	if err != nil {
		return fmt.Errorf("make the landlock rules: %w", err)
	}
	if fd < 0 {
		return nil // the kernel has none; the namespaces stand without it
	}
	defer func() { _ = unix.Close(fd) }()
	if _, _, e := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(fd), uintptr(flags), 0); e != 0 {
		return os.NewSyscallError("landlock_restrict_self", e)
	}
	return nil
}
