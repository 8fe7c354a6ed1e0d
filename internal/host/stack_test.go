package host_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/client"
	"rookery/internal/bus"
	"rookery/internal/bus/natsd"
	"rookery/internal/config"
	"rookery/internal/host"
	"rookery/internal/trace"
	"rookery/protocol"
)

// start starts roles that end with the test.
func (h *home) start(t *testing.T, b *bus.Bus, r host.Roles) *host.Stack {
	t.Helper()
	h.cfg.Sandbox = "none"
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := host.Start(ctx, b, h.cfg, r, nil)
	require.NoError(t, err)
	t.Cleanup(s.Stop)
	return s
}

// work has the demo model count the words of a file in dir, which takes it three
// turns. It returns the session, how it ended and the last text.
func work(t *testing.T, c *client.Client, s *host.Stack, dir string) (sid protocol.ID, end protocol.TaskEnd, said string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	task, err := c.At(s.Node).Run(ctx, client.RunRequest{
		Prompt: "count the words in three.txt", Options: protocol.TaskOptions{Approve: "allow-all"},
		New: protocol.SessionOptions{Model: config.Demo, Worker: s.Worker, Workspace: dir},
	})
	require.NoError(t, err)
	for e, err := range c.Follow(ctx, task, nil) {
		require.NoError(t, err)
		if p, ok := e.Message.Payload.(protocol.Text); ok {
			said = p.Text
		}
		if p, ok := e.Message.Payload.(protocol.TaskEnd); ok {
			end = p
		}
	}
	return task.Session, end, said
}

// count is work that must be completed.
func count(t *testing.T, c *client.Client, s *host.Stack, dir string) (protocol.ID, string) {
	t.Helper()
	sid, end, said := work(t, c, s, dir)
	require.Equal(t, protocol.TaskCompleted, end.Status, "%+v", end)
	return sid, said
}

func workspace(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "three.txt"), []byte("one two three\n"), 0o600))
	return dir
}

func verify(t *testing.T, c *client.Client, sid protocol.ID) {
	t.Helper()
	var rs []trace.Record
	for r, err := range c.Records(t.Context(), sid) {
		require.NoError(t, err)
		if r.Own != nil {
			continue
		}
		rs = append(rs, trace.Record{Context: r.Context, Private: r.Private, Message: r.Message})
	}
	require.NotEmpty(t, rs)
	require.Empty(t, trace.Verify(rs, nil))
}

func TestStart_APrivateStackServesItsOwnRun(t *testing.T) {
	h := newHome(t)
	b := h.join(t)
	c := client.New(b)
	dir := workspace(t)
	s := h.start(t, b, host.Roles{Orchestrator: true, Worker: true, Private: true, Allow: []string{dir}})
	sid, said := count(t, c, s, dir)
	require.Contains(t, said, "3")
	verify(t, c, sid)

	// It takes nothing from the queue.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := c.Run(ctx, client.RunRequest{Prompt: "hello", New: protocol.SessionOptions{Model: config.Demo}})
	require.ErrorIs(t, err, client.ErrNoOrchestrator)
}

func TestStart_WorkersOfOneUserHaveRootsOfTheirOwnAndKeepTheirIDs(t *testing.T) {
	h := newHome(t)
	b := h.join(t)
	dir := workspace(t)
	roles := host.Roles{Orchestrator: true, Worker: true, Private: true, Allow: []string{dir}}
	first, second := h.start(t, b, roles), h.start(t, b, roles)
	require.NotEqual(t, first.Worker, second.Worker)
	require.NotEqual(t, first.Node, second.Node)
	count(t, client.New(b), first, dir)
	count(t, client.New(b), second, dir)

	first.Stop()
	require.NoError(t, first.Wait())
	third := h.start(t, b, roles)
	require.Equal(t, first.Worker, third.Worker, "the free root has the worker's id")
	count(t, client.New(b), third, dir)
}

func TestStart_ASandboxThatIsNotThereIsAnError(t *testing.T) {
	h := newHome(t)
	b := h.join(t)
	h.cfg.Sandbox = "paper"
	_, err := host.Start(t.Context(), b, h.cfg, host.Roles{Orchestrator: true, Worker: true}, nil)
	require.ErrorIs(t, err, host.ErrSandbox)
	require.ErrorContains(t, err, "paper")
}

func TestStart_NoRoleIsAnError(t *testing.T) {
	h := newHome(t)
	_, err := host.Start(t.Context(), h.join(t), h.cfg, host.Roles{}, nil)
	require.Error(t, err)
}

