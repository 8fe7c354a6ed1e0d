package confine

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Users are a range of user ids of the host that belong to sessions alone. The zero
// value is 65536 of them from 1900000000 on, which no distribution gives out.
type Users struct{ First, Count int }

// ErrRootWithoutAdmin reports a worker that is root and may not mount: what makes
// root's sessions safe is not there.
var ErrRootWithoutAdmin = errors.New("this process is root without CAP_SYS_ADMIN, as in a container")

// An Identity is the user of the host as whom a session's processes run.
type Identity struct {
	UID, GID int
	// Root says that this process is root, and the identity somebody else.
	Root bool
	// Mapped says that root owns the workspace: it must be shown as the identity's.
	Mapped bool
}

// Choose decides as whom a session runs: this process's user; for root the
// workspace's owner, and where that is root one of the range. It gives scratch, and
// a workspace that the worker made and that is empty, to that user, who therefore
// stays the same.
func (u Users) Choose(workspace, scratch *os.File, made bool) (id Identity, err error) {
	if os.Geteuid() != 0 {
		return Identity{UID: os.Geteuid(), GID: os.Getegid()}, nil
	}
	if !mayMount() {
		return id, ErrRootWithoutAdmin
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(workspace.Fd()), &st); err != nil {
		return id, fmt.Errorf("look at the workspace: %w", err)
	}
	id = Identity{UID: int(st.Uid), GID: int(st.Gid), Root: true}
	if id.UID == 0 {
		if id.UID, err = u.pick(scratch, workspace); err != nil {
			return id, err
		}
		id.GID = id.UID
		id.Mapped = !made || !give(workspace, id)
	}
	if id.GID == 0 {
		id.GID = id.UID // never root's group
	}
	if err := unix.Fchown(int(scratch.Fd()), id.UID, id.GID); err != nil {
		return id, fmt.Errorf("give the scratch directory to user %d: %w", id.UID, err)
	}
	return id, nil
}

// give gives an empty directory to the user; what holds something keeps its owner,
// for so does what is in it.
func give(dir *os.File, id Identity) bool {
	d, err := os.Open(dir.Name())
	if err != nil {
		return false
	}
	defer func() { _ = d.Close() }()
	_, err = d.Readdirnames(1)
	return errors.Is(err, io.EOF) && unix.Fchown(int(dir.Fd()), id.UID, id.GID) == nil
}

// pick returns the user that scratch belongs to already, or one of the range to whom
// nothing beside scratch and workspace belongs.
func (u Users) pick(scratch, workspace *os.File) (int, error) {
	first, count := cmp.Or(u.First, 1_900_000_000), cmp.Or(u.Count, 1<<16)
	var st unix.Stat_t
	if err := unix.Fstat(int(scratch.Fd()), &st); err != nil {
		return 0, fmt.Errorf("look at the scratch directory: %w", err)
	}
	if uid := int(st.Uid); uid >= first && uid < first+count {
		return uid, nil
	}
	start := int(st.Ino % uint64(count))
	taken := map[int]bool{}
	for _, dir := range []string{filepath.Dir(scratch.Name()), filepath.Dir(workspace.Name())} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return 0, fmt.Errorf("look for users of other sessions: %w", err)
		}
		for _, e := range entries {
			if unix.Lstat(filepath.Join(dir, e.Name()), &st) == nil {
				taken[int(st.Uid)] = true
			}
		}
	}
	for i := range count {
		if uid := first + (start+i)%count; !taken[uid] {
			return uid, nil
		}
	}
	return 0, fmt.Errorf("all %d user ids from %d on are taken by sessions", count, first)
}

func mayMount() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return false
	}
	return data[unix.CAP_SYS_ADMIN/32].Effective&(1<<(unix.CAP_SYS_ADMIN%32)) != 0
}
