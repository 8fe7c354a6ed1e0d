package landlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"rookery/internal/sandbox"
	"rookery/internal/sandbox/confine"
	"rookery/internal/sandbox/fileop"
)

// Warning says what the backend does not do.
const Warning = "sandbox landlock: reduced confinement; commands have no sockets, memory and processes are not limited, " +
	"processes and names of files of the host can be seen"

// neededABI is the Landlock version that confines abstract sockets and signals.
const neededABI = 6

// Landlock is the backend without namespaces. It is safe for concurrent use.
type Landlock struct {
	ops    sandbox.Ops
	filter func() ([]byte, error)
}

var _ sandbox.Backend = (*Landlock)(nil)

// New returns the backend landlock, which can run the given file operations. The
// program calls Main with the same first thing.
func New(ops sandbox.Ops) *Landlock {
	return &Landlock{ops: ops, filter: sync.OnceValues(func() ([]byte, error) {
		return confine.Filter(confine.Kind{Shared: true, NoSetID: true})
	})}
}

// Name implements sandbox.Backend.
func (*Landlock) Name() string { return "landlock" }

// Check implements sandbox.Backend.
func (l *Landlock) Check(ctx context.Context) (sandbox.Report, error) {
	report := sandbox.Report{Backend: l.Name(), Warning: Warning}
	if err := usable(); err != nil {
		return report, err
	}
	dir, err := os.MkdirTemp("", "rookery-check-")
	if err != nil {
		return report, fmt.Errorf("make a directory for the check: %w (is the temporary directory writable?)", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	report.Lines, err = l.try(ctx, dir)
	return report, err
}

// usable reports why there can be no session here.
func usable() error {
	const otherwise = "--sandbox native confines more where namespaces can be made; --sandbox none confines nothing"
	if os.Geteuid() == 0 {
		return errors.New("the sandbox landlock is not for root, whose files and processes it could not tell from the host's: " +
			"run the worker as an ordinary user\n" + otherwise)
	}
	version, err := ll.LandlockGetABIVersion()
	if err != nil || version < neededABI {
		return fmt.Errorf("the sandbox landlock needs Landlock ABI %d (Linux 6.12); this kernel has %d, or it is switched off "+
			"(boot parameter lsm=landlock,…)\n%s", neededABI, max(version, 0), otherwise)
	}
	return nil
}

func (l *Landlock) try(ctx context.Context, dir string) ([]string, error) {
	spec := sandbox.SessionSpec{ID: "check", Workspace: filepath.Join(dir, "w"), Scratch: filepath.Join(dir, "s")}
	canary := filepath.Join(dir, "canary")
	err := errors.Join(os.Mkdir(spec.Workspace, 0o700), os.Mkdir(spec.Scratch, 0o700), os.WriteFile(canary, []byte("x"), 0o600))
	if err != nil {
		return nil, fmt.Errorf("make the check's directories: %w", err)
	}
	opened, err := l.open(ctx, spec, canary)
	if err != nil {
		return nil, err
	}
	defer func() { _ = opened.Close() }()
	call, err := opened.Start(ctx, sandbox.CallSpec{Argv: []string{"true"}, Merge: true, Timeout: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	out, _ := call.Output()
	text, err := io.ReadAll(out)
	if err != nil {
		return nil, err
	}
	if _, err := call.Wait(); err != nil {
		return nil, err
	}
	return judge(text)
}

// judge reads what the prober found.
func judge(text []byte) (lines []string, err error) {
	var found []finding
	if err := json.Unmarshal(text, &found); err != nil {
		return nil, fmt.Errorf("the prober said %.200q: %w", text, err)
	}
	for _, f := range found {
		if f.Leak == "" {
			lines = append(lines, f.What)
		} else {
			err = errors.Join(err, fmt.Errorf("not so: %s: %s", f.What, f.Leak))
		}
	}
	return lines, err
}

// Open implements sandbox.Backend.
func (l *Landlock) Open(ctx context.Context, spec sandbox.SessionSpec) (sandbox.Session, error) {
	if len(spec.Net.Allow) > 0 {
		return nil, errors.New("the sandbox landlock has no network: hosts cannot be allowed")
	}
	if err := usable(); err != nil {
		return nil, err
	}
	return l.open(ctx, spec, "")
}

// open opens a session; with a canary its commands are the prober.
func (l *Landlock) open(ctx context.Context, spec sandbox.SessionSpec, canary string) (sandbox.Session, error) {
	if !served.Load() {
		return nil, errors.New("this program does not call landlock.Main first")
	}
	filter, err := l.filter()
	if err != nil {
		return nil, err
	}
	rules := rights{Workspace: filepath.Clean(spec.Workspace), Scratch: filepath.Clean(spec.Scratch), ReadOnly: spec.ReadOnly, Canary: canary}
	s := &session{ops: l.ops, rights: rules, filter: filter}
	if s.Session, err = sandbox.NewNone(l.ops).Launching(s.launch).Open(ctx, spec); err != nil {
		return nil, err
	}
	s.files = fileop.NewClient(s.startHelper)
	return s, nil
}

// A session is one of None whose commands are confined, and whose operations run in
// a confined helper.
type session struct {
	sandbox.Session
	ops    sandbox.Ops
	rights rights
	filter []byte
	files  *fileop.Client

	mu      sync.Mutex
	closed  bool
	helpers sync.WaitGroup // goroutines that reap them
}

// launch is a sandbox.Launch: the keeper runs the command.
func (s *session) launch(cmd *exec.Cmd) (sandbox.Launched, error) {
	r := s.rights
	r.Path, r.Argv, r.Env = cmd.Path, cmd.Args, cmd.Env
	files, end, err := s.handOver(r)
	if err != nil {
		return sandbox.Launched{}, err
	}
	cmd.Path, cmd.Args, cmd.Env = "/proc/self/exe", []string{marker, "keeper"}, []string{"GOMAXPROCS=1"}
	cmd.ExtraFiles = files
	return sandbox.Launched{
		Started: func() { confine.CloseAll(files) },
		End:     func() { _ = end.Close() },
	}, nil
}

// handOver returns what a keeper begins with, and the end of the pipe whose closing
// ends it.
func (s *session) handOver(r rights) (files []*os.File, end *os.File, err error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the command: %w", err)
	}
	spec, err := confine.Memory("command", text)
	if err != nil {
		return nil, nil, err
	}
	filter, err := confine.Memory("filter", s.filter)
	if err != nil {
		return nil, nil, errors.Join(err, spec.Close())
	}
	alive, end, err := os.Pipe()
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open the keeper's pipe: %w", err), spec.Close(), filter.Close())
	}
	return []*os.File{spec, filter, alive}, end, nil
}

// startHelper starts the file helper; a goroutine reaps it.
func (s *session) startHelper(socket *os.File) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return sandbox.ErrClosed
	}
	files, end, err := s.handOver(s.rights)
	if err != nil {
		return err
	}
	defer confine.CloseAll(files)
	_ = end.Close() // the helper ends with its socket
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }()
	if err := confine.CloseFrom(fdSpec); err != nil {
		return err
	}
	p, err := os.StartProcess("/proc/self/exe", []string{marker, "helper"}, &os.ProcAttr{
		Dir: "/", Env: []string{"GOMAXPROCS=2"}, Files: []*os.File{null, null, os.Stderr, files[0], files[1], socket},
		Sys: &unix.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return err
	}
	s.helpers.Go(func() { _, _ = p.Wait() })
	return nil
}

// Do implements sandbox.Session.
func (s *session) Do(ctx context.Context, op string, args json.RawMessage) (json.RawMessage, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if _, ok := s.ops[op]; !ok {
		return nil, fmt.Errorf("%w %q", sandbox.ErrNoOp, op)
	}
	return s.files.Do(ctx, op, args)
}

// Close implements sandbox.Session.
func (s *session) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.files.Close()
	s.helpers.Wait()
	return s.Session.Close()
}

// served says that Main was called: a program that does not would, as its own
// child, do again what it does.
var served atomic.Bool //nolint:gochecknoglobals // true of the program, not of a backend
