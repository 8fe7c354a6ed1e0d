package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"rookery/internal/bus"
	"rookery/internal/llm/llmtest"
	"rookery/protocol"
)

// binary builds one of the programs.
func (b *bench) binary(ctx context.Context, name, pkg string) (string, error) {
	path := filepath.Join(b.dir, name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	out, err := exec.CommandContext(ctx, "go", "build", "-o", path, pkg).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return path, nil
}

// environment is that of a user without configuration, whose model is at url.
func environment(home, url, box string) []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home, "XDG_RUNTIME_DIR=" + home,
		"OPENAI_BASE_URL=" + url, "OPENAI_API_KEY=k", "ROOKERY_MODEL=scripted", "ROOKERY_TITLE=false",
		"ROOKERY_SANDBOX=" + box, "ROOKERY_EXIT_IDLE=20s",
	}
}

// takeover kills the owner of a running task and waits for the first new record.
func (b *bench) takeover(ctx context.Context) error {
	path, err := b.binary(ctx, "orchestrator", "rookery/cmd/orchestrator")
	if err != nil {
		return err
	}
	for _, c := range []struct {
		name, what string
		signal     syscall.Signal
		target     float64
	}{
		{"takeover.kill", "takeover after kill -9, to the first new record", syscall.SIGKILL, 2000},
		{"takeover.stop", "the same after SIGTERM", syscall.SIGTERM, 300},
	} {
		s, err := b.takeovers(ctx, path, c.signal, max(2, b.n(5)))
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		row := Row{Name: c.name, What: c.what, Unit: "ms", Ours: s.stat(), Of: "ms", Target: c.target, Note: "processes; the endpoint answers after 400 ms"}
		row.Figure = row.Ours.Median
		b.add(row)
	}
	return nil
}

func (b *bench) takeovers(ctx context.Context, path string, signal syscall.Signal, n int) (Sample, error) {
	broker, err := b.spawn(roleBroker, b.place())
	if err != nil {
		return nil, err
	}
	defer broker.stop()
	endpoint, err := b.spawn(roleEndpoint, "")
	if err != nil {
		return nil, err
	}
	defer endpoint.stop()
	f := &fleet{bench: b, path: path, broker: broker.url, endpoint: endpoint.url}
	defer f.stop()
	for range 2 {
		if err := f.grow(); err != nil {
			return nil, err
		}
	}
	w, err := b.spawn(roleWorker, broker.url+" "+b.place())
	if err != nil {
		return nil, err
	}
	defer w.stop()
	r := &rig{bench: b}
	defer r.close()
	c, err := r.at(ctx, broker.url)
	if err != nil {
		return nil, err
	}
	conn, err := nats.Connect(broker.url)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var s Sample
	for i := range n {
		if err := rest(ctx, 2*time.Second); err != nil { // they know each other
			return nil, err
		}
		took, err := f.lose(ctx, c, conn, protocol.ID(fmt.Sprintf("t%d", i)), signal)
		if err != nil {
			return nil, err
		}
		s = append(s, float64(took)/float64(time.Millisecond))
	}
	return s, nil
}

// A fleet is some orchestrators as processes.
type fleet struct {
	bench                  *bench
	path, broker, endpoint string
	nodes                  map[protocol.ID]*exec.Cmd
	count                  int
}

// grow starts one more.
func (f *fleet) grow() error {
	home := f.bench.place()
	if err := os.MkdirAll(home, 0o700); err != nil {
		return err
	}
	f.count++
	node := protocol.ID(fmt.Sprintf("node%d", f.count))
	cmd := exec.Command(f.path) //nolint:noctx // stop ends it
	cmd.Env = append(environment(home, f.endpoint, "none"), "NATS_URL="+f.broker, "ROOKERY_NODE="+string(node))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if f.nodes == nil {
		f.nodes = map[protocol.ID]*exec.Cmd{}
	}
	f.nodes[node] = cmd
	return cmd.Start()
}

