package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"rookery/internal/sandbox"
	"rookery/internal/tool"
	"rookery/protocol"
)

// Times of tidying up.
const (
	sweepEvery = time.Minute
	scratchAge = 7 * 24 * time.Hour // of a session that was not released
)

// oldPrefix marks scratch that is being removed; no session id has a dot.
const oldPrefix = "old."

// sessions holds the sandbox sessions that are open. It is safe for concurrent use.
type sessions struct {
	cfg    Config
	worker protocol.ID
	places *places
	root   *root
	log    *slog.Logger
	beat   func() // tells what runs in the background, when that changes

	mu   sync.Mutex
	open map[protocol.ID]*session
}

// A session is open, or being opened until ready is closed.
type session struct {
	ref   protocol.WorkspaceRef
	ready chan struct{}
	tools *tool.Session
	err   error

	// Guarded by sessions.mu.
	users  int           // calls that use it now
	used   time.Time     // last
	closed chan struct{} // not nil once it is being closed; closed when it is
}

func newSessions(cfg Config, worker protocol.ID, p *places, r *root, log *slog.Logger, beat func()) *sessions {
	return &sessions{cfg: cfg, worker: worker, places: p, root: r, log: log, beat: beat, open: map[protocol.ID]*session{}}
}

// use returns the open session, opening it where needed; done must be called.
func (t *sessions) use(ctx context.Context, sid protocol.ID, ref protocol.WorkspaceRef) (s *tool.Session, done func(), err error) {
	e, err := t.enter(ctx, sid, ref)
	if err != nil {
		return nil, nil, err
	}
	return e.tools, func() { t.leave(sid, e) }, nil
}

// adopt opens a session's workspace and tells where it is.
func (t *sessions) adopt(ctx context.Context, sid protocol.ID, ref protocol.WorkspaceRef) (protocol.WorkspaceRef, error) {
	e, err := t.enter(ctx, sid, ref)
	if err != nil {
		return protocol.WorkspaceRef{}, err
	}
	defer t.leave(sid, e)
	got := e.ref
	got.Epoch = ref.Epoch
	return got, nil
}

