package sandboxtest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func connect(network string, address func(h host) string) func(host) string {
	return func(h host) string {
		a := address(h)
		if a == "" || a == noNeighbor {
			return ""
		}
		c, err := net.DialTimeout(network, a, patience)
		if err != nil {
			return ""
		}
		_ = c.Close()
		return "connected to " + a
	}
}

func fixed(address string) func(host) string { return func(host) string { return address } }

func networkProbes() []probe {
	return []probe{
		{"a port of the host", connect("tcp", func(h host) string { return h.TCP })},
		{"a port of the host over IPv6", connect("tcp", func(h host) string { return h.TCP6 })},
		{"a port on the host's address", connect("tcp", func(h host) string { return h.LAN })},
		{"the broker's port", connect("tcp", fixed("127.0.0.1:4222"))},
		{"the metadata service", connect("tcp", fixed("169.254.169.254:80"))},
		{"a name server", connect("tcp", fixed("1.1.1.1:53"))},
		{"a datagram to the host", func(h host) string { // whether it came is seen there
			if c, err := net.Dial("udp", h.UDP); err == nil {
				_, _ = c.Write([]byte("out"))
				_ = c.Close()
			}
			return ""
		}},
		{"resolve a name", func(host) string {
			if a, err := net.LookupHost("example.com"); err == nil {
				return strings.Join(a, " ")
			}
			return ""
		}},
		{"interfaces but loopback", func(host) string {
			b, _ := os.ReadFile("/proc/self/net/dev")
			for line := range strings.Lines(string(b)) {
				if name, _, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) != "lo" {
					return strings.TrimSpace(name)
				}
			}
			return ""
		}},
		{"connections of the host", func(h host) string {
			_, port, _ := net.SplitHostPort(h.TCP)
			var n int
			_, _ = fmt.Sscan(port, &n)
			b, _ := os.ReadFile("/proc/self/net/tcp")
			if strings.Contains(string(b), fmt.Sprintf(":%04X ", n)) {
				return "seen in /proc/net/tcp"
			}
			return ""
		}},
		{"a multipath connection", func(h host) string {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP)
			if err != nil {
				return ""
			}
			defer func() { _ = unix.Close(fd) }()
			tcp, err := net.ResolveTCPAddr("tcp4", h.TCP)
			if err != nil {
				return err.Error()
			}
			if unix.Connect(fd, &unix.SockaddrInet4{Port: tcp.Port, Addr: [4]byte{127, 0, 0, 1}}) == nil {
				return "connected"
			}
			return ""
		}},
	}
}

func socketProbes() []probe {
	return []probe{
		{"a socket file of the host", connect("unix", func(h host) string { return h.Socket })},
		{"an abstract socket of the host", connect("unix", func(h host) string { return h.Abstract })},
		{"the system log", connect("unixgram", fixed("/dev/log"))},
		{"the journal", connect("unixgram", fixed("/run/systemd/journal/socket"))},
		{"the message bus", connect("unix", fixed("/run/dbus/system_bus_socket"))},
		{"the container engine", connect("unix", fixed("/var/run/docker.sock"))},
		{"a datagram pair connected to the host", func(h host) string {
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
			if err != nil {
				return ""
			}
			defer func() { _, _ = unix.Close(fds[0]), unix.Close(fds[1]) }()
			if unix.Connect(fds[0], &unix.SockaddrUnix{Name: h.Socket + ".dgram"}) == nil {
				return "connected"
			}
			return ""
		}},
		{"a link in the workspace to a socket of the host", func(h host) string {
			_ = os.Symlink(h.Socket, "probe-socket")
			return connect("unix", fixed("probe-socket"))(h)
		}},
	}
}

