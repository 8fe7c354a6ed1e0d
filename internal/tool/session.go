package tool

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"rookery/internal/sandbox"
	"rookery/protocol"
)

// DefaultPrinted is what a command may print before it is killed, in bytes.
const DefaultPrinted = 64 << 20

// maxBackground bounds a session's commands that outlive their calls.
const maxBackground = 16

// A Session is what the calls of one rookery session share on this worker.
type Session struct {
	sandbox.Session

	printed int64          // what a command may print
	running sync.WaitGroup // readers and writers of commands

	mu         sync.Mutex
	closed     bool
	files      []spillFile // full outputs, oldest first; in all at most twice printed
	total      int64
	background []*command // that outlived their calls, oldest first
	changed    func()
}

type spillFile struct {
	name string
	size int64
}

// NewSession returns the tools' side of an open sandbox session, which it closes.
// Of the limits, Output is its to keep: the others are the backend's.
func NewSession(s sandbox.Session, limits sandbox.Limits) *Session {
	printed := limits.Output
	if printed == 0 {
		printed = DefaultPrinted
	}
	if printed < 0 {
		printed = 1 << 40
	}
	return &Session{Session: s, printed: printed, changed: func() {}}
}

// OnBackground has f called when a command goes to the background or ends there,
// before the call's result is known. Call it before the session is used; f must
// not block.
func (s *Session) OnBackground(f func()) { s.changed = f }

// Close kills what runs in the session and waits for it.
func (s *Session) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	err := s.Session.Close()
	s.running.Wait()
	return err
}

// enter makes Close wait for the caller, until running.Done.
func (s *Session) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return sandbox.ErrClosed
	}
	s.running.Add(1)
	return nil
}

// launch starts a command that prints to w. The session owns it: it may outlive the
// call that started it.
func (s *Session) launch(ctx context.Context, spec sandbox.CallSpec, w *console) (*command, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	call, err := s.Start(ctx, spec)
	if err != nil {
		s.running.Done()
		return nil, err
	}
	c := newCommand(call, spec, s.printed, w)
	go func() {
		defer s.running.Done()
		c.follow()
		if s.isBackground(c) {
			s.changed()
		}
	}()
	return c, nil
}

// keep puts a command into the background under an id that is like name.
func (s *Session) keep(c *command, name, line string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetEnded()
	if len(s.background) >= maxBackground {
		return fmt.Errorf("%d commands run in the background already: end one with kill_command", maxBackground)
	}
	if s.find(name) != nil || name == "" {
		name = strings.TrimPrefix(name+"-"+protocol.Token(3), "-")
	}
	c.id, c.line = name, line
	s.background = append(s.background, c)
	return nil
}

// forgetEnded makes room: what ended long ago and was not asked for goes first.
func (s *Session) forgetEnded() {
	s.background = slices.DeleteFunc(s.background, func(c *command) bool {
		return len(s.background) >= maxBackground && c.ended()
	})
}

func (s *Session) find(id string) *command {
	i := slices.IndexFunc(s.background, func(c *command) bool { return c.id == id })
	if i < 0 {
		return nil
	}
	return s.background[i]
}

// command returns the background command of that id.
func (s *Session) command(id string) (*command, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.find(id); c != nil {
		return c, nil
	}
	if len(s.background) == 0 {
		return nil, fmt.Errorf("there is no command %s: none runs in the background", id)
	}
	var ids []string
	for _, c := range s.background {
		ids = append(ids, c.id)
	}
	return nil, fmt.Errorf("there is no command %s: in the background are %s", id, strings.Join(ids, ", "))
}

// forget drops a command whose end was told.
func (s *Session) forget(c *command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.background = slices.DeleteFunc(s.background, func(have *command) bool { return have == c })
}

func (s *Session) isBackground(c *command) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.background, c)
}

// Background lists the commands that run on after their calls, oldest first.
func (s *Session) Background() []protocol.Background {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []protocol.Background
	for _, c := range s.background {
		if !c.ended() {
			all = append(all, protocol.Background{ID: c.id, Command: c.line, Since: c.since})
		}
	}
	return all
}

func (s *Session) spill(ctx context.Context, name string, data []byte) error {
	return s.do(ctx, opSpill, spillArgs{Name: name, Data: data})
}

func (s *Session) drop(ctx context.Context, name string) {
	_ = s.do(ctx, opSpill, spillArgs{Name: name, Remove: true}) // scratch goes with the session
}

func (s *Session) do(ctx context.Context, op string, args any) error {
	_, err := s.Do(ctx, op, json.RawMessage(protocol.Encode(args)))
	return err
}

// spilled takes note of a finished file and returns its path in the session's view.
func (s *Session) spilled(name string, size int64) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files = append(s.files, spillFile{name, size})
	s.total += size
	return path.Join(s.Paths().Scratch, spillDir, name)
}

// makeRoom removes the oldest files until another fits.
func (s *Session) makeRoom(ctx context.Context) {
	s.mu.Lock()
	var old []string
	for s.total > s.printed && len(s.files) > 0 {
		old = append(old, s.files[0].name)
		s.total -= s.files[0].size
		s.files = s.files[1:]
	}
	s.mu.Unlock()
	for _, name := range old {
		s.drop(ctx, name)
	}
}
