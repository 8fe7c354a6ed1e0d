//go:build !amd64

package confine

// OtherABIs reports whether the kernel answers system calls of other
// architectures. A 64-bit process cannot make any here.
func OtherABIs() bool { return false }
