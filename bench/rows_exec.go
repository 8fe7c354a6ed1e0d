package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"rookery/internal/bus"
	"rookery/protocol"
)

// exec compares what a sandbox costs in the programs that have one with what the
// kernel asks for all namespaces. The way over the broker is in it.
func (b *bench) exec(ctx context.Context) error {
	for _, p := range []struct {
		name, pkg  string
		start      func(ctx context.Context, path string) (*program, error)
		call, open float64
	}{
		{"toolworker", "rookery/cmd/toolworker", b.startWorker, 3, 7},
		{"rookery", "rookery/cmd/cli", b.startServe, 4.5, 10},
	} {
		path, err := b.binary(ctx, p.name, p.pkg)
		if err != nil {
			return err
		}
		w, err := p.start(ctx, path)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		err = b.boxed(ctx, w, p.name, p.call, p.open)
		w.stop()
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// A program is a process with a worker in it, and a connection to its broker.
type program struct {
	bus    *bus.Bus
	worker protocol.ID
	stop   func()
}

// startWorker starts toolworker beside a broker and an orchestrator of this process.
func (b *bench) startWorker(ctx context.Context, path string) (*program, error) {
	r, err := b.newRig(ctx, rigOptions{})
	if err != nil {
		return nil, err
	}
	if _, err := r.host(ctx, caller{}); err != nil {
		r.close()
		return nil, err
	}
	at := func(string) (string, string, string, error) { return r.srv.ClientURL(), "", "", nil }
	p, err := b.join(ctx, at, path, "--server", r.srv.ClientURL(), "--root", b.place(), "--soft-limits", "--sandbox", b.box)
	if err != nil {
		r.close()
		return nil, err
	}
	end := p.stop
	p.stop = func() { end(); r.close() }
	return p, nil
}

// startServe starts rookery serve, which is all in one.
func (b *bench) startServe(ctx context.Context, path string) (*program, error) {
	at := func(home string) (url, user, password string, err error) {
		found, _ := filepath.Glob(filepath.Join(home, "*", "broker-*.json"))
		if len(found) != 1 {
			return "", "", "", errors.New("no broker yet")
		}
		text, err := os.ReadFile(found[0])
		var broker struct{ URL, User, Password string }
		return broker.URL, broker.User, broker.Password, errors.Join(err, json.Unmarshal(text, &broker))
	}
	return b.join(ctx, at, path, "serve", "--listen", "127.0.0.1:0", "--sandbox", b.box)
}

// A whereabouts tells where the broker is of a program whose home is given.
type whereabouts func(home string) (url, user, password string, err error)

// join starts a program and waits for its worker.
func (b *bench) join(ctx context.Context, at whereabouts, path string, args ...string) (*program, error) {
	home := b.place()
	if err := os.MkdirAll(home, 0o700); err != nil {
		return nil, err
	}
	cmd := exec.Command(path, args...) //nolint:noctx // stop ends it
	cmd.Env = environment(home, "http://127.0.0.1:1", b.box)
	cmd.Dir, cmd.SysProcAttr = home, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &program{stop: func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err := p.connect(ctx, func() (string, string, string, error) { return at(home) }); err != nil {
		p.stop()
		return nil, fmt.Errorf("%w: %s", err, said.String())
	}
	return p, nil
}

// connect waits for the broker and a worker on it.
func (p *program) connect(ctx context.Context, at func() (url, user, password string, err error)) error {
	for {
		b, err := bus.Connect(ctx, bus.Options{Resolve: at})
		if err == nil {
			p.bus = b
			end := p.stop
			p.stop = func() { b.Close(); end() }
			break
		}
		if rest(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("connect: %w", err)
		}
	}
	for {
		all, err := p.bus.Workers(ctx)
		if err == nil && len(all) > 0 {
			p.worker = all[0].Worker
			return nil
		}
		if rest(ctx, 20*time.Millisecond) != nil {
			return errors.Join(err, errors.New("no worker signed on"))
		}
	}
}

// boxed opens sessions, and runs true in one that is open, in turns with unshare.
func (b *bench) boxed(ctx context.Context, p *program, name string, call, open float64) error {
	unshare, note, err := newUnshare(ctx)
	if err != nil {
		return err
	}
	results := make(chan *protocol.Result, 1)
	stop, err := p.bus.WatchCalls("x0", func(e bus.CallEvent) {
		if e.Result != nil {
			results <- e.Result
		}
	})
	if err != nil {
		return err
	}
	defer stop()
	var floor, opened, called Sample
	for i := range max(5, b.n(60)) {
		if err := unshare.run(ctx, &floor); err != nil {
			return err
		}
		if err := p.open(ctx, protocol.ID(fmt.Sprintf("x%d", i)), &opened); err != nil {
			return err
		}
	}
	for i := range max(5, b.n(200)) {
		if err := unshare.run(ctx, &floor); err != nil {
			return err
		}
		began := time.Now()
		if err := p.bus.Dispatch(ctx, bus.ToWorker(p.worker), protocol.Call{
			Session: "x0", Dispatch: fmt.Sprintf("%d-0-1", i+1), Key: "k", ToolCallID: "c", Tool: "exec_command", Arguments: `{"cmd":"true"}`,
		}); err != nil {
			return err
		}
		select {
		case r := <-results:
			if called.add(time.Since(began)); r.StopReason != protocol.Completed {
				return fmt.Errorf("exec_command: %s", r.Output)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	note += "; sandbox " + b.box
	row := func(kind, what string, s Sample, target float64) Row {
		return Row{
			Name: "exec." + kind + "." + name, What: what + ", " + name, Unit: "µs", Floor: floor.stat(), Ours: s.stat(), Note: note,
		}.over(target)
	}
	b.add(row("call", "exec_command true in an open session", called, call), row("open", "opening a session", opened, open))
	return nil
}

func (p *program) open(ctx context.Context, sid protocol.ID, s *Sample) error {
	began := time.Now()
	r, err := p.bus.Control(ctx, p.worker, "adopt", protocol.Control{Session: sid})
	if err == nil && !r.OK {
		err = errors.New(r.Error)
	}
	s.add(time.Since(began))
	return err
}

// An unshare runs true in new namespaces, as many as this user may have.
type unshare struct{ args []string }

func newUnshare(ctx context.Context) (u unshare, note string, err error) {
	all := []string{"--user", "--map-root-user", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "true"}
	if exec.CommandContext(ctx, "unshare", all...).Run() == nil {
		return unshare{all}, "floor: unshare of all namespaces", nil
	}
	u = unshare{[]string{"true"}}
	return u, "floor: unshare without namespaces, which this user may not have", u.run(ctx, new(Sample))
}

func (u unshare) run(ctx context.Context, s *Sample) error {
	began := time.Now()
	if err := exec.CommandContext(ctx, "unshare", u.args...).Run(); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	s.add(time.Since(began))
	return nil
}
