package sandboxtest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/sandbox"
)

// leastProbes is how many ways out the suite tries at least.
const leastProbes = 250

// Escape tries to leave a session in every way the suite knows, and prints what
// became of it. Each leak must be one that the backend admits: known leaks, by
// group and name joined with a slash, or by group alone. The test binary calls
// Main first thing.
func Escape(t *testing.T, b sandbox.Backend, known ...string) {
	t.Helper()
	const secret = "ROOKERY_TEST_SECRET"
	t.Setenv(secret, "worker-only-value")
	around := surroundings(t)
	inside, sibling := openSession(t, b, "inside", around.dir), openSession(t, b, "sibling", around.dir)
	h := around.host()
	h.Secret, h.Workspace, h.Sibling = os.Getenv(secret), inside.workspace, sibling.workspace
	h.Neighbor = sibling.neighbor()
	inside.describe(h)
	out, r := inside.run(sandbox.CallSpec{Argv: []string{"./" + probeName, "escape"}, Timeout: time.Minute})
	verdicts := parse(t, out, r)
	verdicts = append(verdicts, around.seen()...)
	verdicts = append(verdicts, setID(inside.workspace))
	report(t, verdicts, known)
}

func parse(t *testing.T, out string, r sandbox.Result) (list []verdict) {
	t.Helper()
	for line := range strings.Lines(out) {
		var v verdict
		require.NoError(t, json.Unmarshal([]byte(line), &v), "the prober said: %s", line)
		list = append(list, v)
	}
	require.NotEmpty(t, list, "the prober said nothing and ended with %+v", r)
	require.Equal(t, last, list[len(list)-1].Name, "the prober did not come to its end: %+v", r)
	return list[:len(list)-1]
}

func report(t *testing.T, list []verdict, known []string) {
	t.Helper()
	var table strings.Builder
	count := map[string][2]int{}
	var order, leaks []string
	for _, v := range list {
		n, ok := count[v.Group]
		if !ok {
			order = append(order, v.Group)
		}
		n[0]++
		if v.Leak != "" {
			n[1]++
			line := fmt.Sprintf("%s/%s: %s", v.Group, v.Name, v.Leak)
			if slices.Contains(known, v.Group+"/"+v.Name) || slices.Contains(known, v.Group) {
				fmt.Fprintf(&table, "  admitted  %s\n", line)
			} else {
				leaks = append(leaks, line)
			}
		}
		count[v.Group] = n
	}
	total, leaked := 0, 0
	for _, g := range order {
		fmt.Fprintf(&table, "  %-28s %3d tried %3d leaked\n", g, count[g][0], count[g][1])
		total, leaked = total+count[g][0], leaked+count[g][1]
	}
	t.Logf("ways out of the sandbox\n%s  %-28s %3d tried %3d leaked", table.String(), "all", total, leaked)
	require.GreaterOrEqual(t, total, leastProbes)
	require.Empty(t, leaks)
}

// around is a part of the host that a session must not reach.
type around struct {
	t       *testing.T
	dir     string
	file    string
	tcp, v6 net.Listener
	lan     net.Listener
	unix    net.Listener
	hidden  net.Listener
	udp     net.PacketConn
	dgram   net.PacketConn
	process *exec.Cmd
}

func surroundings(t *testing.T) *around {
	t.Helper()
	a := &around{t: t, dir: openDir(t)}
	a.file = filepath.Join(a.dir, "canary")
	require.NoError(t, os.WriteFile(a.file, []byte("do not touch\n"), 0o666))
	require.NoError(t, os.Chmod(a.file, 0o666))
	a.tcp = a.listen("tcp", "127.0.0.1:0")
	if l, err := net.Listen("tcp", "[::1]:0"); err == nil { // not everywhere
		a.v6 = l
		t.Cleanup(func() { _ = l.Close() })
	}
	if address := ownAddress(); address != "" {
		a.lan = a.listen("tcp", net.JoinHostPort(address, "0"))
	}
	a.unix = a.listen("unix", filepath.Join(a.dir, "socket"))
	require.NoError(t, os.Chmod(a.unix.Addr().String(), 0o777))
	a.hidden = a.listen("unix", "@rookery-canary-"+filepath.Base(a.dir))
	a.udp = a.packets("udp", "127.0.0.1:0")
	a.dgram = a.packets("unixgram", a.unix.Addr().String()+".dgram")
	require.NoError(t, os.Chmod(a.unix.Addr().String()+".dgram", 0o777))
	a.process = exec.CommandContext(t.Context(), "sleep", "600")
	require.NoError(t, a.process.Start())
	t.Cleanup(func() {
		_ = a.process.Process.Kill()
		_ = a.process.Wait()
	})
	return a
}

