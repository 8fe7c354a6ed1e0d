package confine

import "golang.org/x/sys/unix"

// otherABI makes a system call of the 32-bit architecture and returns its result.
// It may end the process.
func otherABI() uintptr

// OtherABIs reports whether the kernel answers system calls of other architectures.
// Trying may end the process, which is no answer: try in one of your own.
func OtherABIs() bool {
	const x32 = 0x40000000
	if _, _, e := unix.RawSyscall(x32|unix.SYS_GETPID, 0, 0, 0); e == 0 {
		return true
	}
	return int32(otherABI()) > 0
}
