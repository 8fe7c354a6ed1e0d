package backend

import (
	"errors"
	"fmt"
	"strings"

	"rookery/internal/sandbox"
	"rookery/internal/sandbox/landlock"
	"rookery/internal/sandbox/native"
)

// ErrUnknown reports a sandbox that this program does not have.
var ErrUnknown = errors.New("no such sandbox")

// Options are what an operator may choose beside the name.
type Options struct {
	// SoftLimits accepts limits that are watched instead of enforced.
	SoftLimits bool
}

// Names lists the backends, the default first.
func Names() []string { return []string{"native", "landlock", "none"} }

// New makes the backend of that name, which can run the given operations. There is
// no fallback to another one. Its error wraps ErrUnknown.
func New(name string, ops sandbox.Ops, o Options) (sandbox.Backend, error) {
	switch name {
	case "native":
		return native.New(ops, native.Options{SoftLimits: o.SoftLimits}), nil
	case "landlock":
		return landlock.New(ops), nil
	case "none":
		return sandbox.NewNone(ops), nil
	}
	return nil, fmt.Errorf("%w: %s (there are %s)", ErrUnknown, name, strings.Join(Names(), ", "))
}

// Main returns at once unless this process is a child of a sandbox, whose work it
// then does. Programs that call New call it first thing, with the same operations.
func Main(ops sandbox.Ops) {
	native.Main(ops)
	landlock.Main(ops)
}
