package native

import (
	"io/fs"
	"math"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rookery/internal/sandbox"
)

const (
	diskEvery = time.Second
	// diskReserve is what calls leave free on the file system.
	diskReserve = 256 << 20
)

// A diskWatch kills calls that fill the disk: workspace and scratch together above
// the limit, and growing, or the file system nearly full. It counts files only when
// the file system has grown by as much as was left.
type diskWatch struct {
	session *session
	wake    chan struct{} // capacity 1: a call has started; anybody writes, run reads
	stop    chan struct{} // Close closes it

	// run alone uses the rest.
	held int64 // bytes counted last
	used int64 // bytes of the file system then
	seen bool
}

func (d *diskWatch) started() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

func (d *diskWatch) run() {
	tick := time.NewTicker(diskEvery)
	defer tick.Stop()
	for {
		select {
		case <-d.stop:
			return
		case <-d.wake:
		}
		for d.session.busy() {
			if d.full() {
				d.session.killAll(sandbox.DiskLimit)
			}
			select {
			case <-d.stop:
				return
			case <-tick.C:
			}
		}
	}
}

func (d *diskWatch) full() bool {
	used, free := d.space()
	limit := d.session.limits.Disk
	if limit < 0 {
		limit = math.MaxInt64
	}
	if d.seen && used-d.used < limit-d.held {
		return d.seen && free < diskReserve && used > d.used
	}
	before := d.held
	held, whole := count(d.session.spec.Workspace, d.session.spec.Scratch)
	if !whole && d.seen {
		held = max(held, before+used-d.used) // what cannot be counted has grown by so much at most
	}
	grown := d.seen && held > before
	first := !d.seen
	d.held, d.used, d.seen = held, used, true
	return held > limit && (grown || first && d.session.limits.Disk > 0)
}

func (d *diskWatch) space() (used, free int64) {
	var st unix.Statfs_t
	if unix.Statfs(d.session.spec.Workspace, &st) != nil {
		return 0, math.MaxInt64
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize, int64(st.Bavail) * st.Bsize
}

// count adds up what files in the directories hold on disk, each once; whole is
// false when something could not be looked at.
func count(dirs ...string) (bytes int64, whole bool) {
	linked := map[uint64]bool{}
	whole = true
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
			if err != nil {
				whole = false
				return nil //nolint:nilerr // the rest still counts
			}
			info, err := e.Info()
			if err != nil {
				return nil //nolint:nilerr // it is gone
			}
			st, ok := info.Sys().(*syscall.Stat_t)
			if !ok || st.Nlink > 1 && !info.IsDir() && linked[st.Ino] {
				return nil
			}
			linked[st.Ino] = st.Nlink > 1
			bytes += st.Blocks * 512
			return nil
		})
		whole = whole && err == nil
	}
	return bytes, whole
}

// busy reports whether calls run.
func (s *session) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls) > 0
}

func (s *session) killAll(reason sandbox.Reason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		c.Kill(reason)
	}
}

// name is a new one, for a child of the holder.
func (s *session) name() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	return s.next
}
