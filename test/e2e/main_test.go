// Package e2e_test runs the binaries as processes on loopback: what a user types,
// and what happens when one of them is killed. Every case ends in trace.Verify.
package e2e_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// binaries is where TestMain built the programs.
var binaries string

func TestMain(m *testing.M) {
	code, err := withBinaries(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func withBinaries(run func() int) (code int, err error) {
	dir, err := os.MkdirTemp("", "rookery-e2e-")
	if err != nil {
		return 1, fmt.Errorf("make a directory for the binaries: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	programs := map[string]string{
		"rookery": "rookery/cmd/cli", "orchestrator": "rookery/cmd/orchestrator", "toolworker": "rookery/cmd/toolworker",
		"nats-server": "github.com/nats-io/nats-server/v2",
	}
	errs := make(chan error, len(programs))
	var wg sync.WaitGroup
	for name, pkg := range programs {
		wg.Go(func() {
			out, err := exec.Command("go", "build", "-o", filepath.Join(dir, name), pkg).CombinedOutput()
			if err != nil {
				err = fmt.Errorf("build %s: %w\n%s", name, err, out)
			}
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	for e := range errs {
		err = errors.Join(err, e)
	}
	if err != nil {
		return 1, err
	}
	binaries = dir
	return run(), nil
}
