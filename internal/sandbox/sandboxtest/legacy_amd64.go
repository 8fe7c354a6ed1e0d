package sandboxtest

import "golang.org/x/sys/unix"

// legacyModes are system calls with a mode that newer architectures do not have.
func legacyModes() map[string]uintptr {
	return map[string]uintptr{"chmod": unix.SYS_CHMOD, "open": unix.SYS_OPEN, "creat": unix.SYS_CREAT, "mkdir": unix.SYS_MKDIR, "mknod": unix.SYS_MKNOD}
}

// legacyCalls are system calls of this architecture that nobody in a session needs.
func legacyCalls() map[string]uintptr {
	return map[string]uintptr{
		"iopl": unix.SYS_IOPL, "ioperm": unix.SYS_IOPERM, "modify_ldt": unix.SYS_MODIFY_LDT, "uselib": unix.SYS_USELIB, "ustat": unix.SYS_USTAT,
		"sysfs": unix.SYS_SYSFS, "_sysctl": unix.SYS__SYSCTL, "create_module": unix.SYS_CREATE_MODULE, "kexec_file_load": unix.SYS_KEXEC_FILE_LOAD,
	}
}
