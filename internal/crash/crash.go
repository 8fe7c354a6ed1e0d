package crash

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"rookery/protocol"
)

// Variable is the environment's name of the place.
const Variable = "ROOKERY_CRASH"

// A plan is where this process ends.
type plan struct {
	point string
	nth   int64
	seen  atomic.Int64
}

// planned is read once: what a process does about crashes is decided at its start.
//
//nolint:gochecknoglobals // the environment of the process is global, too
var planned = sync.OnceValue(func() *plan { return parse(os.Getenv(Variable)) })

// parse reads "point" or "point:n"; nil when there is no point. A count that is
// none counts as 1.
func parse(s string) *plan {
	point, count, _ := strings.Cut(s, ":")
	if point == "" {
		return nil
	}
	n, err := strconv.ParseInt(count, 10, 64)
	if err != nil || n < 1 {
		n = 1
	}
	return &plan{point: point, nth: n}
}

// At ends the process if this is its place.
func At(point string) {
	p := planned()
	if p == nil || p.point != point || p.seen.Add(1) != p.nth {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way
}

// Before is At for the place in front of each record of a publish, and in front
// of the publish.
func Before(ms []protocol.Message) { around("before-", ms) }

// After is At for the place behind each stored record, and behind its publish.
func After(ms []protocol.Message) { around("after-", ms) }

func around(side string, ms []protocol.Message) {
	if planned() == nil {
		return
	}
	for _, m := range ms {
		At(side + word(m))
	}
	At(side + "append")
}

// Between reports that a frame must be cut between two records, because the place
// is there.
func Between(first, second protocol.Message) bool {
	p := planned()
	return p != nil && (p.point == "after-"+word(first) || p.point == "before-"+word(second))
}

// word is the kind of a record as places spell it.
func word(m protocol.Message) string { return strings.ReplaceAll(m.Kind(), "_", "-") }
