package session

import (
	"time"

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