func inheritedProbes() []probe {
	return []probe{
		{"descriptors but stdin, stdout, stderr", func(host) string {
			entries, _ := os.ReadDir("/proc/self/fd")
			for _, e := range entries {
				target, err := os.Readlink("/proc/self/fd/" + e.Name())
				ours := strings.HasPrefix(target, "anon_inode:") || strings.HasPrefix(target, "/proc/") || len(e.Name()) == 1 && e.Name() <= "2"
				if err == nil && !ours {
					return e.Name() + " is " + target
				}
			}
			return ""
		}},
		{"files of the host as standard streams", func(host) string {
			for fd := range 3 {
				var st unix.Stat_t
				if unix.Fstat(fd, &st) == nil && (st.Mode&unix.S_IFMT == unix.S_IFREG || st.Mode&unix.S_IFMT == unix.S_IFDIR) {
					return fmt.Sprintf("descriptor %d", fd)
				}
			}
			return ""
		}},
		{"the host through a descriptor's ..", func(h host) string {
			for fd := range 20 {
				path := filepath.Join("/proc/self/fd", fmt.Sprint(fd)) + "/.." + h.File
				if got := readable(path); got != "" {
					return got
				}
			}
			return ""
		}},
		{"the worker's environment", func(h host) string {
			if strings.Contains(strings.Join(os.Environ(), "\n"), h.Secret) {
				return "the secret is there"
			}
			return ""
		}},
		{"variables of the worker", func(host) string {
			for _, e := range os.Environ() {
				for _, p := range []string{"NATS_", "OPENAI_", "AWS_", "SSH_", "XDG_", "DBUS_", "GOFLAGS", "USER=", "LOGNAME="} {
					if strings.HasPrefix(e, p) {
						return e
					}
				}
			}
			return ""
		}},
		{"core dumps", func(host) string {
			var l unix.Rlimit
			if unix.Getrlimit(unix.RLIMIT_CORE, &l) != nil || l.Max != 1 {
				return fmt.Sprintf("the limit is %d", l.Max)
			}
			return ""
		}},
		{"raise a limit", func(host) string {
			l := unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}
			return denied(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, uintptr(unsafe.Pointer(&l)), 0)
		}},
		{"a controlling terminal", func(host) string { return writable("/dev/tty") }},
		{"a better priority", func(host) string { return denied(unix.SYS_SETPRIORITY, 0, 0, ^uintptr(4)) }},
		{"real time", func(host) string {
			p := int32(1)
			return denied(unix.SYS_SCHED_SETSCHEDULER, 0, 1, uintptr(unsafe.Pointer(&p)))
		}},
	}
}

func neighborProbes() []probe {
	return []probe{
		{"its port", connect("tcp", func(h host) string { return h.Neighbor.TCP })},
		{"its abstract socket", connect("unix", func(h host) string { return h.Neighbor.Abstract })},
		{"its shared memory", func(h host) string {
			if _, _, e := unix.RawSyscall(unix.SYS_SHMGET, uintptr(h.Neighbor.Key), 1, 0); e == 0 {
				return "found"
			}
			return ""
		}},
		{"its /tmp", func(host) string { return readable("/tmp/" + neighborFile) }},
		{"its /dev/shm", func(host) string { return readable("/dev/shm/" + neighborFile) }},
		{"its home", func(host) string { return readable(filepath.Join(os.Getenv("HOME"), neighborFile)) }},
		{"its workspace", func(h host) string { return readable(h.Sibling) }},
		{"its message queue", func(host) string { return readable("/dev/mqueue") }},
	}
}

const neighborFile = "neighbor-was-here"

// serve is the other session: it lays out what it can, says what, and stays.
func serve() {
	n := neighbor{TCP: noNeighbor, Abstract: noNeighbor, Key: os.Getpid() + 0x524b0000}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		n.TCP = l.Addr().String()
	}
	if a, err := net.Listen("unix", fmt.Sprint("@rookery-neighbor-", os.Getpid(), time.Now().UnixNano())); err == nil {
		defer func() { _ = a.Close() }()
		n.Abstract = a.Addr().String()
	}
	_, _, _ = unix.RawSyscall(unix.SYS_SHMGET, uintptr(n.Key), 4096, 0o666|unix.IPC_CREAT)
	for _, dir := range []string{"/tmp", "/dev/shm", os.Getenv("HOME")} {
		_ = os.WriteFile(filepath.Join(dir, neighborFile), []byte("here"), 0o644)
	}
	_, _ = fmt.Fprintln(os.Stdout, n.TCP, n.Abstract, n.Key)
	for {
		if l == nil {
			<-time.After(time.Hour)
			continue
		}
		c, err := l.Accept()
		if err != nil {
			return
		}
		_ = c.Close()
	}
}

// noNeighbor is the address of what a session cannot hold out.
const noNeighbor = "none"
