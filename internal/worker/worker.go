package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"runtime"
	"sync"
	"time"

	"rookery/internal/bus"
	"rookery/internal/sandbox"
	"rookery/internal/tool"
	"rookery/protocol"
)

// flushTime is how long results may take to be stored after the last call was
// cancelled; then they wait in the journal for the next start.
const flushTime = 2 * time.Second

// A Config says how a worker serves.
type Config struct {
	Bus     *bus.Bus        // required
	Backend sandbox.Backend // required
	// Check is the backend's self-test, begun before. Default: Run makes it.
	Check func() (sandbox.Report, error)
	Tools *tool.Registry // required
	// Root holds the worker's identity, journal, workspaces and scratch. Required;
	// made where it is missing.
	Root string

	// ID is kept in Root; empty takes the kept one, or makes one.
	ID protocol.ID
	// Host and User tell where named workspaces are. Default: this system's.
	Host, User string
	Version    string
	// Pools are queues to serve beside the worker's own. Default: default.
	Pools  []protocol.ID
	Labels map[string]string
	// Slots is how many calls of each queue run at once. Default: twice the CPUs.
	Slots int
	// Allow lists directories whose subdirectories, and they themselves, may be
	// named as workspaces.
	Allow []string
	// Deny lists directories that no workspace may hold or lie in: store,
	// configuration, runtime directory. Root is always one of them.
	Deny []string
	// Home is no workspace, and in none. Default: this user's.
	Home string
	// Private keeps other sessions away: their workspaces, and with Pools their calls.
	Private bool
	// Orchestrator is the only one to sign on at; empty is any.
	Orchestrator protocol.ID
	// Env, ReadOnly, Net and Limits are every session's.
	Env      []string
	ReadOnly []string
	Net      sandbox.NetPolicy
	Limits   sandbox.Limits

	// Grace is what running calls get when Run is told to end. Default 10 s;
	// negative is none.
	Grace time.Duration
	// Idle closes a session that had no call for so long. Default 30 min.
	Idle time.Duration
	// Logger nil discards.
	Logger *slog.Logger
}

