package native

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"rookery/internal/sandbox/confine"
)

// A spawnRequest asks the spawner for a holder; its descriptors are the holder's
// socket, workspace and scratch. With Kill it ends the one of that ID.
type spawnRequest struct {
	ID       uint64   `json:"id"`
	Kill     bool     `json:"kill,omitempty"`
	UID      int      `json:"uid"`
	GID      int      `json:"gid"`
	Trees    bool     `json:"trees,omitempty"` // take trees here, with this process's rights
	Idmap    bool     `json:"idmap,omitempty"` // show root's files as the session's
	NoSetID  bool     `json:"no_set_id,omitempty"`
	ReadOnly []string `json:"read_only,omitempty"`
}

// A spawnReply says what became of a holder, twice: spawned or failed, and ended.
type spawnReply struct {
	ID    uint64      `json:"id"`
	Err   *stageError `json:"err,omitempty"`
	Ended bool        `json:"ended,omitempty"`
}

// A spawner makes holders. It has an empty environment and, unlike the worker, can
// be looked at by its user: else that user could not map ids in its children's
// namespaces. The kernel kills the holders when it ends.
type spawner struct {
	filters [2]func() (*os.File, error)

	mu      sync.Mutex // held from a start to its entry in holders
	holders map[int]uint64
}

func runSpawner() {
	if confine.CloseFrom(fdSocket) != nil {
		return
	}
	s := &spawner{holders: map[int]uint64{}}
	for i := range s.filters {
		s.filters[i] = sync.OnceValues(func() (*os.File, error) {
			b, err := confine.Filter(confine.Kind{NoSetID: i == 1})
			if err != nil {
				return nil, err
			}
			return confine.Memory("filter", b)
		})
	}
	wake := make(chan struct{}, 1) // spawn writes, reap reads: there is something to wait for
	go s.reap(wake)                // ends with the process
	for {
		var r spawnRequest
		files, err := confine.Recv(fdSocket, &r)
		if err != nil {
			return // the worker is gone
		}
		if r.Kill {
			s.kill(r.ID)
			continue
		}
		var failure *stageError
		if err := s.spawn(r, files); err != nil {
			failure = failed("start the session's first process", err)
		}
		confine.CloseAll(files)
		if confine.Send(fdSocket, spawnReply{ID: r.ID, Err: failure}) != nil {
			return
		}
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

func (s *spawner) kill(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for pid, h := range s.holders {
		if h == id {
			_ = unix.Kill(pid, unix.SIGKILL) // not reaped yet: the entry would be gone
		}
	}
}

func (s *spawner) reap(wake <-chan struct{}) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.ECHILD) {
			<-wake
			continue
		}
		s.mu.Lock()
		pid, _ := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		id, ok := s.holders[pid]
		delete(s.holders, pid)
		s.mu.Unlock()
		if ok && confine.Send(fdSocket, spawnReply{ID: id, Ended: true}) != nil {
			syscall.Exit(0)
		}
	}
}

func (s *spawner) spawn(r spawnRequest, files []*os.File) error {
	if len(files) != 3 {
		return fmt.Errorf("the request has %d descriptors", len(files))
	}
	kind := 0
	if r.NoSetID {
		kind = 1
	}
	filter, err := s.filters[kind]()
	if err != nil {
		return err
	}
	socket, workspace, scratch, program := files[0], files[1], files[2], filter
	var more []*os.File
	if r.Trees {
		trees, err := takeTrees(r, workspace, scratch)
		defer confine.CloseAll(trees)
		if err != nil {
			return err
		}
		workspace, scratch, program, more = trees[0], trees[1], trees[2], trees[3:]
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }()
	fds := []uintptr{null.Fd(), null.Fd(), 2}
	for _, f := range append([]*os.File{socket, filter, workspace, scratch, program}, more...) {
		fds = append(fds, f.Fd())
	}
	return s.start(r, fds)
}

func (s *spawner) start(r spawnRequest, fds []uintptr) error {
	attr := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC |
			unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: insideID, HostID: r.UID, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: insideID, HostID: r.GID, Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_SETPCAP},
		Pdeathsig:   unix.SIGKILL,
		Setsid:      true,
	}
	if r.UID != os.Getuid() {
		attr.GidMappingsEnableSetgroups = true
		attr.Credential = &syscall.Credential{Uid: insideID, Gid: insideID}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	pid, err := syscall.ForkExec("/proc/self/exe", []string{marker, "holder"}, &syscall.ProcAttr{
		Dir: "/", Env: []string{"GOMAXPROCS=1"}, Files: fds, Sys: attr,
	})
	if err != nil {
		return failed("make the namespaces", err)
	}
	s.holders[pid] = r.ID
	return nil
}

// takeTrees takes workspace, scratch, this program and the further directories as
// mounts that hang nowhere yet. A child of another user could not walk to them.
func takeTrees(r spawnRequest, workspace, scratch *os.File) (trees []*os.File, err error) {
	take := func(dir int, path string, set uint64) error {
		f, err := openTree(dir, path, set)
		if err == nil {
			trees = append(trees, f)
		}
		return err
	}
	const data = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	if err := take(int(workspace.Fd()), "", data); err != nil {
		return trees, failed("take the workspace", err)
	}
	if r.Idmap {
		if err := showAs(trees[0], r.UID, r.GID); err != nil {
			return trees, failed("map the workspace's owner", err)
		}
	}
	if err := take(int(scratch.Fd()), "", data); err != nil {
		return trees, failed("take the scratch directory", err)
	}
	if err := take(unix.AT_FDCWD, "/proc/self/exe", readOnly); err != nil {
		return trees, failed("take this program", err)
	}
	for _, p := range r.ReadOnly {
		if err := take(unix.AT_FDCWD, filepath.Clean(p), readOnly); err != nil {
			return trees, failed("take the read-only directory "+p, err)
		}
	}
	return trees, nil
}

const readOnly = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV

// openTree returns a copy of the mounts at path, with attributes added to all.
func openTree(dir int, path string, set uint64) (*os.File, error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_RECURSIVE)
	if path == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	fd, err := unix.OpenTree(dir, path, flags)
	if err != nil {
		return nil, os.NewSyscallError("open_tree", err)
	}
	f := os.NewFile(uintptr(fd), path)
	attr := &unix.MountAttr{Attr_set: set}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
		return nil, errors.Join(os.NewSyscallError("mount_setattr", err), f.Close())
	}
	return f, nil
}

// showAs shows what root owns in the tree as owned by uid and gid, and lets them
// make files that root owns.
func showAs(tree *os.File, uid, gid int) error {
	attr := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, Pdeathsig: unix.SIGKILL,
		UidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
		GidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}},
		GidMappingsEnableSetgroups: true,
		Ptrace:                     true, // it stops before its first instruction
	}
	pid, err := syscall.ForkExec("/proc/self/exe", []string{marker}, &syscall.ProcAttr{Dir: "/", Sys: attr})
	if err != nil {
		return err
	}
	defer func() {
		_ = unix.Kill(pid, unix.SIGKILL)
		_, _ = unix.Wait4(pid, nil, 0, nil)
	}()
	ns, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/user")
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	mapped := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	err = unix.MountSetattr(int(tree.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, mapped)
	return os.NewSyscallError("mount_setattr", err)
}
