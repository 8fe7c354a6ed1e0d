package confine_test

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"rookery/internal/sandbox/confine"
)

type message struct {
	Text string
	N    int
}

func TestWire_PassesMessagesAndDescriptors(t *testing.T) {
	near, far, err := confine.Pair()
	require.NoError(t, err)
	defer func() { _ = near.Close() }()
	for n, text := range []string{"", "short", strings.Repeat("long ", 100_000)} {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		require.NoError(t, near.Send(message{text, n}, int(r.Fd()), int(w.Fd())))
		require.NoError(t, r.Close())
		require.NoError(t, w.Close())

		var got message
		files, err := confine.Recv(int(far.Fd()), &got)
		require.NoError(t, err)
		require.Equal(t, message{text, n}, got)
		require.Len(t, files, 2)
		flags, err := unix.FcntlInt(files[0].Fd(), unix.F_GETFD, 0)
		require.NoError(t, err)
		require.NotZero(t, flags&unix.FD_CLOEXEC)
		_, err = files[1].WriteString("x")
		require.NoError(t, err)
		b := make([]byte, 8)
		read, err := files[0].Read(b)
		require.NoError(t, err)
		require.Equal(t, 1, read)
		confine.CloseAll(files)

		require.NoError(t, confine.Send(int(far.Fd()), message{"back", n}))
		files, err = near.Recv(&got)
		require.NoError(t, err)
		require.Empty(t, files)
		require.Equal(t, message{"back", n}, got)
	}
	require.NoError(t, far.Close())
	_, err = near.Recv(&message{})
	require.ErrorIs(t, err, io.EOF)
}

func TestWire_LastWordsComeThoughTheOtherDidNotListen(t *testing.T) {
	near, far, err := confine.Pair()
	require.NoError(t, err)
	defer func() { _ = near.Close() }()
	require.NoError(t, near.Send(message{"unread", 1}))
	require.NoError(t, confine.Send(int(far.Fd()), message{"last", 2}))
	require.NoError(t, far.Close())
	var got message
	_, err = near.Recv(&got)
	require.NoError(t, err)
	require.Equal(t, "last", got.Text)
}

func TestMemory_CannotBeChanged(t *testing.T) {
	f, err := confine.Memory("test", []byte("text"))
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	_, err = f.WriteAt([]byte("T"), 0)
	require.ErrorIs(t, err, unix.EPERM)
	b, err := confine.Read(f)
	require.NoError(t, err)
	require.Equal(t, "text", string(b))
}
