package confine

import "golang.org/x/sys/unix"

// legacy lists the plain system calls that only this architecture has.
func legacy() []uintptr { return []uintptr{unix.SYS_FSTATAT} }

// modeArgs tells which argument is a file's mode.
func modeArgs() map[uintptr]int {
	return map[uintptr]int{
		unix.SYS_FCHMOD: 1, unix.SYS_FCHMODAT: 2, unix.SYS_FCHMODAT2: 2,
		unix.SYS_OPENAT: 3, unix.SYS_MKDIRAT: 2, unix.SYS_MKNODAT: 2,
	}
}

// openArgs tells which argument are the flags that say whether the mode counts.
func openArgs() map[uintptr]int { return map[uintptr]int{unix.SYS_OPENAT: 2} }
