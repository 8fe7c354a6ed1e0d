package protocol_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/protocol"
)

func TestCursor_TextIsReadAsItIsWritten(t *testing.T) {
	for _, c := range []protocol.Cursor{{}, {Seq: 7}, {Seq: 1<<64 - 1, Pos: 12}} {
		got, err := protocol.ParseCursor(c.String())
		require.NoError(t, err)
		require.Equal(t, c, got)
		b, err := json.Marshal(c)
		require.NoError(t, err)
		require.Equal(t, `"`+c.String()+`"`, string(b))
		require.NoError(t, json.Unmarshal(b, &got))
		require.Equal(t, c, got)
	}
	got, err := protocol.ParseCursor("")
	require.NoError(t, err)
	require.Zero(t, got)
	for _, bad := range []string{"1", "1.", ".1", "1.-1", "-1.0", "a.b", "1.2.3", "1.99999999999"} {
		_, err := protocol.ParseCursor(bad)
		require.Error(t, err, bad)
	}
}
