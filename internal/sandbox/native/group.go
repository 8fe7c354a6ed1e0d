package native

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rookery/internal/sandbox"
)

// A hierarchy is where this worker's control groups are:
//
//	<own>/<session>/0    holder and file helper
//	<own>/<session>/<n>  a call
//
// In version 1 each controller has a tree of that shape, in version 2 there is one.
type hierarchy struct {
	v2  bool
	own map[string]string // directory by controller
}

// groupPrefix begins the name of a worker's directory; process id, its
// start and a word of chance follow.
const groupPrefix = "rookery-"

// groupName makes a name for a backend's groups, of which a process may have several.
func groupName() string {
	return groupPrefix + strconv.Itoa(os.Getpid()) + "-" + startOf(os.Getpid()) + "-" + strings.ToLower(rand.Text()[:8])
}

// needed are the controllers without which limits are not enforced; without cpu
// there is only no share of the processors.
func needed() []string { return []string{"memory", "pids"} }

// findGroups looks for control groups that this process may make, removes what
// dead workers left there, and makes one of that name. root is where the host's
// files are.
func findGroups(root, name string) (*hierarchy, error) {
	places, v2, err := groupPlaces(root)
	if err != nil {
		return nil, err
	}
	h := &hierarchy{v2: v2, own: map[string]string{}}
	for _, base := range h.dirs(places) {
		sweep(base)
	}
	for controller, base := range places {
		h.own[controller] = filepath.Join(base, name)
		if err := os.Mkdir(h.own[controller], 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, errors.Join(err, h.close())
		}
	}
	if v2 {
		base := places["memory"]
		if err := errors.Join(makeRoom(base), delegate(base), delegate(h.own["memory"])); err != nil {
			return nil, errors.Join(err, h.close())
		}
	}
	return h, nil
}

func (h *hierarchy) close() error {
	var errs []error
	for _, d := range h.dirs(h.own) {
		errs = append(errs, removeGroup(d))
	}
	return errors.Join(errs...)
}

// dirs lists the directories once each, in a fixed order.
func (*hierarchy) dirs(by map[string]string) []string {
	var dirs []string
	for _, d := range by {
		dirs = append(dirs, d)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// makeRoom moves this process out of a group that is to hold groups.
func makeRoom(base string) error {
	if _, err := os.Stat(filepath.Join(base, "cgroup.type")); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	leaf := filepath.Join(base, "rookery")
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return write(filepath.Join(leaf, "cgroup.procs"), "0")
}

// delegate gives the groups in dir the controllers that dir has.
func delegate(dir string) error {
	file := filepath.Join(dir, "cgroup.subtree_control")
	_ = write(file, "+cpu") // may not be there
	return errors.Join(write(file, "+memory"), write(file, "+pids"))
}

func write(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// startOf is when a process started, in clock ticks; empty for none.
func startOf(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 20 {
		return ""
	}
	return string(f[19])
}

// sweep removes the groups of workers that are no more.
func sweep(base string) {
	entries, _ := os.ReadDir(base)
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), groupPrefix)
		f := strings.Split(rest, "-")
		if !ours || len(f) != 3 {
			continue
		}
		if pid, err := strconv.Atoi(f[0]); err != nil || startOf(pid) == f[1] {
			continue
		}
		_ = removeGroup(filepath.Join(base, e.Name())) // what stays is found by the next worker
	}
}

// removeGroup kills what is in a group and its groups, and removes them.
func removeGroup(dir string) error {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			_ = removeGroup(filepath.Join(dir, e.Name()))
		}
	}
	pause := time.Millisecond
	for end := time.Now().Add(time.Second); ; pause = min(2*pause, 50*time.Millisecond) {
		err := syscall.Rmdir(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return fmt.Errorf("remove control group %s: %w", dir, err)
		}
		killGroup(dir)
		<-time.After(pause)
	}
}

