package bus_test

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/bus/bustest"
	"rookery/internal/bus/natsd"
	"rookery/protocol"
)

func TestConnect_SaysFastWhenNobodyIsThere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close()) // a port where nobody listens
	_, err = bus.Connect(t.Context(), bus.Options{Servers: []string{"nats://" + l.Addr().String()}})
	require.ErrorIs(t, err, bus.ErrUnreachable)
	_, err = bus.Connect(t.Context(), bus.Options{Context: "/no/such/context.json"})
	require.ErrorIs(t, err, bus.ErrUnreachable)
	_, err = bus.Connect(t.Context(), bus.Options{Prefix: "a.b"})
	require.ErrorContains(t, err, "prefix")
	nobody := errors.New("no runtime file")
	_, err = bus.Connect(t.Context(), bus.Options{Resolve: func() (string, string, string, error) { return "", "", "", nobody }})
	require.ErrorIs(t, err, bus.ErrUnreachable)
	require.ErrorIs(t, err, nobody)
}

func TestConnect_WaitsWhenAsked(t *testing.T) {
	s := bustest.NewTCP(t)
	var asked atomic.Int32
	b := s.Connect(t, bus.Options{Retry: true, Resolve: func() (string, string, string, error) {
		if asked.Add(1) < 5 {
			return "", "", "", errors.New("not yet")
		}
		return s.URL(), "", "", nil
	}})
	require.True(t, b.Connected())
	ctx, cancel := withTimeout(t, 10)
	defer cancel()
	_, err := bus.Connect(ctx, bus.Options{Retry: true, Resolve: func() (string, string, string, error) { return "", "", "", errors.New("never") }})
	require.ErrorIs(t, err, bus.ErrUnreachable)
}

func TestConnect_FollowsABrokerToAnotherPortAndPassword(t *testing.T) {
	dir := t.TempDir()
	start := func(password string) *natsd.Server {
		srv, err := natsd.Start(natsd.Options{StoreDir: dir, Port: -1, User: "u", Password: password, MaxStore: 1 << 30})
		require.NoError(t, err)
		return srv
	}
	srv := start("one")
	_, err := bus.Connect(t.Context(), bus.Options{Servers: []string{srv.ClientURL()}, User: "u", Password: "wrong"})
	require.ErrorIs(t, err, bus.ErrAuth)
	_, err = bus.Connect(t.Context(), bus.Options{Servers: []string{srv.ClientURL()}, Retry: true})
	require.ErrorIs(t, err, bus.ErrAuth, "waiting does not help")

	var mu sync.Mutex
	password := "one"
	b, err := bus.Connect(t.Context(), bus.Options{Resolve: func() (string, string, string, error) {
		mu.Lock()
		defer mu.Unlock()
		return srv.ClientURL(), "u", password, nil
	}})
	require.NoError(t, err)
	defer b.Close()
	require.NoError(t, b.Setup(t.Context(), bus.StoreOptions{}))
	l := openLog(t, b, "b1")

	srv.Shutdown()
	next := start("two")
	mu.Lock()
	srv, password = next, "two"
	mu.Unlock()
	defer next.Shutdown()
	_, err = l.Append(soon(t), 1, false, []protocol.Message{text("a")})
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, texts(t, trace(t, b, 0)))
}

func TestSetup_NamesAStreamThatCantServe(t *testing.T) {
	s := bustest.NewTCP(t)
	nc, err := nats.Connect(s.URL())
	require.NoError(t, err)
	defer nc.Close()
	_, err = nc.RequestMsgWithContext(soon(t), &nats.Msg{
		Subject: "$JS.API.STREAM.CREATE.X2_TRACE",
		Data:    []byte(`{"name":"X2_TRACE","subjects":["x2.trace.>"],"storage":"memory","retention":"limits","num_replicas":1}`),
	})
	require.NoError(t, err)
	b := s.Connect(t, bus.Options{Prefix: "x2"})
	err = b.Setup(t.Context(), bus.StoreOptions{MaxStore: 100 << 20})
	require.ErrorIs(t, err, bus.ErrIncompatible)
	require.ErrorContains(t, err, "X2_TRACE")
	require.ErrorContains(t, err, "storage")
}

