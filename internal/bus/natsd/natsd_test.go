package natsd_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus/natsd"
)

func TestStart_ServesWithAndWithoutAPort(t *testing.T) {
	for _, port := range []int{-1, 0} {
		s, err := natsd.Start(natsd.Options{StoreDir: t.TempDir(), Port: port})
		require.NoError(t, err)
		require.Positive(t, s.MaxStore())
		c, err := s.InProcessConn()
		require.NoError(t, err)
		buf := make([]byte, 4)
		_, err = c.Read(buf)
		require.NoError(t, err)
		require.Equal(t, "INFO", string(buf))
		require.NoError(t, c.Close())
		s.Shutdown()
	}
}

func TestStart_SaysThatThePortIsInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	_, err = natsd.Start(natsd.Options{StoreDir: t.TempDir(), Port: l.Addr().(*net.TCPAddr).Port})
	require.ErrorIs(t, err, natsd.ErrPortInUse)
	require.ErrorContains(t, err, "choose another one")
}

func TestStart_SaysThatTheStoreCantBeUsed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, dir := range []string{"", file, filepath.Join(file, "below")} {
		_, err := natsd.Start(natsd.Options{StoreDir: dir})
		require.ErrorIs(t, err, natsd.ErrStore, dir)
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "jetstream"), nil, 0o600)) // in the way of the server's own
	_, err := natsd.Start(natsd.Options{StoreDir: dir})
	require.Error(t, err)
}
