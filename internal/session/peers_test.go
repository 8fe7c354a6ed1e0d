package session_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/session"
	"rookery/protocol"
)

// That a node is gone is believed at once because it was there before: noticing
// its end must not make it a stranger.
func TestPeers_OneThatIsGoneStaysKnown(t *testing.T) {
	var p session.Peers
	link := time.Unix(1, 0)
	p.Seen("b", link)
	p.Gone("b")
	require.True(t, p.Knew("b", link))
	_, ok := p.Before("a")
	require.False(t, ok, "nobody watches one that is gone")
	p.Seen("b", link)
	id, ok := p.Before("a")
	require.True(t, ok)
	require.Equal(t, protocol.ID("b"), id)
}

// What was known on another connection proves nothing, but is still whom to watch.
func TestPeers_ANewConnectionForgetsNobody(t *testing.T) {
	var p session.Peers
	before, now := time.Unix(1, 0), time.Unix(2, 0)
	p.Seen("b", before)
	p.Seen("c", before)
	p.Seen("d", now)
	require.False(t, p.Knew("b", now))
	require.False(t, p.Knew("e", now))
	require.True(t, p.Knew("d", now))
	watched := map[protocol.ID]bool{}
	for _, self := range []protocol.ID{"a", "b", "c", "d"} {
		p.Seen("a", now)
		id, ok := p.Before(self)
		require.True(t, ok)
		watched[id] = true
	}
	require.Len(t, watched, 4, "each is watched by one")
}