// openDir is a directory that anybody may enter, so that only the sandbox is in
// the way.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rookery-around-") //nolint:usetesting // t.TempDir is under directories that only root enters
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o777))
	return dir
}

func (a *around) listen(network, address string) net.Listener {
	l, err := net.Listen(network, address)
	require.NoError(a.t, err)
	a.t.Cleanup(func() { _ = l.Close() })
	return l
}

func (a *around) packets(network, address string) net.PacketConn {
	c, err := net.ListenPacket(network, address)
	require.NoError(a.t, err)
	a.t.Cleanup(func() { _ = c.Close() })
	return c
}

func ownAddress() string {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && n.IP.To4() != nil {
			return n.IP.String()
		}
	}
	return ""
}

func (a *around) host() host {
	h := host{
		Dir: a.dir, File: a.file, Socket: a.unix.Addr().String(), Abstract: a.hidden.Addr().String(),
		TCP: a.tcp.Addr().String(), UDP: a.udp.LocalAddr().String(), Process: a.process.Process.Pid,
	}
	if a.v6 != nil {
		h.TCP6 = a.v6.Addr().String()
	}
	if a.lan != nil {
		h.LAN = a.lan.Addr().String()
	}
	return h
}

// seen is what the probes did that only the host sees.
func (a *around) seen() []verdict {
	text, err := os.ReadFile(a.file)
	require.NoError(a.t, err)
	changed := ""
	if string(text) != "do not touch\n" {
		changed = fmt.Sprintf("%q", text)
	}
	return []verdict{
		{"seen by the host", "the canary changed", changed},
		{"seen by the host", "a datagram came", came(a.udp)},
		{"seen by the host", "a local datagram came", came(a.dgram)},
		{"seen by the host", "somebody connected", accepted(a.tcp, a.v6, a.lan)},
		{"seen by the host", "somebody connected locally", accepted(a.unix, a.hidden)},
	}
}

// came reports what lies in the socket's queue.
func came(c net.PacketConn) string {
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) // it would be there already
	b := make([]byte, 64)
	if n, _, err := c.ReadFrom(b); err == nil {
		return fmt.Sprintf("%q", b[:n])
	}
	return ""
}

func accepted(listeners ...net.Listener) string {
	for _, l := range listeners {
		d, ok := l.(interface{ SetDeadline(t time.Time) error })
		if !ok {
			continue
		}
		_ = d.SetDeadline(time.Now().Add(10 * time.Millisecond)) // see came
		if c, err := l.Accept(); err == nil {
			_ = c.Close()
			return "on " + l.Addr().String()
		}
	}
	return ""
}

// setID looks for programs in the workspace that would make others root.
func setID(dir string) verdict {
	v := verdict{Group: "seen by the host", Name: "set-id files of root in the workspace"}
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // the rest still counts
		}
		info, err := e.Info()
		if err != nil {
			return nil //nolint:nilerr // it is gone
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if ok && !info.IsDir() && (st.Uid == 0 && info.Mode()&os.ModeSetuid != 0 || st.Gid == 0 && info.Mode()&os.ModeSetgid != 0) {
			v.Leak = path
		}
		return nil
	})
	return v
}

// openSession opens a session whose workspace holds this test binary.
func openSession(t *testing.T, b sandbox.Backend, id, dir string) *bench {
	t.Helper()
	spec := sandbox.SessionSpec{
		ID: id, Workspace: filepath.Join(dir, id, "w"), Scratch: filepath.Join(dir, id+"-scratch", "s"),
		Env: []string{"PATH=" + sandbox.DefaultPath + ":/usr/local/go/bin"},
	}
	require.NoError(t, os.MkdirAll(spec.Workspace, 0o755))
	require.NoError(t, os.MkdirAll(spec.Scratch, 0o755))
	s, err := b.Open(t.Context(), spec)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	program, err := os.ReadFile("/proc/self/exe") // its path may be out of reach
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(spec.Workspace, probeName), program, 0o755))
	return &bench{t: t, backend: b, Session: s, workspace: spec.Workspace}
}

func (b *bench) describe(h host) {
	text, err := json.Marshal(h)
	require.NoError(b.t, err)
	require.NoError(b.t, os.WriteFile(filepath.Join(b.workspace, hostFile), text, 0o644))
}

// neighbor has the session serve, until its end, and returns what.
func (b *bench) neighbor() (n neighbor) {
	c := b.start(sandbox.CallSpec{Argv: []string{"./" + probeName, "serve"}, Merge: true})
	out, _ := c.Output()
	r := bufio.NewReader(out)
	line, err := r.ReadString('\n')
	require.NoError(b.t, err, line)
	_, err = fmt.Sscan(line, &n.TCP, &n.Abstract, &n.Key)
	require.NoError(b.t, err, line)
	go func() { _, _ = io.Copy(io.Discard, r) }() // ends with the call
	return n
}
