package sandbox

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A tree finds the processes of a call. Without a pid namespace there is no
// certain way, so every trace counts: the call's process group and session,
// parents, and a marker in the environment, which daemons inherit.
type tree struct {
	root   int
	since  uint64 // when root started, in clock ticks; nothing older belongs to it
	marker string
}

func newMarker() string {
	b := make([]byte, 12)
	_, _ = rand.Read(b) // never fails
	return "ROOKERY_PROCESS=" + hex.EncodeToString(b)
}

// terminate asks all processes to end. A stopped one is continued, to hear it.
func (t tree) terminate() {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGCONT} {
		_ = syscall.Kill(-t.root, sig)
		for _, p := range t.processes() {
			if p.group != t.root {
				p.signal(sig)
			}
		}
	}
}

// killAll kills until no process is found, for at most two seconds: one that the
// kernel holds cannot be waited for. The root must not be reaped yet.
func (t tree) killAll() {
	pause := time.Millisecond
	for end := time.Now().Add(2 * time.Second); ; pause = min(2*pause, 50*time.Millisecond) {
		_ = syscall.Kill(-t.root, syscall.SIGKILL)
		found := t.processes()
		for _, p := range found {
			p.signal(syscall.SIGKILL)
		}
		if len(found) == 0 || time.Now().After(end) {
			return
		}
		<-time.After(pause)
	}
}

// processes lists the living processes of the tree.
func (t tree) processes() []stat {
	all := t.candidates()
	ours := map[int]bool{t.root: true}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if !ours[p.pid] && (ours[p.parent] || p.group == t.root || p.session == t.root || p.marked) {
				ours[p.pid], grown = true, true
			}
		}
	}
	var found []stat
	for _, p := range all {
		if ours[p.pid] && !p.dead {
			found = append(found, p)
		}
	}
	return found
}

func (t tree) candidates() []stat {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(-1)
	var all []stat
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == os.Getpid() {
			continue
		}
		p, err := readStat(pid)
		if err != nil || p.start < t.since {
			continue
		}
		if !p.dead {
			env, _ := os.ReadFile("/proc/" + name + "/environ")
			p.marked = bytes.Contains(env, []byte(t.marker))
		}
		all = append(all, p)
	}
	return all
}

// A stat is what is known of one process.
type stat struct {
	pid, parent, group, session int
	start                       uint64
	dead, marked                bool
}

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, err
	}
	// The name may hold anything; what follows its last parenthesis is plain.
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 20 {
		return stat{}, fmt.Errorf("stat of process %d has %d fields", pid, len(f))
	}
	n := func(i int) int { v, _ := strconv.Atoi(string(f[i])); return v }
	start, err := strconv.ParseUint(string(f[19]), 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("start of process %d: %w", pid, err)
	}
	state := f[0][0]
	return stat{pid: pid, parent: n(1), group: n(2), session: n(3), start: start, dead: state == 'Z' || state == 'X'}, nil
}

// signal sends sig to this very process, not to a later one with its number.
func (p stat) signal(sig syscall.Signal) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	if now, err := readStat(p.pid); err != nil || now.start != p.start {
		return
	}
	_ = unix.PidfdSendSignal(fd, sig, nil, 0)
}
