package sandbox

import (
	"fmt"
	"slices"
	"strings"
)

// DefaultPath is the PATH of a call unless SessionSpec.Env has another.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Environ returns the environment of a call: the fixed list every backend starts
// from, then each of more; a later entry replaces an earlier one of its name.
func Environ(home, tmp string, more ...[]string) []string {
	env := []string{
		"PATH=" + DefaultPath,
		"HOME=" + home,
		"TMPDIR=" + tmp,
		"LANG=C.UTF-8",
		"TERM=dumb",
		"PAGER=cat",
		"GIT_PAGER=cat",
		"GIT_TERMINAL_PROMPT=0",
	}
	for _, m := range more {
		for _, e := range m {
			env = Set(env, e)
		}
	}
	return env
}

// Set returns env with the entry NAME=value in it, once.
func Set(env []string, entry string) []string {
	name, _, _ := strings.Cut(entry, "=")
	i := slices.IndexFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
	if i < 0 {
		return append(env, entry)
	}
	env[i] = entry
	return env
}

// Get returns the value of a variable, empty without one.
func Get(env []string, name string) string {
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}
