package protocol_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/protocol"
)

func TestCallIDs(t *testing.T) { // L033
	var ids protocol.CallIDs
	require.Equal(t, "f", ids.Unique("f"))
	require.Equal(t, "f#2", ids.Unique("f"))
	require.Equal(t, "f#3", ids.Unique("f"))
	require.Equal(t, "g", ids.Unique("g"))
	for _, id := range []string{"f", "f#2", "f#3"} {
		require.Equal(t, "f", protocol.ProviderCallID(id))
	}
}

func TestCallIDs_HistoryIsReserved(t *testing.T) { // L033
	var ids protocol.CallIDs
	ids.Reserve("f")
	ids.Reserve("f#2")
	clone := ids.Clone()
	require.Equal(t, "f#3", ids.Unique("f"))
	require.Equal(t, "f#3", clone.Unique("f"), "a clone is independent")
}

func TestCallIDs_EmptyGetsOne(t *testing.T) {
	var ids protocol.CallIDs
	a, b := ids.Unique(""), ids.Unique("")
	require.NotEqual(t, a, b)
	require.True(t, strings.HasPrefix(a, "call_"), a)
	require.Equal(t, a, protocol.ProviderCallID(a))
}

func TestProviderCallID_KeepsWhatIsNoSuffix(t *testing.T) {
	for _, id := range []string{"", "#2", "a#1", "a#x", "a#", "a#-2", "a#02", "a#+2", "call_1"} {
		require.Equal(t, id, protocol.ProviderCallID(id))
	}
}

func TestParseID(t *testing.T) {
	for _, ok := range []string{"a", "A-b_9", strings.Repeat("x", 40)} {
		id, err := protocol.ParseID(ok)
		require.NoError(t, err)
		require.Equal(t, protocol.ID(ok), id)
	}
	for _, bad := range []string{"", "a.b", "a b", "a*", ">", "é", "a\n", strings.Repeat("x", 41)} {
		_, err := protocol.ParseID(bad)
		require.Error(t, err, "%q", bad)
	}
	_, err := protocol.ParseID(string(protocol.NewSessionID()))
	require.NoError(t, err)
}
