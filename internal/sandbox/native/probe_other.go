//go:build !amd64

package native

// otherABIs reports whether the kernel answers system calls of other
// architectures. A 64-bit process cannot make any here.
func otherABIs() bool { return false }
