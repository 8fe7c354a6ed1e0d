package main

import (
	"context"
	"fmt"
	"io"

	"rookery/internal/host"
	"rookery/internal/sandbox/backend"
	"rookery/internal/tool"
)

// sandbox tells what confines commands here. Every sandbox is tried; only the one
// that is configured must work.
func (x *examination) sandbox(ctx context.Context) {
	x.head("sandbox (" + x.cfg.Sandbox + " is configured)")
	known := false
	for _, name := range backend.Names() {
		b, err := backend.New(name, tool.Ops(), backend.Options{SoftLimits: true})
		if err != nil {
			x.check(name, err)
			continue
		}
		report, err := b.Check(ctx)
		if c, ok := b.(io.Closer); ok {
			_ = c.Close() // its processes end with this one, too
		}
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
