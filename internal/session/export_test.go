package session

import (
	"time"

	"rookery/internal/bus"
	"rookery/protocol"
)

// Peers are for the tests of who watches whom.
type Peers struct{ peers }

// Seen notes that a peer answered on the connection that began at link.
func (p *Peers) Seen(id protocol.ID, link time.Time) { p.seen(id, link) }

// Gone notes that it is not there any more.
func (p *Peers) Gone(id protocol.ID) { p.gone(id) }

// Knew reports whether it was seen on that connection.
func (p *Peers) Knew(id protocol.ID, link time.Time) bool { return p.knew(id, link) }

// Before is whom self watches.
func (p *Peers) Before(self protocol.ID) (protocol.ID, bool) { return p.before(self) }

// Queued returns what a session queues for its trace, in order, when the engine says
// all of said and running calls record what is in between; and how many records at
// the end may not leave yet. The task's prompt has that many messages.
func Queued(b *bus.Bus, prompt int, said ...protocol.Payload) (queued []string, unready int, err error) {
	h, err := New(Config{Bus: b, Models: func(string) (Model, error) { return Model{}, nil }})
	if err != nil {
		return nil, 0, err
	}
	s := newSession(h, "s1")
	s.prompt = prompt
	for _, p := range said {
		switch p.(type) {
		case protocol.CallDispatched, protocol.CallFate:
			s.take(keeping{message: protocol.New(p)})
		default:
			s.take(protocol.New(p))
		}
	}
	s.working.Wait()
	for _, r := range s.queue {
		queued = append(queued, r.message.String())
	}
	return queued, s.unready(), nil
}