func TestServe_TakesTheStoreFromADetachedBrokerAndServesEverybody(t *testing.T) {
	h := newHome(t)
	before := h.join(t)
	require.NoError(t, before.PutSession(t.Context(), protocol.Entry{Session: "kept"}))
	detached := h.broker(t)

	dir := workspace(t)
	url, stop := h.serve(t, dir)
	require.NotEqual(t, detached, h.broker(t))
	require.Eventually(t, before.Connected, patience, pollEvery, "a client of the broker before does not come over")
	_, err := before.Session(t.Context(), "kept")
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{Server: []string{url}})
	require.NoError(t, err)
	defer c.Close()
	task, err := c.Run(ctx, client.RunRequest{
		Prompt: "count the words in three.txt", Options: protocol.TaskOptions{Approve: "allow-all"},
		New: protocol.SessionOptions{Model: config.Demo, Workspace: dir},
	})
	require.NoError(t, err)
	for _, err := range c.Follow(ctx, task, nil) {
		require.NoError(t, err)
	}
	verify(t, c, task.Session)
	require.NoError(t, stop())
	require.Zero(t, h.broker(t))

	again, stop := h.serve(t, dir)
	require.Equal(t, userinfo.FindString(url), userinfo.FindString(again), "who joined before can't join again")
	require.NoError(t, stop())
}

var (
	address  = regexp.MustCompile(`NATS_URL=(\S+)`)
	userinfo = regexp.MustCompile(`//[^@]+@`)
)

// serve runs Serve until stop, or the end of the test, and returns its address.
func (h *home) serve(t *testing.T, dir string) (url string, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	r, w := io.Pipe()
	go func() {
		done <- host.Serve(ctx, h.cfg, host.ServeOptions{
			Listen: "127.0.0.1:0", Out: w,
			Roles: host.Roles{Orchestrator: true, Worker: true, Allow: []string{dir}},
		})
		_ = w.Close()
	}()
	stopped := false
	stop = func() error {
		cancel()
		if stopped {
			return nil
		}
		stopped = true
		return <-done
	}
	t.Cleanup(func() { _ = stop() })
	var said strings.Builder
	for m := []string(nil); m == nil; m = address.FindStringSubmatch(said.String()) {
		b := make([]byte, 1024)
		n, err := r.Read(b)
		said.Write(b[:n])
		if err != nil {
			require.NoError(t, stop(), said.String())
			require.NoError(t, err, said.String())
		}
	}
	return address.FindStringSubmatch(said.String())[1], stop
}

func TestServe_AnAddressThatIsNoneIsAnError(t *testing.T) {
	h := newHome(t)
	for _, listen := range []string{"nonsense", "127.0.0.1:x", "127.0.0.1:70000"} {
		require.ErrorContains(t, host.Serve(t.Context(), h.cfg, host.ServeOptions{Listen: listen}), listen)
	}
	require.Zero(t, h.broker(t))
}

func TestServe_APortInUseIsAnErrorThatSaysWhatToDo(t *testing.T) {
	h := newHome(t)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	err = host.Serve(t.Context(), h.cfg, host.ServeOptions{Listen: l.Addr().String()})
	require.ErrorIs(t, err, natsd.ErrPortInUse)
	require.ErrorContains(t, err, "choose another one")
	h.untilFree(t)
}

func TestServe_TwoOnOneStoreIsAnError(t *testing.T) {
	h := newHome(t)
	_, stop := h.serve(t, workspace(t))
	err := host.Serve(t.Context(), h.cfg, host.ServeOptions{Listen: "127.0.0.1:0"})
	require.ErrorIs(t, err, host.ErrStoreBusy)
	require.NoError(t, stop())
}

func TestStart_AModelThatIsNotConfiguredIsRefused(t *testing.T) {
	h := newHome(t)
	b := h.join(t)
	dir := workspace(t)
	s := h.start(t, b, host.Roles{Orchestrator: true, Worker: true, Private: true, Allow: []string{dir}})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := client.New(b).At(s.Node).Run(ctx, client.RunRequest{
		Prompt: "hello", New: protocol.SessionOptions{Model: "nobody", Worker: s.Worker, Workspace: dir},
	})
	refused, ok := errors.AsType[*client.RefusedError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, protocol.ReplyModel, refused.Reply.Code)
	require.Contains(t, refused.Reply.Reason, "nobody")
}

func TestStart_TheLoopsSettingsAreTheConfigurations(t *testing.T) {
	h := newHome(t)
	h.cfg.MaxTurns = 1
	b := h.join(t)
	dir := workspace(t)
	s := h.start(t, b, host.Roles{Orchestrator: true, Worker: true, Private: true, Allow: []string{dir}})
	_, err := protocol.ParseID(string(s.Node))
	require.NoError(t, err)
	_, end, _ := work(t, client.New(b), s, dir)
	require.Equal(t, protocol.TaskMaxTurns, end.Status)
}
