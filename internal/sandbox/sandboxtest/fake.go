package sandboxtest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"

	"rookery/internal/sandbox"
)

// A Fake is a backend without processes: a command is a Go function. It works in
// a synctest bubble. File operations are real, on the session's directories.
type Fake struct {
	Ops sandbox.Ops
	// Command is the program: it prints to w, ends with an exit status, and ends
	// soon after ctx is done.
	Command func(ctx context.Context, spec sandbox.CallSpec, w io.Writer) int
	// CheckErr is what Check finds.
	CheckErr error

	mu     sync.Mutex
	opened []string
	closed []string
}

var _ sandbox.Backend = (*Fake)(nil)

// Name implements sandbox.Backend.
func (*Fake) Name() string { return "fake" }

// Check implements sandbox.Backend.
func (f *Fake) Check(context.Context) (sandbox.Report, error) {
	return sandbox.Report{Backend: f.Name(), Lines: []string{"nothing to check"}}, f.CheckErr
}

// Opened and Closed list the ids of sessions in order.
func (f *Fake) Opened() []string { return f.list(&f.opened) }

// Closed lists the ids of closed sessions in order.
func (f *Fake) Closed() []string { return f.list(&f.closed) }

func (f *Fake) list(l *[]string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string{}, *l...)
}

// Open implements sandbox.Backend.
func (f *Fake) Open(_ context.Context, spec sandbox.SessionSpec) (sandbox.Session, error) {
	work, err := os.OpenRoot(spec.Workspace)
	if err != nil {
		return nil, err
	}
	scratch, err := os.OpenRoot(spec.Scratch)
	if err != nil {
		return nil, errors.Join(err, work.Close())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened = append(f.opened, spec.ID)
	ctx, cancel := context.WithCancelCause(context.Background())
	return &fakeSession{fake: f, id: spec.ID, ctx: ctx, cancel: cancel, view: &sandbox.View{
		Workspace: sandbox.Tree{Path: spec.Workspace, Root: work}, Scratch: sandbox.Tree{Path: spec.Scratch, Root: scratch},
	}}, nil
}

type fakeSession struct {
	fake   *Fake
	id     string
	view   *sandbox.View
	ctx    context.Context //nolint:containedctx // the session's life
	cancel context.CancelCauseFunc
	calls  sync.WaitGroup
}

func (s *fakeSession) Start(_ context.Context, spec sandbox.CallSpec) (sandbox.Call, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if s.ctx.Err() != nil {
		return nil, sandbox.ErrClosed
	}
	r, w := io.Pipe()
	ctx, cancel := context.WithCancelCause(s.ctx)
	c := &fakeCall{out: r, cancel: cancel, done: make(chan struct{})}
	s.calls.Go(func() {
		c.result.Exit = s.fake.Command(ctx, spec, w)
		c.result.Reason = sandbox.Exited
		if killed, ok := errors.AsType[reasonError](context.Cause(ctx)); ok {
			c.result.Reason = killed.reason
		}
		cancel(nil)
		_ = w.Close()
		close(c.done)
	})
	return c, nil
}

func (s *fakeSession) Do(ctx context.Context, op string, args json.RawMessage) (json.RawMessage, error) {
	if s.ctx.Err() != nil {
		return nil, sandbox.ErrClosed
	}
	return s.fake.Ops.Run(ctx, s.view, op, args)
}

func (s *fakeSession) Paths() sandbox.Paths {
	return sandbox.Paths{Workspace: s.view.Workspace.Path, Scratch: s.view.Scratch.Path}
}

func (s *fakeSession) Usage() sandbox.Usage { return sandbox.Usage{} }

func (s *fakeSession) Close() error {
	if s.ctx.Err() != nil {
		return nil
	}
	s.cancel(reasonError{sandbox.WorkerStopped})
	s.calls.Wait()
	s.fake.mu.Lock()
	defer s.fake.mu.Unlock()
	s.fake.closed = append(s.fake.closed, s.id)
	return s.view.Close()
}

type reasonError struct{ reason sandbox.Reason }

func (e reasonError) Error() string { return string(e.reason) }

type fakeCall struct {
	out    *io.PipeReader
	cancel context.CancelCauseFunc
	done   chan struct{}
	result sandbox.Result
}

func (c *fakeCall) Stdin() io.WriteCloser              { return nil }
func (c *fakeCall) Output() (stdout, stderr io.Reader) { return c.out, nil }
func (c *fakeCall) Resize(sandbox.Size) error          { return errors.New("the call has no terminal") }
func (c *fakeCall) Signal(syscall.Signal) error        { return nil }
func (c *fakeCall) Kill(reason sandbox.Reason)         { c.cancel(reasonError{reason}) }
func (c *fakeCall) Wait() (sandbox.Result, error) {
	<-c.done
	return c.result, nil
}
