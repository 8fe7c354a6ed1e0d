package main

import (
	"context"
	"fmt"

	"rookery/internal/host"
	"rookery/internal/sandbox"
	"rookery/internal/tool"
)

// backends are the sandboxes of this program.
func backends() []sandbox.Backend {
	return []sandbox.Backend{sandbox.NewNone(tool.Ops())}
}

// sandbox tells what confines commands here. Every sandbox is tried; only the one
// that is configured must work.
func (x *examination) sandbox(ctx context.Context) {
	x.head("sandbox (" + x.cfg.Sandbox + " is configured)")
	known := false
	for _, b := range backends() {
		report, err := b.Check(ctx)
		switch {
		case b.Name() == x.cfg.Sandbox:
			known = true
			x.check(b.Name(), err)
		case err != nil:
			x.line("no   %s: %s", b.Name(), joined(err))
		default:
			x.line("ok   %s", b.Name())
		}
		for _, line := range report.Lines {
			x.line("     %s", line)
		}
		if report.Warning != "" {
			x.line("     %s", report.Warning)
		}
	}
	if !known {
		x.check(x.cfg.Sandbox, fmt.Errorf("%w: %s", host.ErrSandbox, x.cfg.Sandbox))
	}
}
