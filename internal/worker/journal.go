package worker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"rookery/protocol"
)

// compactAt is the size from which a journal without waiting results is emptied.
const compactAt = 1 << 20

// A held is a result that waits to be stored. Session, dispatch and the result's
// boot make its message id, so that it is sent again exactly as it was.
type held struct {
	Session  protocol.ID      `json:"session"`
	Dispatch string           `json:"dispatch"`
	Result   *protocol.Result `json:"result,omitempty"` // nil: stored, hold it no longer
}

func (h held) key() string { return key(h.Session, h.Dispatch) }

func key(sid protocol.ID, dispatch string) string { return string(sid) + "/" + dispatch }

// A journal keeps results until they are stored: one JSON object a line. What was
// put outlives the process at once, and the machine from the next sync on. It is
// safe for concurrent use.
type journal struct {
	f *os.File

	mu      sync.Mutex
	size    int64
	waiting map[string]held
	dirty   bool // something was written since the last sync
}

// openJournal reads what is left. A last line that was torn by a crash was never
// sent, and is dropped.
func openJournal(dir string) (*journal, error) {
	f, err := os.OpenFile(filepath.Join(dir, "results"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the journal: %w", err)
	}
	j := &journal{f: f, waiting: map[string]held{}}
	b, err := io.ReadAll(f)
	if err == nil {
		err = j.load(b)
	}
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read the journal: %w", err), f.Close())
	}
	return j, nil
}

func (j *journal) load(b []byte) error {
	for {
		line, rest, ok := bytes.Cut(b, []byte("\n"))
		var h held
		if !ok || protocol.Unmarshal(line, &h) != nil {
			break // torn, with all behind it
		}
		if h.Result == nil {
			delete(j.waiting, h.key())
		} else {
			j.waiting[h.key()] = h
		}
		j.size += int64(len(line)) + 1
		b = rest
	}
	return j.f.Truncate(j.size)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// put returns when h is in the file. Most results are stored a moment later, so the
// disk is not waited for; see sync.
func (j *journal) put(h held) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.waiting[h.key()] = h
	if err := j.write(h); err != nil {
		return fmt.Errorf("journal %s: %w", h.key(), err)
	}
	return nil
}

// sync brings what waits to the disk.
func (j *journal) sync() error {
	j.mu.Lock()
	due := j.dirty && len(j.waiting) > 0
	j.dirty = false
	j.mu.Unlock()
	if !due {
		return nil
	}
	if err := unix.Fdatasync(int(j.f.Fd())); err != nil { // outside the lock: puts go on
		return fmt.Errorf("sync the journal: %w", err)
	}
	return nil
}

// write appends a line; the caller holds mu.
func (j *journal) write(h held) error {
	line := append(protocol.Encode(h), '\n')
	if _, err := j.f.WriteAt(line, j.size); err != nil {
		return errors.Join(err, j.f.Truncate(j.size))
	}
	j.size += int64(len(line))
	j.dirty = true
	return nil
}

// done forgets a result that is stored. A crash right after may send it again,
// which is harmless.
func (j *journal) done(h held) error {
	h.Result = nil
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.waiting, h.key())
	if len(j.waiting) == 0 && j.size >= compactAt {
		j.size = 0
		return j.f.Truncate(0)
	}
	return j.write(h)
}

func (j *journal) has(key string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, ok := j.waiting[key]
	return ok
}

func (j *journal) len() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.waiting)
}

// all lists what waits, in the order of the keys.
func (j *journal) all() []held {
	j.mu.Lock()
	defer j.mu.Unlock()
	list := make([]held, 0, len(j.waiting))
	for _, h := range j.waiting {
		list = append(list, h)
	}
	slices.SortFunc(list, func(a, b held) int { return bytes.Compare([]byte(a.key()), []byte(b.key())) })
	return list
}

func (j *journal) close() error { return j.f.Close() }
