package confine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

const (
	maxPacket = 32 << 10 // a longer message travels as a descriptor
	maxFiles  = 64
)

// A Conn passes messages and descriptors between processes of a sandbox, whole and
// in order. Many may send, one receives.
type Conn struct{ c *net.UnixConn }

// NewConn takes f, a seqpacket socket, over.
func NewConn(f *os.File) (*Conn, error) {
	defer func() { _ = f.Close() }()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("use the socket: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("not a unix socket"), c.Close())
	}
	return &Conn{u}, nil
}

// Pair returns a connection and its other end, for a child.
func Pair() (*Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	far := os.NewFile(uintptr(fds[1]), "far end")
	c, err := NewConn(os.NewFile(uintptr(fds[0]), "near end"))
	if err != nil {
		return nil, nil, errors.Join(err, far.Close())
	}
	return c, far, nil
}

// Send sends v and copies of the descriptors.
func (c *Conn) Send(v any, fds ...int) error {
	packet, fds, done, err := pack(v, fds)
	if err != nil {
		return err
	}
	defer done()
	if _, _, err := c.c.WriteMsgUnix(packet, rights(fds), nil); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// Recv waits for a message; io.EOF is the other side's end.
func (c *Conn) Recv(v any) ([]*os.File, error) {
	b, oob := make([]byte, maxPacket+1), make([]byte, unix.CmsgSpace(4*maxFiles))
	for {
		n, on, _, _, err := c.c.ReadMsgUnix(b, oob)
		if errors.Is(err, unix.ECONNRESET) {
			continue // it ended with messages unread; what it sent before still comes
		}
		if err != nil {
			return nil, err
		}
		return unpack(b[:n], oob[:on], v)
	}
}

// Close ends both directions.
func (c *Conn) Close() error { return c.c.Close() }

// Send sends v and copies of the descriptors over the seqpacket socket fd, blocking.
func Send(fd int, v any, fds ...int) error {
	packet, fds, done, err := pack(v, fds)
	if err != nil {
		return err
	}
	defer done()
	for {
		err := unix.Sendmsg(fd, packet, rights(fds), nil, unix.MSG_NOSIGNAL)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("send: %w", err)
		}
	}
}

// Recv waits for a message on the seqpacket socket fd; io.EOF is the other side's end.
func Recv(fd int, v any) ([]*os.File, error) {
	b, oob := make([]byte, maxPacket+1), make([]byte, unix.CmsgSpace(4*maxFiles))
	for {
		n, on, _, _, err := unix.Recvmsg(fd, b, oob, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNRESET) {
			continue // see Conn.Recv
		}
		if err != nil {
			return nil, fmt.Errorf("receive: %w", err)
		}
		return unpack(b[:n], oob[:on], v)
	}
}

func rights(fds []int) []byte {
	if len(fds) == 0 {
		return nil
	}
	return unix.UnixRights(fds...)
}

// A packet begins with where its JSON is.
const (
	inline = 'i'
	inFile = 'f' // in the first descriptor
)

func pack(v any, fds []int) (packet []byte, all []int, done func(), err error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("encode a message: %w", err)
	}
	if len(b) < maxPacket {
		return append([]byte{inline}, b...), fds, func() {}, nil
	}
	f, err := Memory("message", b)
	if err != nil {
		return nil, nil, nil, err
	}
	return []byte{inFile}, append([]int{int(f.Fd())}, fds...), func() { _ = f.Close() }, nil
}

func unpack(b, oob []byte, v any) ([]*os.File, error) {
	files, err := received(oob)
	if err != nil {
		return nil, err
	}
	switch {
	case len(b) == 0:
		err = io.EOF
	case b[0] == inFile && len(files) > 0:
		b, err = readFile(files[0])
		files = files[1:]
	default:
		b = b[1:]
	}
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		CloseAll(files)
		return nil, err
	}
	return files, nil
}

func received(oob []byte) (files []*os.File, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("receive descriptors: %w", err)
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue // something else than descriptors
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

func readFile(f *os.File) ([]byte, error) {
	defer func() { _ = f.Close() }()
	return Read(f)
}

// Memory returns a file that is only in memory and holds b. Nobody can change it.
func Memory(name string, b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(b)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("fill a file in memory: %w", err), f.Close())
	}
	return f, nil
}

// Read returns what a file made by Memory holds, wherever its offset is.
func Read(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read a file in memory: %w", err)
	}
	b := make([]byte, info.Size())
	if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read a file in memory: %w", err)
	}
	return b, nil
}

// CloseAll closes files, nil ones aside.
func CloseAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}
