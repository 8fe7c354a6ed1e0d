package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"rookery/internal/bus"
	"rookery/protocol"
)

// askWorker is how long a worker may take to tell its state.
const askWorker = 2 * time.Second

func (a *app) statusCommand() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use: "status", Short: "Show orchestrators, workers, queues and running sessions", Args: args(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.fleet(cmd.Context(), asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write it as one JSON object")
	return cmd
}

// A fleet is who lives on a broker and what they do.
type fleet struct {
	Orchestrators []nodeState      `json:"orchestrators"`
	Workers       []workerState    `json:"workers"`
	Queues        []bus.Queue      `json:"queues"`
	Running       []protocol.Entry `json:"running"`
	Sessions      int              `json:"sessions"`
	OpenCalls     int              `json:"open_calls"` // that run on a worker or wait for one, see open
}

type nodeState struct {
	bus.Lease
	Running int `json:"running"` // sessions of its that work
}

type workerState struct {
	protocol.WorkerInfo
	// State is nil when the worker did not tell it in time.
	State *protocol.Heartbeat `json:"state,omitempty"`
}

func (l *link) fleet(ctx context.Context) (fleet, error) {
	var f fleet
	leases, err := l.bus.Leases(ctx)
	if err != nil {
		return f, err
	}
	if f.Workers, err = l.workers(ctx, leases); err != nil {
		return f, err
	}
	for e, err := range l.List(ctx) {
		if err != nil {
			return f, err
		}
		if f.Sessions++; e.State != protocol.StateIdle {
			f.Running = append(f.Running, e)
		}
	}
	for _, lease := range leases {
		if lease.Kind == bus.LeaseOrchestrator {
			f.Orchestrators = append(f.Orchestrators, nodeState{lease, f.owned(lease.ID)})
		}
	}
	if f.Queues, err = l.bus.Queues(ctx); err != nil {
		return f, err
	}
	f.OpenCalls = f.open()
	return f, nil
}

// open counts the calls that wait for a worker or run on one. A worker
// acknowledges a call shortly after it has begun it, so one that is given may be
// among the running ones already and is not counted twice.
func (f fleet) open() int {
	var waiting, given, running int
	for _, q := range f.Queues {
		waiting += int(q.Waiting) //nolint:gosec // far below
		given += q.Given
	}
	for _, w := range f.Workers {
		if w.State != nil {
			running += len(w.State.Running)
		}
	}
	return waiting + max(given, running)
}

func (f fleet) owned(id protocol.ID) int {
	n := 0
	for _, e := range f.Running {
		if e.Node == id {
			n++
		}
	}
	return n
}

// workers lists those whose lease lives, each with its state.
func (l *link) workers(ctx context.Context, leases []bus.Lease) ([]workerState, error) {
	boots := map[protocol.ID]string{}
	for _, lease := range leases {
		if lease.Kind == bus.LeaseWorker {
			boots[lease.ID] = lease.Boot
		}
	}
	all, err := l.bus.Workers(ctx)
	if err != nil {
		return nil, err
	}
	var living []workerState
	for _, w := range all {
		if boots[w.Worker] == w.Boot {
			living = append(living, workerState{WorkerInfo: w})
		}
	}
	slices.SortFunc(living, func(a, b workerState) int { return cmp.Compare(a.Worker, b.Worker) })
	ctx, cancel := context.WithTimeout(ctx, askWorker)
	defer cancel()
	var wg sync.WaitGroup
	for i := range living {
		wg.Go(func() {
			if r, err := l.bus.Control(ctx, living[i].Worker, "status", protocol.Control{}); err == nil {
				living[i].State = r.Info
			}
		})
	}
	wg.Wait()
	return living, nil
}

func (a *app) fleet(ctx context.Context, asJSON bool) error {
	l, err := a.dial(ctx)
	if err != nil {
		return err
	}
	f, err := l.fleet(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		_, err := fmt.Fprintf(a.stdout, "%s\n", protocol.Encode(f))
		return err
	}
	table := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	f.write(table)
	return table.Flush()
}

func (f fleet) write(out io.Writer) {
	say(out, "orchestrators: %d\n", len(f.Orchestrators))
	for _, o := range f.Orchestrators {
		say(out, "  %s\t%d sessions running\n", o.ID, o.Running)
	}
	say(out, "workers: %d\n", len(f.Workers))
	for _, w := range f.Workers {
		say(out, "  %s\t%s\t%s\tsandbox %s\t%s\t%s\n", w.Worker, visibleLine(w.Host), w.slots(),
			visibleLine(w.Sandbox), visibleLine(w.serves()), visibleLine(w.remark()))
	}
	say(out, "calls: %d open\n", f.OpenCalls)
	for _, q := range f.Queues {
		if q.Waiting > 0 || q.Given > 0 || q.Dest.Pool {
			say(out, "  %s\t%d waiting\t%d given\t%d free slots\n", queueName(q.Dest), q.Waiting, q.Given, q.Slots)
		}
	}
	say(out, "sessions: %d, %d running\n", f.Sessions, len(f.Running))
	for _, e := range f.Running {
		say(out, "  %s\t%s\t%s\t%s\n", e.Session, e.State, e.Node, cut(visibleLine(e.Title), 60))
	}
}

func queueName(d bus.Destination) string {
	if d.Pool {
		return "pool " + string(d.ID)
	}
	return "worker " + string(d.ID)
}

func (w workerState) slots() string {
	if w.State == nil {
		return fmt.Sprintf("%d slots", w.Slots)
	}
	return fmt.Sprintf("%d of %d slots free", w.State.Free, w.State.Slots)
}

// serves tells pools and labels.
func (w workerState) serves() string {
	var all []string
	for _, p := range w.Pools {
		all = append(all, "pool "+string(p))
	}
	if w.Private {
		all = append(all, "of one run")
	}
	var labels []string
	for k, v := range w.Labels {
		labels = append(labels, k+"="+v)
	}
	slices.Sort(labels)
	return strings.Join(append(all, labels...), " ")
}

// remark tells what an operator should know.
func (w workerState) remark() string {
	switch {
	case w.Refused != "":
		return "REFUSED: " + w.Refused
	case w.State == nil:
		return "does not answer"
	case w.State.Draining:
		return "draining"
	case len(w.State.Background) > 0:
		return fmt.Sprintf("%d background commands", len(w.State.Background))
	}
	return ""
}
