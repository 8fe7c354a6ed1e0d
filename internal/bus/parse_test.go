package bus_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/bus/bustest"
	"rookery/protocol"
)

func FuzzSubject(f *testing.F) {
	for _, s := range []string{
		"rk.trace.s1.001", "rk.trace.s1.001.x", "rk.trace.s1.own", "rk.trace.s1.own.x", "rk.out.s1.m.001", "rk.out.s1.m.own", "rk.out.s1.d",
		"rk.trace.s1.000", "rk.trace..001", "rk.done.w.w1.s1.1-0-1.c", "rk.done.p.p1.s1.1-0-1.d", "rk.tool.w1.s1.1-0-1", "w.w1", "p.*", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if again, err := bus.ParsePlace(s); err == nil && strings.HasPrefix(s, "rk.trace.") {
			second, err := bus.ParsePlace(again)
			require.NoError(t, err)
			require.Equal(t, again, second)
		}
		if d, err := bus.ParseDestination(s); err == nil {
			require.Equal(t, s, d.String())
		}
		if e, err := bus.ParseDone(s, []byte("{}")); err == nil {
			require.NoError(t, bus.CheckDispatch(e.Dispatch))
			require.Equal(t, 1, count(e.Claim != nil, e.Result != nil, e.Delta != nil))
		}
	})
}

func count(bs ...bool) (n int) {
	for _, b := range bs {
		if b {
			n++
		}
	}
	return n
}

func TestSubject_TraceIsReadAsItIsBuilt(t *testing.T) {
	for in, want := range map[string]string{
		"rk.trace.s1.001": "rk.trace.s1.001", "rk.trace.s1.012.x": "rk.trace.s1.012.x", "rk.trace.s1.1000": "rk.trace.s1.1000",
		"rk.trace.s1.own": "rk.trace.s1.own", "rk.out.s1.m.001": "rk.trace.s1.001", "rk.out.s1.m.own": "rk.trace.s1.own",
	} {
		got, err := bus.ParsePlace(in)
		require.NoError(t, err, in)
		require.Equal(t, want, got)
	}
	for _, bad := range []string{"rk.trace.s1.own.x", "rk.trace.s1.000", "rk.trace.s1.1.y", "rk.trace.s 1.001", "rk.out.s1.d", "xx.trace.s1.001", "rk.trace.s1"} {
		_, err := bus.ParsePlace(bad)
		require.Error(t, err, bad)
	}
}

// piece is a stored message of the trace as a reader gets it.
func piece(subject string, seq, n, prev int, part, body string) *nats.Msg {
	m := nats.NewMsg(subject)
	m.Data = []byte(body)
	m.Header.Set("Nats-Sequence", strconv.Itoa(seq))
	m.Header.Set("Rk-N", strconv.Itoa(n))
	m.Header.Set("Rk-Prev", strconv.Itoa(prev))
	if part != "" {
		m.Header.Set("Rk-Part", part)
	}
	return m
}

func TestAssembler_SkipsBrokenRunsAndBridgesThem(t *testing.T) {
	line := string(text("whole").Encode())
	a, b, c := line[:20], line[20:40], line[40:]
	const ctx, own = "rk.trace.s1.001", "rk.trace.s1.own"
	fs, bad := bus.Assemble([]*nats.Msg{
		piece(ctx, 2, 1, 0, "", line),
		piece(ctx, 3, 2, 2, "1/3", a), // its owner died here
		piece(ctx, 4, 2, 3, "2/3", b),
		piece(own, 5, 0, 4, "", `{"epoch":2}`),
		piece(ctx, 6, 2, 4, "1/3", a), // and the next one too
		piece(own, 7, 0, 6, "", `{"epoch":3}`),
		piece(ctx, 8, 2, 6, "1/3", a),
		piece(ctx, 9, 2, 8, "2/3", b),
		piece(ctx, 10, 2, 9, "3/3", c),
		piece(ctx, 11, 3, 10, "2/2", b), // no beginning
		piece(ctx, 12, 3, 11, "", line),
		piece(ctx+".x", 13, 3, 12, "1/2", a),
		piece(ctx, 14, 4, 12, "", line),
	})
	require.Zero(t, bad)
	var got [][3]uint64
	for _, f := range fs {
		if f.Own == nil {
			got = append(got, [3]uint64{f.Seq, f.N, f.Prev})
		}
	}
	require.Equal(t, [][3]uint64{{2, 1, 0}, {10, 2, 2}, {12, 3, 10}, {14, 4, 12}}, got)
	require.Equal(t, []string{"whole", "whole", "whole", "whole"}, texts(t, fs))
}

func TestAssembler_NeverJoinsPiecesOfTwoRecords(t *testing.T) {
	line := string(text("whole").Encode())
	fs, bad := bus.Assemble([]*nats.Msg{
		piece("rk.trace.s1.001", 3, 2, 2, "1/2", line[:20]),
		// lost on the way: the second part and the first one of another record
		piece("rk.trace.s1.001", 6, 3, 5, "2/2", line[20:]),
	})
	require.Zero(t, bad)
	require.Empty(t, fs)
}

func TestLog_GoesOnAfterARunThatItsOwnerLeftUnfinished(t *testing.T) {
	s := bustest.NewTCP(t)
	b := s.Bus(t)
	l := openLog(t, b, "b1")
	appendTexts(t, l, 1, false, "a")
	nc, err := nats.Connect(s.URL())
	require.NoError(t, err)
	defer nc.Close()
	m := piece("rk.trace.s1.001", 0, 2, 2, "1/3", "half")
	m.Header.Del("Nats-Sequence")
	_, err = nc.RequestMsgWithContext(soon(t), m) // as the owner would, before it dies
	require.NoError(t, err)

	l = openLog(t, b, "b2")
	require.Equal(t, uint64(1), l.Last().N)
	appendTexts(t, l, 1, false, "b")
	fs := trace(t, b, 0)
	require.Equal(t, []string{"a", "b"}, texts(t, fs))
	last := fs[len(fs)-1]
	require.Equal(t, uint64(2), last.N)
	require.Equal(t, uint64(2), last.Prev, "leads over the run")
}

func FuzzAssemble(f *testing.F) {
	line := string(text("x").Encode())
	f.Add("1/2", line[:10], "2/2", line[10:], uint64(1))
	f.Add("", line+"\n"+line, "1/1", line, uint64(0))
	f.Add("2/1", "", "0/0", "{", uint64(9))
	f.Fuzz(func(t *testing.T, p1, b1, p2, b2 string, n uint64) {
		ms := []*nats.Msg{
			piece("rk.trace.s1.001", 1, int(n>>1), 0, p1, b1),
			piece("rk.trace.s1.001", 2, int(n>>1), 1, p2, b2),
			piece("rk.trace.s1.own", 3, 0, 2, "", "{}"),
		}
		fs, bad := bus.Assemble(ms)
		require.LessOrEqual(t, len(fs)+bad, 3)
		for _, fr := range fs {
			require.True(t, fr.Own != nil || len(fr.Messages) > 0)
			rest, ok := fr.After(protocol.Cursor{Seq: fr.Seq})
			require.True(t, !ok || len(rest.Messages) == len(fr.Messages)-1)
		}
	})
}
