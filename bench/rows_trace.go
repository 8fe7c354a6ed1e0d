package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rookery/internal/bus"
	"rookery/internal/session"
	"rookery/protocol"
)

// resume compares opening a session with reading its messages and doing nothing.
func (b *bench) resume(ctx context.Context) error {
	r, err := b.newRig(ctx, rigOptions{})
	if err != nil {
		return err
	}
	defer r.close()
	if _, err := r.host(ctx, caller{}); err != nil { // somebody has to take the worker
		return err
	}
	if err := r.worker(ctx, 2); err != nil {
		return err
	}
	curve := Series{Name: "resume", What: "Opening a session over its records", X: "records", Y: "ms"}
	raw, ours := Line{Name: "raw replay"}, Line{Name: "open"}
	sizes := []int{100, 1000, 10_000}
	if b.scale >= 1 {
		sizes = append(sizes, 100_000)
	}
	for _, n := range sizes {
		row, err := r.resumeOf(ctx, n)
		if err != nil {
			return fmt.Errorf("%d records: %w", n, err)
		}
		raw.add(float64(n), row.Floor.Median/1000)
		ours.add(float64(n), row.Ours.Median/1000)
		row = row.over(0)
		if n == 10_000 {
			row.Target = 1.5
		}
		b.add(row)
	}
	curve.Lines = []Line{raw, ours}
	b.draw(curve)
	return nil
}

func (r *rig) resumeOf(ctx context.Context, records int) (Row, error) {
	sid := protocol.ID(fmt.Sprintf("r%d", records))
	c, err := r.bus(ctx)
	if err != nil {
		return Row{}, err
	}
	if err := writeTrace(ctx, c, sid, records); err != nil {
		return Row{}, err
	}
	if err := place(ctx, c, sid); err != nil {
		return Row{}, err
	}
	conn, err := r.raw()
	if err != nil {
		return Row{}, err
	}
	row := Row{Name: fmt.Sprintf("resume.%d", records), What: fmt.Sprintf("opening a session of %d records", records), Unit: "µs", Note: "fold and ownership included"}
	var floor, ours Sample
	for range max(3, r.bench.n(8)) {
		took, err := replay(ctx, conn, sid)
		if err != nil {
			return row, err
		}
		floor.add(took)
		if took, err = r.open(ctx, sid); err != nil {
			return row, err
		}
		ours.add(took)
	}
	row.Floor, row.Ours = floor.stat(), ours.stat()
	return row, nil
}

// place gives the session a workspace.
func place(ctx context.Context, c *bus.Bus, sid protocol.ID) error {
	ws, err := c.Workers(ctx)
	if err != nil || len(ws) == 0 {
		return errors.Join(err, errors.New("no worker"))
	}
	_, err = c.PutWorkspace(ctx, sid, protocol.WorkspaceRef{Worker: ws[0].Worker, Host: ws[0].Host}, 0)
	return err
}

// open has a fresh orchestrator open the session.
func (r *rig) open(ctx context.Context, sid protocol.ID) (time.Duration, error) {
	node := protocol.ID("o-" + protocol.Token(4))
	stop, err := r.host(ctx, caller{}, func(c *session.Config) { c.Node = node })
	if err != nil {
		return 0, err
	}
	defer stop()
	c, err := r.bus(ctx)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	began := time.Now()
	reply, err := c.CommandAt(ctx, node, sid, protocol.VerbTitle, protocol.Command{ID: protocol.Token(6), Text: "t"})
	took := time.Since(began)
	if err == nil && !reply.Code.Accepted() {
		err = fmt.Errorf("%s: %s", reply.Code, reply.Reason)
	}
	return took, err
}

