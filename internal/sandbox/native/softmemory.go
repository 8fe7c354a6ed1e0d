package native

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"time"
)

// softEvery is how often memory is looked at where no control group bounds it.
const softEvery = 200 * time.Millisecond

// A softMemory kills calls whose processes together hold more private memory than
// they may. It is not exact: what happens between two looks is not seen.
type softMemory struct {
	holder *holder
	mu     sync.Mutex
	calls  map[int]int64 // limit in bytes by the call's first process
	runs   bool
}

func (s *softMemory) watch(pid int, limit int64) {
	if limit <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[pid] = limit
	if !s.runs {
		s.runs = true
		go s.run() // ends with the last call
	}
}

func (s *softMemory) forget(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, pid)
}

func (s *softMemory) run() {
	tick := time.NewTicker(softEvery)
	defer tick.Stop()
	for range tick.C {
		s.mu.Lock()
		if len(s.calls) == 0 {
			s.runs = false
			s.mu.Unlock()
			return
		}
		over := s.look()
		s.mu.Unlock()
		for _, pid := range over {
			s.holder.over(pid)
		}
	}
}

// look returns the calls that hold too much; the caller holds mu.
func (s *softMemory) look() (over []int) {
	parent, held := processes()
	sum := map[int]int64{}
	for pid, bytes := range held {
		for range 1 << 10 { // a chain ends: pids may be reused while it is read
			if _, ok := s.calls[pid]; ok {
				sum[pid] += bytes
				break
			}
			up, ok := parent[pid]
			if !ok || up <= 1 {
				break
			}
			pid = up
		}
	}
	for pid, n := range sum {
		if n > s.calls[pid] {
			over = append(over, pid)
		}
	}
	return over
}

// processes returns parent and private memory of every process that is seen.
func processes() (parent map[int]int, held map[int]int64) {
	parent, held = map[int]int{}, map[int]int64{}
	dir, err := os.Open("/proc")
	if err != nil {
		return parent, held
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(-1)
	page := int64(os.Getpagesize())
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		// The name may hold anything; what follows its last parenthesis is plain.
		if f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]); len(f) > 1 {
			parent[pid], _ = strconv.Atoi(string(f[1]))
		}
		statm, err := os.ReadFile("/proc/" + name + "/statm")
		if f := bytes.Fields(statm); err == nil && len(f) > 2 {
			resident, _ := strconv.ParseInt(string(f[1]), 10, 64)
			shared, _ := strconv.ParseInt(string(f[2]), 10, 64)
			held[pid] = (resident - shared) * page
		}
	}
	return parent, held
}