func TestPrefix_KeepsTwoApart(t *testing.T) {
	s := bustest.NewServer(t)
	b, other := s.Bus(t), s.Connect(t, bus.Options{Prefix: "rk2"})
	require.NoError(t, other.Setup(t.Context(), bus.StoreOptions{MaxStore: 20 << 20}))
	appendTexts(t, openLog(t, b, "b1"), 1, false, "a")
	appendTexts(t, openLog(t, other, "b1"), 1, false, "b")
	require.Equal(t, []string{"a"}, texts(t, trace(t, b, 0)))
	require.Equal(t, []string{"b"}, texts(t, trace(t, other, 0)))
}

func TestRespond_OnlyToInboxes(t *testing.T) {
	s := bustest.NewTCP(t)
	b := s.Bus(t)
	stop, err := b.ServeSession(sid, func(_ protocol.ID, _ protocol.Verb, _ protocol.Command, respond func(protocol.Reply)) {
		respond(accepted())
	})
	require.NoError(t, err)
	defer stop()
	nc, err := nats.Connect(s.URL())
	require.NoError(t, err)
	defer nc.Close()
	got := make(chan *nats.Msg, 4)
	_, err = nc.ChanSubscribe("victim", got)
	require.NoError(t, err)
	require.NoError(t, nc.PublishRequest("rk.cmd.s1.abort", "victim", []byte(`{"id":"c"}`)))
	r, err := nc.RequestMsgWithContext(soon(t), &nats.Msg{Subject: "rk.cmd.s1.abort", Data: []byte(`{"id":"c"}`)})
	require.NoError(t, err, "later on the same connection")
	require.JSONEq(t, `{"code":"accepted"}`, string(r.Data))
	r, err = nc.RequestMsgWithContext(soon(t), &nats.Msg{Subject: "rk.cmd.s1.abort", Data: []byte(`{`)})
	require.NoError(t, err)
	require.Contains(t, string(r.Data), "bad_request")
	require.Empty(t, got)
}

func TestClose_EndsEverythingAndMayBeRepeated(t *testing.T) {
	s := bustest.NewServer(t)
	b := s.Bus(t)
	out, err := b.Subscribe(t.Context(), sid)
	require.NoError(t, err)
	next := make(chan error, 1)
	go func() {
		_, err := out.Next(context.Background())
		next <- err
	}()
	b.Close()
	b.Close()
	require.ErrorIs(t, <-next, bus.ErrClosed)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.ErrorIs(t, b.PutSession(ctx, protocol.Entry{Session: sid}), bus.ErrClosed)
	_, err = b.ServeSession(sid, nil)
	require.ErrorIs(t, err, bus.ErrClosed)
	require.False(t, b.Connected())
}

// The broker has less room than it tells an account of: all streams share it, even if
// several programs set them up at once.
func TestSetup_FitsIntoASmallStore(t *testing.T) {
	for _, size := range []int64{64 << 20, 100 << 20, 300 << 20, 600 << 20, 1500 << 20, 3 << 30, 20 << 30} {
		t.Run(strconv.FormatInt(size>>20, 10)+" MiB", func(t *testing.T) {
			t.Parallel()
			srv, err := natsd.Start(natsd.Options{StoreDir: t.TempDir(), MaxStore: size})
			require.NoError(t, err)
			t.Cleanup(srv.Shutdown)
			errs := make(chan error, 4)
			for range cap(errs) {
				b, err := bus.Connect(t.Context(), bus.Options{InProcess: srv})
				require.NoError(t, err)
				t.Cleanup(b.Close)
				go func() { errs <- b.Setup(t.Context(), bus.StoreOptions{}) }()
			}
			for range cap(errs) {
				require.NoError(t, <-errs)
			}
		})
	}
}

func TestProbe_LeavesNothingAndTellsOfAFullStream(t *testing.T) {
	b := bustest.NewSmall(t, 16<<20).Bus(t)
	_, err := b.Probe(t.Context())
	require.NoError(t, err)
	require.Empty(t, texts(t, trace(t, b, 0)))
	l := openLog(t, b, "b1")
	for err == nil {
		_, err = l.Append(soon(t), 1, false, []protocol.Message{text(strings.Repeat("x", 500_000))})
	}
	_, err = b.Probe(t.Context())
	require.ErrorContains(t, err, "write to the trace: broker: maximum bytes exceeded")
}