// writeTrace stores a session as turns of one call would have left it.
func writeTrace(ctx context.Context, c *bus.Bus, sid protocol.ID, records int) error {
	log, err := c.OpenLog(ctx, sid, "o-0", "b0")
	if err != nil {
		return err
	}
	state := json.RawMessage(`{"model":"m","pool":"default"}`)
	put := func(private bool, ps ...protocol.Payload) {
		if err != nil {
			return
		}
		ms := make([]protocol.Message, len(ps))
		for i, p := range ps {
			ms[i] = protocol.New(p)
		}
		_, err = log.Append(ctx, 1, private, ms)
	}
	put(true, protocol.SessionMeta{SessionID: string(sid), AgentState: state})
	put(false, protocol.TaskBegin{TaskID: "t", Of: "run"}, protocol.UserText("read it"))
	for n := 3; n < records-1 && err == nil; n += 7 {
		id := fmt.Sprintf("call-%d", n)
		put(false, protocol.RequestBegin{})
		put(false, protocol.ToolCall{Role: protocol.Assistant, Name: "read_file", Arguments: `{"path":"README.md"}`, ToolCallID: id, StopReason: protocol.Completed},
			protocol.ApprovalDecision{Decision: protocol.Allow, ToolCallID: id, By: "policy", Reason: "allow-all"},
			protocol.CallDispatched{ToolCallID: id, Attempt: 1, Destination: "w.w1"})
		put(false, protocol.TokenUsage{Session: protocol.Usage{Total: int64(n)}}, protocol.RequestEnd{Status: protocol.Completed})
		put(false, protocol.ToolCallOutput{Role: protocol.User, Output: strings.Repeat(readmeText, 4), ToolCallID: id, StopReason: protocol.Completed})
	}
	put(false, protocol.TaskEnd{TaskID: "t", Status: protocol.TaskCompleted})
	return err
}

// replay reads a session's messages in batches and looks at none.
func replay(ctx context.Context, c *nats.Conn, sid protocol.ID) (time.Duration, error) {
	inbox := c.NewInbox()
	got := make(chan *nats.Msg, 2048)
	s, err := c.ChanSubscribe(inbox, got)
	if err != nil {
		return 0, err
	}
	defer func() { _ = s.Unsubscribe() }()
	began := time.Now()
	for from := uint64(1); ; {
		body, err := json.Marshal(map[string]any{"seq": from, "next_by_subj": "rk.trace." + string(sid) + ".>", "batch": 512, "max_bytes": 2 << 20})
		if err != nil {
			return 0, err
		}
		if err := c.PublishRequest("$JS.API.DIRECT.GET.TRACE", inbox, body); err != nil {
			return 0, err
		}
		left, next, err := batchEnd(ctx, got)
		if err != nil {
			return 0, err
		}
		if left == "0" || next == 0 {
			return time.Since(began), nil
		}
		from = next
	}
}

// batchEnd reads one batch.
func batchEnd(ctx context.Context, got <-chan *nats.Msg) (left string, next uint64, err error) {
	for {
		select {
		case m := <-got:
			switch m.Header.Get("Status") {
			case "":
				if _, err := fmt.Sscan(m.Header.Get("Nats-Sequence"), &next); err != nil {
					return "", 0, err
				}
				next++
			case "204":
				return m.Header.Get("Nats-Num-Pending"), next, nil
			default:
				return "", 0, errors.New("replay: " + m.Header.Get("Description"))
			}
		case <-ctx.Done():
			return "", 0, ctx.Err()
		}
	}
}

// idle opens many sessions on one orchestrator. Broker and worker are processes
// of their own, so that what this process grows by is the orchestrator's.
func (b *bench) idle(ctx context.Context) error {
	n := b.n(10_000)
	broker, err := b.spawn(roleBroker, b.place())
	if err != nil {
		return err
	}
	defer broker.stop()
	r := &rig{bench: b}
	defer r.close()
	c, err := r.at(ctx, broker.url)
	if err != nil {
		return err
	}
	if err := c.Setup(ctx, bus.StoreOptions{MaxStore: 4 << 30}); err != nil {
		return err
	}
	own, err := r.at(ctx, broker.url)
	if err != nil {
		return err
	}
	if _, err := r.hostOn(ctx, own, caller{}); err != nil {
		return err
	}
	for range 2 { // an open session holds files of its worker
		w, err := b.spawn(roleWorker, broker.url+" "+b.place())
		if err != nil {
			return err
		}
		defer w.stop()
	}
	e, err := endsAt(r, broker.url)
	if err != nil {
		return err
	}
	return b.idleRows(ctx, n, func(from, to int) error {
		return parallel(to-from, func(i int) error {
			_, err := e.run(ctx, c, protocol.ID(fmt.Sprintf("i%d", from+i)), "hello")
			return err
		})
	}, broker)
}

