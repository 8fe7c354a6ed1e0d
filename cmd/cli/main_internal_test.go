package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"rookery/internal/sandbox/backend"
	"rookery/internal/tool"
	"rookery/protocol"
)

func TestMain(m *testing.M) {
	backend.Main(tool.Ops())
	testscript.Main(m, map[string]func(){"rookery": func() { os.Exit(program()) }})
}

// settings give a test a machine of its own: home, store and broker.
func settings(home string) []string {
	return []string{
		"HOME=" + home, "XDG_RUNTIME_DIR=" + home + "/run", "XDG_CONFIG_HOME=", "XDG_DATA_HOME=", "XDG_STATE_HOME=", "XDG_CACHE_HOME=",
		"ROOKERY_EXIT_IDLE=1s", "ROOKERY_SANDBOX=none", "OPENAI_API_KEY=", "OPENAI_BASE_URL=", "NATS_URL=", "NATS_CREDS=", "NATS_CONTEXT=",
		"ROOKERY_MODEL=demo", "TZ=UTC",
	}
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			home := e.WorkDir + "/home"
			if err := os.MkdirAll(home+"/run", 0o700); err != nil {
				return err
			}
			e.Vars = append(e.Vars, settings(home)...)
			e.Defer(func() { awaitNoBroker(t, home) })
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"waitfor":   waitFor,
			"exits":     exits,
			"sessionid": sessionID,
			"mkbig": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(strings.Repeat("a", 800<<10)), 0o600))
			},
		},
	})
}

// waitFor is the script command that waits for a file.
func waitFor(ts *testscript.TestScript, _ bool, args []string) {
	if !eventually(func() bool { _, err := os.Stat(ts.MkAbs(args[0])); return err == nil }) {
		ts.Fatalf("%s never appeared", args[0])
	}
}

// sessionID is the script command that puts the id of the last session of ls --json
// into a variable.
func sessionID(ts *testscript.TestScript, _ bool, args []string) {
	lines := strings.Split(strings.TrimSpace(ts.ReadFile(args[0])), "\n")
	var e protocol.Entry
	ts.Check(protocol.Unmarshal([]byte(lines[len(lines)-1]), &e))
	ts.Setenv(args[1], string(e.Session))
}

// exits is the script command that runs a program and wants its exit status.
func exits(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	status := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		status = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if strconv.Itoa(status) != args[0] {
		ts.Fatalf("exit status %d, want %s", status, args[0])
	}
}

// eventually looks again and again, for a minute at most.
func eventually(ok func() bool) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-tick.C {
		if ok() {
			return true
		}
	}
	return false
}

// awaitNoBroker waits until the detached broker of a home has ended for being idle.
func awaitNoBroker(t *testing.T, home string) {
	t.Helper()
	gone := eventually(func() bool {
		files, err := filepath.Glob(home + "/run/rookery/*.json")
		return err == nil && len(files) == 0
	})
	if !gone {
		t.Errorf("a broker of %s is left", home)
	}
}