func (c Config) validate() error {
	var errs []error
	for what, missing := range map[string]bool{"Bus": c.Bus == nil, "Backend": c.Backend == nil, "Tools": c.Tools == nil, "Root": c.Root == ""} {
		if missing {
			errs = append(errs, fmt.Errorf("worker: no %s", what))
		}
	}
	if c.ID != "" {
		if _, err := protocol.ParseID(string(c.ID)); err != nil {
			errs = append(errs, fmt.Errorf("worker: %w", err))
		}
	}
	for _, p := range c.Pools {
		if _, err := protocol.ParseID(string(p)); err != nil {
			errs = append(errs, fmt.Errorf("worker: pool %w", err))
		}
	}
	if c.Slots < 0 {
		errs = append(errs, errors.New("worker: negative Slots"))
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	if c.Host == "" {
		c.Host, _ = os.Hostname()
	}
	if c.User == "" {
		if u, err := user.Current(); err == nil {
			c.User = u.Username
		}
	}
	if c.Home == "" {
		c.Home, _ = os.UserHomeDir()
	}
	switch {
	case c.Private:
		c.Pools = []protocol.ID{}
	case len(c.Pools) == 0:
		c.Pools = []protocol.ID{"default"}
	}
	c.Slots = cmp.Or(c.Slots, 2*runtime.NumCPU())
	c.Grace = cmp.Or(c.Grace, 10*time.Second)
	c.Idle = cmp.Or(c.Idle, 30*time.Minute)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// A Worker serves calls.
type Worker struct {
	cfg      Config
	log      *slog.Logger
	id       protocol.ID
	boot     string
	root     *root
	journal  *journal
	places   *places
	sessions *sessions
	running  *running

	drained  chan struct{} // closed by Drain
	drainOne sync.Once
	signOn   chan struct{}      // capacity 1: signing on is wanted; anybody writes, presence reads
	signedOn chan struct{}      // closed by presence, when queues exist
	acks     chan *bus.Delivery // capacity 64; slots write, ackAll reads, serve closes it after the last slot
}

// New checks the configuration and takes the root, which Run gives back; without
// Run, Close does. A root that another worker uses is an error.
func New(cfg Config) (*Worker, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	root, err := openRoot(cfg.Root)
	if err != nil {
		return nil, err
	}
	w := &Worker{
		cfg: cfg, boot: protocol.Token(8), root: root, running: newRunning(),
		drained: make(chan struct{}), signOn: make(chan struct{}, 1), signedOn: make(chan struct{}),
		acks: make(chan *bus.Delivery, 64),
	}
	if err := w.load(); err != nil {
		return nil, errors.Join(err, root.close())
	}
	w.log = cfg.Logger.With("worker", w.id)
	w.sessions = newSessions(cfg, w.id, w.places, root, w.log, w.beat)
	w.sessions.removeSingles()
	return w, nil
}

// load reads what the root holds.
func (w *Worker) load() (err error) {
	if w.places, err = newPlaces(w.cfg, w.root.dir); err != nil {
		return err
	}
	if w.id, err = w.root.identity(w.cfg.ID); err != nil {
		return err
	}
	w.journal, err = openJournal(w.root.path("journal"))
	return err
}

// ID is the worker's, the same over all runs on its root.
func (w *Worker) ID() protocol.ID { return w.id }

// Boot names this run of it.
func (w *Worker) Boot() string { return w.boot }

// SignedOn is closed once an orchestrator knows the worker, whose lease is there by then.
func (w *Worker) SignedOn() <-chan struct{} { return w.signedOn }

// Close gives the root back. Run does that itself.
func (w *Worker) Close() error { return errors.Join(w.journal.close(), w.root.close()) }

// Drain takes no new call; Run returns when the running ones have ended.
func (w *Worker) Drain() { w.drainOne.Do(func() { close(w.drained) }) }

func (w *Worker) draining() bool {
	select {
	case <-w.drained:
		return true
	default:
		return false
	}
}

// Run serves calls until ctx is done or Drain is called. It then takes no new call.
// After ctx is done running calls have Grace; the rest are cancelled, and their
// output says so. Run returns after the last call; a result that could not be
// stored waits in the journal for the next start. It returns an error when the
// sandbox does not work here.
func (w *Worker) Run(ctx context.Context) error {
	defer func() {
		if err := w.Close(); err != nil {
			w.log.WarnContext(ctx, "root not given back", "err", err)
		}
	}()
	report, err := w.check(ctx)
	if err != nil {
		return fmt.Errorf("sandbox %s does not work here: %w", w.cfg.Backend.Name(), err)
	}
	if report.Warning != "" {
		w.log.WarnContext(ctx, "sandbox does not confine", "sandbox", report.Backend, "warning", report.Warning)
	}
	return w.serve(ctx)
}

func (w *Worker) check(ctx context.Context) (sandbox.Report, error) {
	if w.cfg.Check != nil {
		return w.cfg.Check()
	}
	return w.cfg.Backend.Check(ctx)
}

// serve owns all goroutines and the order in which they end.
func (w *Worker) serve(ctx context.Context) error {
	base := context.WithoutCancel(ctx)
	work, stopWork := context.WithCancelCause(base) // calls
	send, stopSend := context.WithCancel(base)      // results
	life, stopLife := context.WithCancel(base)      // presence, control, sweep
	defer stopWork(nil)
	defer stopSend()
	defer stopLife()
	fetch, stopFetch := context.WithCancel(ctx)
	defer stopFetch()

	var around, slots sync.WaitGroup
	desk := &desk{worker: w, ctx: life}
	stopControl, err := w.cfg.Bus.ServeControl(w.id, desk.handle)
	if err != nil {
		return fmt.Errorf("serve control of worker %s: %w", w.id, err)
	}
	around.Go(func() { w.presence(life) })
	around.Go(func() { w.replay(send) })
	around.Go(func() { w.sessions.sweep(life) })
	around.Go(w.ackAll)
	w.startSlots(&slots, fetch, work, send)

	select {
	case <-ctx.Done():
		w.Drain()
	case <-w.drained:
	}
	stopFetch()
	w.beat()
	w.await(ctx, &slots, stopWork, stopSend)
	close(w.acks)
	stopControl()
	stopLife()
	stopSend()
	desk.close()
	around.Wait()
	w.sessions.closeAll(func(*session) bool { return true })
	w.log.InfoContext(ctx, "worker stopped", "held", w.journal.len())
	return nil
}

// await waits for the slots; once ctx is done it bounds that.
func (w *Worker) await(ctx context.Context, slots *sync.WaitGroup, stopWork context.CancelCauseFunc, stopSend func()) {
	done := make(chan struct{})
	go func() { // ends with the slots, which the bounds end
		slots.Wait()
		close(done)
	}()
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	grace := max(w.cfg.Grace, 0)
	stop := time.AfterFunc(grace, func() { stopWork(tool.ErrStopped) })
	defer stop.Stop()
	flush := time.AfterFunc(grace+sandbox.KillGrace+flushTime, stopSend)
	defer flush.Stop()
	<-done
}
