// Package chaos_test kills processes, links and brokers of a real fleet and holds
// what is left against what is promised: every task ends once, every call has one
// fate, an effect that its output calls completed happened exactly once and no
// other more than once, and the trace keeps the rules.
//
// The deterministic cases kill at a named place (see internal/crash). The storm
// kills at random; its seed is printed and CHAOS_SEED plays it again, CHAOS_KILLS
// says how many kills there are.
package chaos_test

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"testing"
)

// binaries is where TestMain built the programs.
var binaries string

func TestMain(m *testing.M) {
	flag.Parse()
	// The cases wait for processes more than they compute.
	if err := flag.Set("test.parallel", "8"); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
	}
	code, err := withBinaries(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		code = 1
	}
	os.Exit(code)
}

// sources has the go command see what the programs are made of: without that it
// would take the result of a run with other programs for this one's.
func sources() error {
	var err error
	for _, root := range []string{"cmd", "internal", "protocol", "client"} {
		err = errors.Join(err, filepath.WalkDir(filepath.Join("..", "..", root), func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				_, err = os.Stat(path)
			}
			return err
		}))
	}
	return err
}

// raced reports that the tests run under the race detector, and so shall the programs.
func raced() bool {
	b, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(b.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

func withBinaries(run func() int) (code int, err error) {
	if err := sources(); err != nil {
		return 1, fmt.Errorf("look at the sources: %w", err)
	}
	dir, err := os.MkdirTemp("", "rookery-chaos-")
	if err != nil {
		return 1, fmt.Errorf("make a directory for the binaries: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	programs := map[string]string{
		"orchestrator": "rookery/cmd/orchestrator", "toolworker": "rookery/cmd/toolworker", "rookery": "rookery/cmd/cli",
		"nats-server": "github.com/nats-io/nats-server/v2",
	}
	errs := make(chan error, len(programs))
	var wg sync.WaitGroup
	for name, pkg := range programs {
		wg.Go(func() {
			out, err := exec.Command("go", "build", "-race="+strconv.FormatBool(raced()), "-o", filepath.Join(dir, name), pkg).CombinedOutput()
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