// idleRows measures around opening sessions 0..n-1, the first few apart, because
// they bring what all share.
func (b *bench) idleRows(ctx context.Context, n int, open func(from, to int) error, broker *process) error {
	const first = 64
	if err := open(0, first); err != nil {
		return err
	}
	if err := rest(ctx, time.Second); err != nil {
		return err
	}
	memory, routines, server, began := inUse(), runtime.NumGoroutine(), resident(broker.cmd.Process.Pid), time.Now()
	if err := open(first, first+n); err != nil {
		return err
	}
	took := time.Since(began)
	if err := rest(ctx, time.Second); err != nil { // clerks write their last lines
		return err
	}
	per := (inUse() - memory) / float64(n) / 1024
	b.add(
		Row{Name: "idle.memory", What: fmt.Sprintf("%d open idle sessions on one orchestrator, each", n), Unit: "KiB", Ours: single(per), Figure: per, Of: "KiB", Target: 30, Note: "heap and stacks of the orchestrator"},
		Row{Name: "idle.goroutines", What: "goroutines of an open idle session", Unit: "goroutines", Ours: single(float64(runtime.NumGoroutine()-routines) / float64(n))},
		Row{Name: "idle.broker", What: "the broker's memory for it", Unit: "KiB", Ours: single((resident(broker.cmd.Process.Pid) - server) / float64(n) / 1024), Note: "resident; five records and three subscriptions each"},
		Row{Name: "idle.open", What: "opening them, task of one turn included", Unit: "sessions/s", Ours: single(float64(n) / took.Seconds())},
	)
	return nil
}

// running has many sessions wait for a slow endpoint.
func (b *bench) running(ctx context.Context) error {
	s, err := b.newStage(ctx, 32, "none") // as many sandboxes are another row
	if err != nil {
		return err
	}
	defer s.close()
	n := b.n(1000)
	const turns = 3
	p := s.plan
	p.turns, p.delay = turns, 2*time.Second
	one, err := s.overheads(ctx, p, "one", 1, 3, func() {})
	if err != nil {
		return err
	}
	before, cpu := s.burden(ctx), usage()
	var held burden
	many, err := s.overheads(ctx, p, "many", n, 1, func() { held = s.burden(ctx) })
	if err != nil {
		return err
	}
	cpu = usage() - cpu
	row := Row{
		Name: "running.overhead", What: fmt.Sprintf("%d running sessions, endpoint answers after 2 s: a turn beyond that", n), Unit: "µs",
		Floor: one.stat(), Ours: many.stat(), Of: "p99 × one's", Target: 10, Note: "sandbox none; floor: one session",
	}
	row.Figure = ratio(row.Ours.P99, row.Floor.Median)
	per := func(name, what, unit string, before, held float64) Row {
		return Row{Name: "running." + name, What: what, Unit: unit, Ours: single((held - before) / float64(n)), Note: "orchestrator, worker and broker together; sandbox none"}
	}
	b.add(row,
		per("memory", "memory of a running session", "KiB", before.memory/1024, held.memory/1024),
		per("goroutines", "goroutines of a running session", "goroutines", before.goroutines, held.goroutines),
		per("consumers", "consumers of a running session, - is none", "consumers", before.consumers, held.consumers),
		per("subscriptions", "subscriptions of a running session", "subscriptions", before.subscriptions, held.subscriptions),
		per("cpu", "processor time of a turn, session and workspace included", "µs", 0, micros(cpu)/float64(turns+1)))
	return nil
}

// A burden is what this process and its broker hold.
type burden struct{ memory, goroutines, consumers, subscriptions float64 }

func (r *rig) burden(ctx context.Context) burden {
	u := burden{memory: inUse(), goroutines: float64(runtime.NumGoroutine()), subscriptions: float64(r.srv.Subscriptions())}
	c, err := r.raw()
	if err != nil {
		return u
	}
	defer c.Close()
	if js, err := jetstream.New(c); err == nil {
		if info, err := js.AccountInfo(ctx); err == nil {
			u.consumers = float64(info.Consumers)
		}
	}
	return u
}

// overheads runs n sessions at once, some times, and returns for each task the time
// of a turn that is not the endpoint's. It calls meanwhile when all have begun.
func (s *stage) overheads(ctx context.Context, p plan, name string, n, times int, meanwhile func()) (Sample, error) {
	ids := make([]protocol.ID, n)
	if err := parallel(n, func(i int) error {
		ids[i] = protocol.ID(fmt.Sprintf("%s%d", name, i))
		return s.session(ctx, ids[i])
	}); err != nil {
		return nil, err
	}
	var all Sample
	for range times {
		took := make([]time.Duration, n)
		errs := make(chan error, n)
		for i := range n {
			go func() {
				var err error
				took[i], err = s.ends.run(ctx, s.asker, ids[i], p.String())
				errs <- err
			}()
			_ = rest(ctx, p.delay/time.Duration(n)) // people do not start all at once
		}
		meanwhile()
		var err error
		for range n {
			err = errors.Join(err, <-errs)
		}
		if err != nil {
			return nil, err
		}
		for _, d := range took {
			all.add((d - time.Duration(p.turns+1)*p.delay) / time.Duration(p.turns+1))
		}
	}
	return all, nil
}
