package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"rookery/internal/sandbox"
)

// The limits of the self-test's calls, and what their commands need.
const (
	checkTimeout = 10 * time.Second
	checkMemory  = 32 << 20
	checkPids    = 24
)

// Check implements sandbox.Backend: it opens a session and tries to leave it, and to
// exceed its limits.
func (n *Native) Check(ctx context.Context) (sandbox.Report, error) {
	report := sandbox.Report{Backend: n.Name()}
	t, err := n.newTrial(ctx)
	if err != nil {
		return report, err
	}
	defer t.close()
	lines, err := t.run(ctx)
	report.Lines = lines
	if err == nil && t.session.soft {
		report.Lines = append(report.Lines, "limits on memory and processes are watched, not enforced")
		report.Warning = "sandbox native: no control groups here; limits are watched, not enforced"
	}
	return report, err
}

// A trial is a session with things of the host around it that it must not reach.
type trial struct {
	dir     string
	session *session
	port    net.Listener
	socket  net.Listener
}

func (n *Native) newTrial(ctx context.Context) (t *trial, err error) {
	t = &trial{}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	if t.dir, err = os.MkdirTemp("", "rookery-check-"); err != nil {
		return t, fmt.Errorf("make a directory for the check: %w (is the temporary directory writable?)", err)
	}
	spec := sandbox.SessionSpec{ID: "check-" + filepath.Base(t.dir), Workspace: filepath.Join(t.dir, "w"), Scratch: filepath.Join(t.dir, "s", "s")}
	if err := errors.Join(os.Mkdir(spec.Workspace, 0o700), os.MkdirAll(spec.Scratch, 0o700), os.WriteFile(t.canary(), nil, 0o600)); err != nil {
		return t, fmt.Errorf("make the check's directories: %w", err)
	}
	var config net.ListenConfig
	if t.port, err = config.Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return t, fmt.Errorf("listen for the check: %w", err)
	}
	if t.socket, err = config.Listen(ctx, "unix", "@"+filepath.Base(t.dir)); err != nil {
		return t, fmt.Errorf("listen for the check: %w", err)
	}
	opened, err := n.Open(ctx, spec)
	if err != nil {
		return t, err
	}
	t.session = opened.(*session) //nolint:forcetypeassert // Open makes no other
	return t, nil
}

func (t *trial) canary() string { return filepath.Join(t.dir, "canary") }

func (t *trial) close() {
	if t.session != nil {
		_ = t.session.Close() // what is left is swept
	}
	for _, l := range []net.Listener{t.port, t.socket} {
		if l != nil {
			_ = l.Close()
		}
	}
	if t.dir != "" {
		_ = os.RemoveAll(t.dir)
	}
}

// run makes the trials at once: a worker's start waits for them.
func (t *trial) run(ctx context.Context) (lines []string, err error) {
	var (
		wg   sync.WaitGroup
		errs [3]error
	)
	wg.Go(func() { lines, errs[0] = t.rights(ctx) })
	wg.Go(func() { errs[1] = t.memory(ctx) })
	wg.Go(func() { errs[2] = t.forks(ctx) })
	wg.Wait()
	if errs[1] == nil {
		lines = append(lines, "a call that takes too much memory is killed")
	}
	if errs[2] == nil {
		lines = append(lines, "a call cannot start processes without end")
	}
	if err := errors.Join(errs[:]...); err != nil {
		return lines, fmt.Errorf("the sandbox native does not hold here: %w", err)
	}
	return lines, nil
}

func (t *trial) rights(ctx context.Context) ([]string, error) {
	_, port, err := net.SplitHostPort(t.port.Addr().String())
	if err != nil {
		return nil, err
	}
	if err := os.Setenv(envCanaryEnv, "1"); err != nil {
		return nil, fmt.Errorf("set a variable for the check: %w", err)
	}
	defer func() { _ = os.Unsetenv(envCanaryEnv) }()
	out, r, err := t.call(ctx, true, sandbox.CallSpec{Argv: []string{marker, "probe"}, Env: []string{
		envCanaryFile + "=" + t.canary(), envCanaryPort + "=" + port, envCanarySocket + "=" + t.socket.Addr().String(),
	}})
	if err != nil {
		return nil, err
	}
	var found []finding
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		return nil, fmt.Errorf("the prober ended with %d (%s) and said %.200q: %w", r.Exit, r.Reason, out, err)
	}
	var lines []string
	var errs []error
	for _, f := range found {
		if f.Leak == "" {
			lines = append(lines, f.What)
		} else {
			errs = append(errs, fmt.Errorf("not so: %s: %s", f.What, f.Leak))
		}
	}
	return lines, errors.Join(errs...)
}

func (t *trial) memory(ctx context.Context) error {
	_, r, err := t.call(ctx, true, sandbox.CallSpec{
		Argv: []string{marker, "probe"}, Env: []string{envProbe + "=memory"}, Limits: &sandbox.Limits{Memory: checkMemory},
	})
	if err != nil {
		return err
	}
	if r.Reason != sandbox.OutOfMemory {
		return fmt.Errorf("a call that takes 1 GiB, and may have %d MiB, ended with reason %s", checkMemory>>20, r.Reason)
	}
	return nil
}

func (t *trial) forks(ctx context.Context) error {
	tries := 2 * checkPids
	if t.session.soft {
		tries += 2 * extraPids
	}
	out, r, err := t.call(ctx, false, sandbox.CallSpec{
		Argv:   []string{"sh", "-c", "mkfifo /tmp/check; exec 3<>/tmp/check; i=0; while [ $i -lt " + strconv.Itoa(tries) + " ]; do read x <&3 & i=$((i+1)); done; echo all"},
		Limits: &sandbox.Limits{Pids: checkPids},
	})
	if err != nil {
		return err
	}
	if r.Exit == 0 || strings.HasSuffix(out, "all\n") {
		return fmt.Errorf("a call started %d processes, and may have %d", tries, checkPids)
	}
	return nil
}

func (t *trial) call(ctx context.Context, probe bool, spec sandbox.CallSpec) (string, sandbox.Result, error) {
	spec.Merge, spec.Timeout = true, checkTimeout
	c, err := t.session.start(ctx, spec, probe)
	if err != nil {
		return "", sandbox.Result{}, err
	}
	stop := context.AfterFunc(ctx, func() { c.Kill(sandbox.Killed) })
	defer stop()
	out, _ := c.Output()
	text, err := io.ReadAll(out)
	if err != nil {
		return "", sandbox.Result{}, err
	}
	r, err := c.Wait()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return string(text), r, err
}