func (f *fleet) stop() {
	for _, cmd := range f.nodes {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// lose starts a task, signals its owner in the middle of it, and returns how long
// it takes until the successor's first record is seen. Another orchestrator comes
// for the one that went.
func (f *fleet) lose(ctx context.Context, c *bus.Bus, conn *nats.Conn, sid protocol.ID, signal syscall.Signal) (time.Duration, error) {
	seen := make(chan *nats.Msg, 1024)
	sub, err := conn.ChanSubscribe("rk.out."+string(sid)+".m.*", seen)
	if err != nil {
		return 0, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	p := plan{turns: 1000, tool: "nothing", args: "{}", delay: 400 * time.Millisecond}
	cmd := protocol.Command{ID: protocol.Token(6), Prompt: protocol.Payloads{protocol.UserText(p.String())}, Options: protocol.TaskOptions{Approve: "allow-all", MaxTurns: -1}}
	reply, err := c.Command(ctx, sid, protocol.VerbRun, cmd)
	if err != nil || !reply.Code.Accepted() {
		return 0, errors.Join(err, fmt.Errorf("run: %s %s", reply.Code, reply.Reason))
	}
	if err := rest(ctx, time.Second); err != nil {
		return 0, err
	}
	own, _, err := c.LastOwn(ctx, sid)
	if err != nil {
		return 0, err
	}
	owner := f.nodes[own.Node]
	if owner == nil {
		return 0, fmt.Errorf("owner %s is none of ours", own.Node)
	}
	began := time.Now()
	if err := owner.Process.Signal(signal); err != nil {
		return 0, err
	}
	took, err := firstOf(ctx, seen, own.Epoch, began)
	if err != nil {
		return 0, err
	}
	_ = owner.Process.Kill()
	_ = owner.Wait()
	delete(f.nodes, own.Node)
	_, err = c.Command(ctx, sid, protocol.VerbAbort, protocol.Command{ID: protocol.Token(6)})
	return took, errors.Join(err, f.grow())
}

// firstOf waits for the first record of a later owner that is not the own record.
func firstOf(ctx context.Context, seen <-chan *nats.Msg, epoch uint64, began time.Time) (time.Duration, error) {
	later := false
	for {
		select {
		case m := <-seen:
			if strings.HasSuffix(m.Subject, ".own") {
				var own protocol.Own
				later = protocol.Unmarshal(m.Data, &own) == nil && own.Epoch > epoch
				continue
			}
			if later {
				return time.Since(began), nil
			}
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// start measures from the start of rookery run to its first request.
func (b *bench) start(ctx context.Context) error {
	path, err := b.binary(ctx, "rookery", "rookery/cmd/cli")
	if err != nil {
		return err
	}
	asked := make(chan time.Time, 16)
	endpoint, err := llmtest.NewServer()
	if err != nil {
		return err
	}
	defer endpoint.Close()
	endpoint.Static(func([]byte) []byte {
		asked <- time.Now()
		return llmtest.Encode(llmtest.Text("done"), llmtest.Usage(1, 1))
	})
	var cold, warm Sample
	for range max(2, b.n(5)) {
		home := b.place()
		if err := os.MkdirAll(home, 0o700); err != nil {
			return err
		}
		for _, s := range []*Sample{&cold, &warm} {
			took, err := b.firstRequest(ctx, path, home, endpoint.URL, asked)
			if err != nil {
				return err
			}
			*s = append(*s, float64(took)/float64(time.Millisecond))
		}
	}
	row := func(name, what string, s Sample, target float64) Row {
		return Row{Name: name, What: what, Unit: "ms", Ours: s.stat(), Figure: s.quantile(0.5), Of: "ms", Target: target, Note: "sandbox " + b.box}
	}
	b.add(row("start.cold", "rookery run to the first request, broker cold", cold, 300), row("start.warm", "the same, broker warm", warm, 120))
	return nil
}

func (b *bench) firstRequest(ctx context.Context, path, home, url string, asked <-chan time.Time) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, path, "run", "--approve", "allow-all", "hello")
	cmd.Env, cmd.Dir = environment(home, url, b.box), b.dir
	work := filepath.Join(home, "work")
	if err := os.MkdirAll(work, 0o700); err != nil {
		return 0, err
	}
	cmd.Dir = work
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("rookery run: %w: %s", err, said.String())
	}
	select {
	case at := <-asked:
		return at.Sub(began), nil
	default:
		return 0, errors.New("rookery run asked nothing")
	}
}