func (t *sessions) enter(ctx context.Context, sid protocol.ID, ref protocol.WorkspaceRef) (*session, error) {
	e, fresh, err := t.entry(ctx, sid)
	if err != nil {
		return nil, err
	}
	if fresh {
		e.tools, e.ref, e.err = t.start(context.WithoutCancel(ctx), sid, ref)
		if e.err == nil {
			t.log.InfoContext(ctx, "session opened", "session", sid)
		}
		close(e.ready)
	}
	select {
	case <-e.ready:
		err = e.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err == nil {
		err = t.same(e.ref, ref)
	}
	if err != nil {
		t.leave(sid, e)
		return nil, err
	}
	return e, nil
}

// entry returns the session's entry, used once more; fresh tells the caller to
// start it. It waits for an earlier one that is being closed.
func (t *sessions) entry(ctx context.Context, sid protocol.ID) (e *session, fresh bool, err error) {
	for {
		t.mu.Lock()
		e, ok := t.open[sid]
		if !ok {
			e = &session{ready: make(chan struct{})}
			t.open[sid] = e
		}
		closed := e.closed
		if closed == nil {
			e.users++
		}
		t.mu.Unlock()
		if closed == nil {
			return e, !ok, nil
		}
		select {
		case <-closed:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
}

// same refuses a call whose session is open with another workspace.
func (t *sessions) same(have, want protocol.WorkspaceRef) error {
	if want.Path == "" || want.Path == have.Path {
		return nil
	}
	a, errA := os.Stat(have.Path)
	b, errB := os.Stat(want.Path)
	if errA == nil && errB == nil && os.SameFile(a, b) {
		return nil
	}
	return fmt.Errorf("the session works in %s here, not in %s: release it first", have.Path, want.Path)
}

// leave ends a use; a session that could not be opened is not kept, so that the
// next call tries again.
func (t *sessions) leave(sid protocol.ID, e *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.users--
	e.used = time.Now()
	select {
	case <-e.ready:
		if e.err != nil && t.open[sid] == e {
			delete(t.open, sid)
		}
	default: // still being opened, by somebody else
	}
}

// start opens workspace and sandbox.
func (t *sessions) start(ctx context.Context, sid protocol.ID, ref protocol.WorkspaceRef) (*tool.Session, protocol.WorkspaceRef, error) {
	dir, path, err := t.places.open(sid, ref)
	if err != nil {
		return nil, ref, err
	}
	defer func() { _ = dir.Close() }()
	scratch := t.root.path("scratch", string(sid))
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return nil, ref, fmt.Errorf("make the scratch directory: %w", err)
	}
	now := time.Now()
	_ = os.Chtimes(scratch, now, now) // its age is what sweep looks at
	made := path == t.places.own(sid)
	s, err := t.cfg.Backend.Open(ctx, sandbox.SessionSpec{
		ID: string(sid), Workspace: path, Scratch: scratch, Dir: dir, Made: made,
		ReadOnly: t.cfg.ReadOnly, Env: t.cfg.Env, Net: t.cfg.Net, Limits: t.cfg.Limits,
	})
	if err != nil {
		return nil, ref, fmt.Errorf("open a %s sandbox: %w", t.cfg.Backend.Name(), err)
	}
	tools := tool.NewSession(s, t.cfg.Limits)
	tools.OnBackground(t.beat)
	return tools, protocol.WorkspaceRef{Host: t.cfg.Host, Path: path, Worker: t.worker, Made: made}, nil
}

// maxListed bounds what one heartbeat lists.
const maxListed = 256

// state tells how many sessions are open and what runs in their background.
func (t *sessions) state() (open int, background []protocol.Background) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for sid, e := range t.open {
		select {
		case <-e.ready:
		default:
			continue
		}
		if e.err != nil {
			continue
		}
		open++
		for _, b := range e.tools.Background() {
			b.Session = sid
			background = append(background, b)
		}
	}
	slices.SortFunc(background, func(a, b protocol.Background) int { return a.Since.Compare(b.Since) })
	return open, background[:min(len(background), maxListed)]
}

// singlePrefix marks what belongs to one call; no session id has a dot.
const singlePrefix = "call."

// single opens a session for one call of a tool that needs no workspace; done
// removes everything of it.
func (t *sessions) single(ctx context.Context) (s *tool.Session, done func(), err error) {
	id := protocol.ID(singlePrefix + protocol.Token(8))
	s, _, err = t.start(ctx, id, protocol.WorkspaceRef{})
	if err != nil {
		t.removeSingle(string(id))
		return nil, nil, err
	}
	return s, func() {
		if err := s.Close(); err != nil {
			t.log.WarnContext(ctx, "session of a call not closed", "err", err)
		}
		t.removeSingle(string(id))
	}, nil
}

func (t *sessions) removeSingle(id string) {
	if err := errors.Join(os.RemoveAll(t.root.path("scratch", id)), os.RemoveAll(t.root.path("ws", id))); err != nil {
		t.log.Warn("session of a call not removed", "err", err)
	}
}

// removeSingles removes what calls of an earlier run left.
func (t *sessions) removeSingles() {
	for _, dir := range []string{"scratch", "ws"} {
		left, err := filepath.Glob(t.root.path(dir, singlePrefix+"*"))
		if err != nil {
			t.log.Warn("sessions of calls not looked for", "err", err)
		}
		for _, d := range left {
			t.removeSingle(filepath.Base(d))
		}
	}
}

// release ends a session on this worker: what runs in it is killed, its scratch
// directory removed. The workspace stays.
func (t *sessions) release(sid protocol.ID) error {
	err := t.close(sid, func(*session) bool { return true })
	return errors.Join(err, os.RemoveAll(t.root.path("scratch", string(sid))))
}

// close closes a session if it is open and wanted says so.
func (t *sessions) close(sid protocol.ID, wanted func(*session) bool) error {
	t.mu.Lock()
	e, ok := t.open[sid]
	if !ok || e.closed != nil || !wanted(e) {
		t.mu.Unlock()
		return nil
	}
	e.closed = make(chan struct{})
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.open[sid] == e {
			delete(t.open, sid)
		}
		close(e.closed)
	}()
	<-e.ready
	if e.err != nil {
		return nil // it never opened
	}
	t.log.Info("session closed", "session", sid)
	if err := e.tools.Close(); err != nil {
		return fmt.Errorf("close session %s: %w", sid, err)
	}
	return nil
}

// closeAll closes the sessions that are wanted closed.
func (t *sessions) closeAll(wanted func(*session) bool) {
	t.mu.Lock()
	ids := slices.Collect(maps.Keys(t.open))
	t.mu.Unlock()
	for _, sid := range ids {
		if err := t.close(sid, wanted); err != nil {
			t.log.Warn("session not closed", "session", sid, "err", err)
		}
	}
}

// sweep closes idle sessions and removes old scratch until ctx ends.
func (t *sessions) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		t.closeAll(t.idle)
		t.removeOld()
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (t *sessions) idle(e *session) bool {
	return e.users == 0 && time.Since(e.used) >= t.cfg.Idle
}

func (t *sessions) removeOld() {
	entries, err := os.ReadDir(t.root.path("scratch"))
	if err != nil {
		t.log.Warn("scratch not swept", "err", err)
	}
	for _, d := range entries {
		if info, err := d.Info(); err != nil || time.Since(info.ModTime()) <= scratchAge {
			continue
		}
		if old, ok := t.setAside(d.Name()); ok {
			_ = os.RemoveAll(old) // what stays is found again in a minute
		}
	}
}

// setAside renames the scratch directory of a session that is not open, so that
// one that opens now gets another.
func (t *sessions) setAside(name string) (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, open := t.open[protocol.ID(name)]; open {
		return "", false
	}
	if strings.HasPrefix(name, oldPrefix) {
		return t.root.path("scratch", name), true
	}
	old := t.root.path("scratch", oldPrefix+name)
	return old, os.Rename(t.root.path("scratch", name), old) == nil
}
