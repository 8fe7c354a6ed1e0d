package session

import (
	"context"
	"errors"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	"rookery/internal/bus"
	"rookery/protocol"
)

const pingEvery = 250 * time.Millisecond

// peers are the other orchestrators as this one has seen them.
type peers struct {
	mu    sync.Mutex
	known map[protocol.ID]peer
}

// A peer answered, or its lease was seen, on the connection that began at link.
// One that is gone stays known, and is watched no more until it is seen again.
type peer struct {
	link time.Time
	gone bool
}

func (p *peers) seen(id protocol.ID, link time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil {
		p.known = map[protocol.ID]peer{}
	}
	p.known[id] = peer{link: link}
}

func (p *peers) gone(id protocol.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k, ok := p.known[id]; ok {
		k.gone = true
		p.known[id] = k
	}
}

// knew reports whether the node was seen alive on that connection.
func (p *peers) knew(id protocol.ID, link time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	k, ok := p.known[id]
	return ok && k.link.Equal(link)
}

// before returns the one that comes ahead of self in hashed order: whoever watches
// it is its successor.
func (p *peers) before(self protocol.ID) (protocol.ID, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ring := []protocol.ID{self}
	for id, k := range p.known {
		if id != self && !k.gone {
			ring = append(ring, id)
		}
	}
	if len(ring) < 2 {
		return "", false
	}
	slices.SortFunc(ring, func(a, b protocol.ID) int {
		if x, y := hash(a), hash(b); x != y {
			if x < y {
				return -1
			}
			return 1
		}
		return strings.Compare(string(a), string(b))
	})
	i := slices.Index(ring, self)
	return ring[(i+len(ring)-1)%len(ring)], true
}

func hash(id protocol.ID) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // never fails
	return h.Sum64()
}

// knew reports whether the node was seen alive on the present connection.
func (h *Host) knew(id protocol.ID) bool { return h.peers.knew(id, h.bus.Link().Since) }

// watchPeers notices orchestrators that are gone and takes their sessions over. A
// private orchestrator serves its own sessions only and watches nobody.
func (h *Host) watchPeers(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			_ = h.bus.WatchLeases(ctx, func(l bus.Lease, alive bool) { h.hearLease(ctx, l, alive) })
			sleep(ctx, time.Second)
		}
	})
	wg.Go(func() { h.pingPeers(ctx) })
	wg.Go(func() { h.sweep(ctx) })
	wg.Wait()
}

// sweep opens the running sessions of owners that were gone, or have let go, before
// this orchestrator knew them: at its start, and once more when it knows everybody.
// Those of its own name are among them: they were of a process before this one, or are
// open here and not disturbed.
func (h *Host) sweep(ctx context.Context) {
	for range 2 {
		h.inherit(ctx, "")
		if !sleep(ctx, bus.LeaseTTL) {
			return
		}
	}
}

func (h *Host) hearLease(ctx context.Context, l bus.Lease, alive bool) {
	if l.Kind != bus.LeaseOrchestrator || l.ID == h.cfg.Node {
		return
	}
	if alive {
		h.peers.seen(l.ID, h.bus.Link().Since)
		return
	}
	h.open.Go(func() { h.inherit(ctx, l.ID) })
}

// pingPeers asks the predecessor every 250 ms; nobody there, twice, is its end.
func (h *Host) pingPeers(ctx context.Context) {
	missed := 0
	var last protocol.ID
	for sleep(ctx, pingEvery) {
		id, ok := h.peers.before(h.cfg.Node)
		if !ok {
			continue
		}
		if id != last {
			last, missed = id, 0
		}
		link := h.bus.Link().Since
		pctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := h.bus.Ping(pctx, id)
		cancel()
		if err == nil {
			h.peers.seen(id, link)
		}
		if !errors.Is(err, bus.ErrGone) {
			missed = 0
			continue
		}
		if missed++; missed >= 2 && h.knew(id) {
			missed = 0
			h.inherit(ctx, id)
			h.peers.gone(id)
		}
	}
}

// inherit opens the running sessions of a node that is gone, and all others that
// nobody who lives has entered: an owner may go before its entry is written. Whether
// one really is gone, each session asks again before it is taken.
func (h *Host) inherit(ctx context.Context, node protocol.ID) {
	leases, err := h.bus.Leases(ctx)
	if err != nil {
		h.log.WarnContext(ctx, "leases not read", "err", err)
	}
	if node != "" {
		h.log.InfoContext(ctx, "orchestrator is gone", "node", node)
	}
	living := map[protocol.ID]bool{} // without this one: see sweep
	for _, l := range leases {
		living[l.ID] = living[l.ID] || l.Kind == bus.LeaseOrchestrator && l.ID != h.cfg.Node
	}
	living[node] = false
	for e, err := range h.bus.Sessions(ctx) {
		if err != nil {
			h.log.WarnContext(ctx, "directory not read", "err", err)
			return
		}
		if !living[e.Node] && e.State != protocol.StateIdle && !h.has(e.Session) {
			h.open.Go(func() { h.adopt(ctx, e.Session) })
		}
	}
}

// fail gives up a task whose trace can't be written (L059): viewers are told what it
// waits for, and once the trace can be written again the task ends with the cause.
func (h *Host) fail(s *session, cause string) {
	h.mu.Lock()
	h.failed[s.id] = cause
	h.mu.Unlock()
	waiting := protocol.New(protocol.Waiting{For: "the broker, to end the task: " + cause})
	s.publish(protocol.Live{Message: &waiting})
	h.open.Go(func() {
		if sleep(h.ctx, time.Second) {
			h.adopt(h.ctx, s.id)
		}
	})
}

// failing is why a task of this process must not go on, "" when it may: also when
// another owner has gone on with it meanwhile.
func (h *Host) failing(sid protocol.ID, previous protocol.Own) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	cause := h.failed[sid]
	delete(h.failed, sid)
	if previous.Boot != h.cfg.Boot {
		return ""
	}
	return cause
}

func (h *Host) has(sid protocol.ID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sessions[sid] != nil
}

// adopt opens a session that somebody must own, and tries again while that fails:
// its worker or the broker may be on the way back. Another owner is an end, too.
func (h *Host) adopt(ctx context.Context, sid protocol.ID) {
	for pause := time.Second; ; pause = min(2*pause, 5*time.Second) {
		answer := make(chan protocol.Reply, 1)
		h.deliver(sid, protocol.VerbTakeover, protocol.Command{ID: protocol.Token(8)}, func(r protocol.Reply) { answer <- r })
		select {
		case r := <-answer:
			if r.Code.Accepted() || r.Code == protocol.ReplyUse || r.Code == protocol.ReplyModel || r.Code == protocol.ReplyTrace {
				return
			}
			h.log.InfoContext(ctx, "session not taken over yet", "session", sid, "why", r.Reason)
		case <-ctx.Done():
			return
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}

// sleep waits for d; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