func killGroup(dir string) {
	if write(filepath.Join(dir, "cgroup.kill"), "1") == nil {
		return
	}
	procs, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for p := range strings.FieldsSeq(string(procs)) {
		if pid, err := strconv.Atoi(p); err == nil && pid > 1 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// A group is a session's or a call's, in all hierarchies. A nil one bounds nothing.
type group struct {
	h    *hierarchy
	dirs map[string]string
}

// session makes a session's group and the one for its holder.
func (h *hierarchy) session(id string, limits sandbox.Limits) (*group, error) {
	if h == nil {
		return nil, nil
	}
	g, err := h.make(h.own, id)
	if err != nil {
		return nil, err
	}
	if h.v2 {
		err = delegate(g.dirs["memory"])
	}
	if err = errors.Join(err, g.boundMemory(limits.Memory)); err != nil {
		return nil, errors.Join(err, g.remove())
	}
	return g, nil
}

// call makes the group of a call; name 0 is the holder's, which has no limits of
// its own.
func (g *group) call(name string, limits sandbox.Limits) (*group, error) {
	if g == nil {
		return nil, nil
	}
	c, err := g.h.make(g.dirs, name)
	if err != nil {
		return nil, err
	}
	if err := c.bound(limits); err != nil {
		return nil, errors.Join(err, c.remove())
	}
	return c, nil
}

func (h *hierarchy) make(in map[string]string, name string) (*group, error) {
	g := &group{h: h, dirs: map[string]string{}}
	for controller, dir := range in {
		g.dirs[controller] = filepath.Join(dir, name)
	}
	for _, d := range h.dirs(g.dirs) {
		if err := os.Mkdir(d, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { // an old one is as good
			return nil, errors.Join(fmt.Errorf("make a control group: %w", err), g.remove())
		}
	}
	return g, nil
}

func (g *group) remove() error {
	if g == nil {
		return nil
	}
	var errs []error
	for _, d := range g.h.dirs(g.dirs) {
		errs = append(errs, removeGroup(d))
	}
	return errors.Join(errs...)
}

func (g *group) bound(l sandbox.Limits) error {
	err := g.boundMemory(l.Memory)
	if g.h.v2 {
		err = errors.Join(err, g.set("memory", "memory.oom.group", "1"))
	}
	if l.Pids > 0 {
		err = errors.Join(err, g.set("pids", "pids.max", strconv.Itoa(l.Pids)))
	}
	if l.CPU > 0 {
		err = errors.Join(err, g.boundCPU(l.CPU))
	}
	return err
}

func (g *group) boundMemory(n int64) error {
	if n <= 0 {
		return nil
	}
	text := strconv.FormatInt(n, 10)
	if g.h.v2 {
		return errors.Join(g.set("memory", "memory.max", text), optional(g.set("memory", "memory.swap.max", "0")))
	}
	return errors.Join(
		g.set("memory", "memory.limit_in_bytes", text),
		optional(g.set("memory", "memory.memsw.limit_in_bytes", text)), // where swap is accounted
	)
}

func (g *group) boundCPU(perSecond time.Duration) error {
	if _, ok := g.dirs["cpu"]; !ok {
		return errors.New("a CPU limit needs the control group controller cpu, which is not there")
	}
	const period = 100 * time.Millisecond
	quota := max(perSecond*period/time.Second, time.Millisecond).Microseconds()
	if g.h.v2 {
		return g.set("cpu", "cpu.max", fmt.Sprintf("%d %d", quota, period.Microseconds()))
	}
	return errors.Join(
		g.set("cpu", "cpu.cfs_period_us", strconv.FormatInt(period.Microseconds(), 10)),
		g.set("cpu", "cpu.cfs_quota_us", strconv.FormatInt(quota, 10)),
	)
}

func (g *group) set(controller, file, text string) error {
	return write(filepath.Join(g.dirs[controller], file), text)
}

func optional(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// files opens what a process joins the group by: it writes 0.
func (g *group) files() ([]*os.File, error) {
	if g == nil {
		return nil, nil
	}
	var files []*os.File
	for _, d := range g.h.dirs(g.dirs) {
		f, err := os.OpenFile(filepath.Join(d, "cgroup.procs"), os.O_WRONLY, 0)
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
			return nil, fmt.Errorf("open a control group: %w", err)
		}
		files = append(files, f)
	}
	return files, nil
}

// oom reports whether the kernel has killed for memory in the group.
func (g *group) oom() bool {
	if g == nil {
		return false
	}
	file := "memory.oom_control"
	if g.h.v2 {
		file = "memory.events"
	}
	b, _ := os.ReadFile(filepath.Join(g.dirs["memory"], file))
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			return n != "0"
		}
	}
	return false
}
