package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"rookery/internal/bus"
	"rookery/internal/tool"
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
		err = errors.Join(b.boxed(ctx, w, p.name, p.call, p.open), b.reads(ctx, w, p.name), b.flood(ctx, w, p.name))
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
	pid    int
	stop   func()
	calls  int
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
	p := &program{pid: cmd.Process.Pid, stop: func() {
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
	const first = "x0"
	var floor, opened, called Sample
	if err := p.open(ctx, first, &opened); err != nil {
		return err
	}
	before, sessions := treeMemory(p.pid), max(5, b.n(64))
	for i := range sessions {
		if err := errors.Join(unshare.run(ctx, &floor), p.open(ctx, protocol.ID(fmt.Sprintf("x%d", i+1)), &opened)); err != nil {
			return err
		}
	}
	if err := rest(ctx, time.Second); err != nil { // what waits ahead in each is there
		return err
	}
	each := (treeMemory(p.pid) - before) / float64(sessions) / (1 << 20)
	c, err := p.caller(first)
	if err != nil {
		return err
	}
	defer c.stop()
	for range max(5, b.n(200)) {
		if err := errors.Join(unshare.run(ctx, &floor), c.call(ctx, p.worker, "exec_command", `{"cmd":"true"}`, &called)); err != nil {
			return err
		}
	}
	note += "; sandbox " + b.box
	row := func(kind, what string, s Sample, target float64) Row {
		return Row{
			Name: "exec." + kind + "." + name, What: what + ", " + name, Unit: "µs", Floor: floor.stat(), Ours: s.stat(), Note: note,
		}.over(target)
	}
	b.add(row("call", "exec_command true in an open session", called, call), row("open", "opening a session", opened, open), Row{
		Name: "exec.memory." + name, What: fmt.Sprintf("%d open sessions, each, %s", sessions, name), Unit: "MiB",
		Ours: single(each), Figure: each, Of: "MiB", Target: 6, Note: "all its processes, shared pages by parts; sandbox " + b.box,
	})
	return nil
}

// reads compares read_file with a call that the worker refuses for its arguments,
// which goes the same way and does not reach the sandbox.
func (b *bench) reads(ctx context.Context, p *program, name string) error {
	const sid = "reader"
	var floor, ours Sample
	c, err := p.session(ctx, sid)
	if err != nil {
		return err
	}
	defer c.stop()
	if err := c.call(ctx, p.worker, "write_file", `{"path":"f","content":"some words\n"}`, new(Sample)); err != nil {
		return err
	}
	for range max(20, b.n(1000)) {
		if err := c.call(ctx, p.worker, "read_file", "{}", &floor); !errors.Is(err, errRefused) {
			return errors.Join(errors.New("read_file took no arguments"), err)
		}
		if err := c.call(ctx, p.worker, "read_file", `{"path":"f"}`, &ours); err != nil {
			return err
		}
	}
	row := Row{Name: "exec.read." + name, What: "read_file in an open session, " + name, Unit: "µs", Floor: floor.stat(), Ours: ours.stat(), Of: "ms more", Target: 0.3, Note: "floor: a call that is refused for its arguments; sandbox " + b.box}
	row.Figure = (row.Ours.Median - row.Floor.Median) / 1000
	b.add(row)
	return nil
}

// flood watches the memory of a worker while commands print a GiB, as much each as
// one may before it is killed.
func (b *bench) flood(ctx context.Context, p *program, name string) error {
	const sid = "flood"
	var took Sample
	c, err := p.session(ctx, sid)
	if err != nil {
		return err
	}
	defer c.stop()
	overflow := func() error {
		err := c.call(ctx, p.worker, "exec_command", `{"cmd":"yes"}`, &took)
		if err == nil || !strings.Contains(err.Error(), "[output limit: killed after ") {
			return fmt.Errorf("yes was not killed for its output: %w", err)
		}
		return nil
	}
	if err := overflow(); err != nil { // what the first one brings stays
		return err
	}
	calls := max(1, b.n((1<<30)/tool.DefaultPrinted))
	before, done := resident(p.pid), make(chan error, 1)
	low, high := before, before
	go func() { // done is read below
		var err error
		for i := 0; i < calls && err == nil; i++ {
			err = overflow()
		}
		done <- err
	}()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ended := false; !ended; {
		select {
		case <-tick.C:
			now := resident(p.pid)
			low, high = min(low, now), max(high, now)
		case err := <-done:
			if err != nil {
				return err
			}
			ended = true
		}
	}
	swing := max(high-before, before-low) / (1 << 20)
	b.add(Row{
		Name: "exec.flood." + name, What: fmt.Sprintf("memory of %s while commands print %.1f GiB", name, float64(calls)*tool.DefaultPrinted/(1<<30)),
		Unit: "MiB", Ours: single(swing), Figure: swing, Of: "MiB from before", Target: 16,
		Note: fmt.Sprintf("resident, %.0f MiB before; %d commands, each killed at its output limit after %.0f ms", before/(1<<20), calls, took.quantile(0.5)/1000),
	})
	return nil
}

// errRefused reports a call that failed.
var errRefused = errors.New("call failed")

// A roundTripper makes calls of one session and waits for each.
type roundTripper struct {
	p       *program
	sid     protocol.ID
	results chan *protocol.Result
	stop    func()
}

// session opens one, for calls.
func (p *program) session(ctx context.Context, sid protocol.ID) (*roundTripper, error) {
	if err := p.open(ctx, sid, new(Sample)); err != nil {
		return nil, err
	}
	return p.caller(sid)
}

func (p *program) caller(sid protocol.ID) (*roundTripper, error) {
	c := &roundTripper{p: p, sid: sid, results: make(chan *protocol.Result, 1)}
	var err error
	c.stop, err = p.bus.WatchCalls(sid, func(e bus.CallEvent) {
		if e.Result != nil {
			c.results <- e.Result
		}
	})
	return c, err
}

func (c *roundTripper) call(ctx context.Context, wid protocol.ID, name, arguments string, s *Sample) error {
	c.p.calls++
	began := time.Now()
	if err := c.p.bus.Dispatch(ctx, bus.ToWorker(wid), protocol.Call{
		Session: c.sid, Dispatch: fmt.Sprintf("%d-0-1", c.p.calls), Key: "k", ToolCallID: "c", Tool: name, Arguments: arguments,
	}); err != nil {
		return err
	}
	select {
	case r := <-c.results:
		if s.add(time.Since(began)); r.StopReason != protocol.Completed {
			return fmt.Errorf("%w: %s: %s", errRefused, name, r.Output)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// treeMemory is what a process and all that came from it use, in bytes; a page that
// several share counts in parts.
func treeMemory(pid int) float64 {
	children := map[int][]int{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if id, err := strconv.Atoi(e.Name()); err == nil {
			children[parent(id)] = append(children[parent(id)], id)
		}
	}
	total, todo := 0.0, []int{pid}
	for len(todo) > 0 {
		id := todo[0]
		todo = append(todo[1:], children[id]...)
		total += proportional(id)
	}
	return total
}

// parent is 0 when the process is gone.
func parent(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0
	}
	id, _ := strconv.Atoi(fields[1])
	return id
}

func proportional(pid int) float64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	_, rest, _ := strings.Cut(string(text), "\nPss:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	kib, _ := strconv.ParseFloat(fields[0], 64)
	return kib * 1024
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
