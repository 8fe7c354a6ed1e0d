package confine

import "golang.org/x/sys/unix"

// legacy lists the plain system calls that only this architecture has.
func legacy() []uintptr {
	return []uintptr{
		unix.SYS_ACCESS, unix.SYS_ALARM, unix.SYS_ARCH_PRCTL, unix.SYS_CHOWN, unix.SYS_DUP2, unix.SYS_EPOLL_CREATE, unix.SYS_EPOLL_WAIT,
		unix.SYS_EVENTFD, unix.SYS_FORK, unix.SYS_FUTIMESAT, unix.SYS_GETDENTS, unix.SYS_GETPGRP, unix.SYS_GET_THREAD_AREA,
		unix.SYS_INOTIFY_INIT, unix.SYS_LCHOWN, unix.SYS_LINK, unix.SYS_LSTAT, unix.SYS_NEWFSTATAT, unix.SYS_PAUSE, unix.SYS_PIPE,
		unix.SYS_POLL, unix.SYS_READLINK, unix.SYS_RENAME, unix.SYS_RMDIR, unix.SYS_SELECT, unix.SYS_SET_THREAD_AREA, unix.SYS_SIGNALFD,
		unix.SYS_STAT, unix.SYS_SYMLINK, unix.SYS_TIME, unix.SYS_UNLINK, unix.SYS_UTIME, unix.SYS_UTIMES, unix.SYS_VFORK,
	}
}

// modeArgs tells which argument is a file's mode.
func modeArgs() map[uintptr]int {
	return map[uintptr]int{
		unix.SYS_CHMOD: 1, unix.SYS_FCHMOD: 1, unix.SYS_FCHMODAT: 2, unix.SYS_FCHMODAT2: 2,
		unix.SYS_OPEN: 2, unix.SYS_OPENAT: 3, unix.SYS_CREAT: 1,
		unix.SYS_MKDIR: 1, unix.SYS_MKDIRAT: 2, unix.SYS_MKNOD: 1, unix.SYS_MKNODAT: 2,
	}
}

// openArgs tells which argument are the flags that say whether the mode counts.
func openArgs() map[uintptr]int {
	return map[uintptr]int{unix.SYS_OPEN: 1, unix.SYS_OPENAT: 2}
}
