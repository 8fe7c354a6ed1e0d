package host

import (
	"fmt"
	"net/url"
	"strings"

	"golang.org/x/sys/unix"
)

// Harden keeps other processes of the user, such as a tool that runs without a
// sandbox, from reading this one's memory and environment, and keeps its
// secrets out of core dumps. Every command calls it first.
func Harden() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("close this process to others: %w", err)
	}
	return nil
}

// redact shows URLs without their passwords.
func redact(urls []string) string {
	shown := make([]string, len(urls))
	for i, s := range urls {
		u, err := url.Parse(s)
		if err != nil {
			shown[i] = "(an address that is no URL)"
			continue
		}
		shown[i] = u.Redacted()
	}
	return strings.Join(shown, ", ")
}
