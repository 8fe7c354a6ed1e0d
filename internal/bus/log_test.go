package bus_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/bus/bustest"
	"rookery/protocol"
)

func TestLog_FramesAreReadAsTheyWereAppended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.Start(t)
		ok, err := b.Exists(t.Context(), sid)
		require.NoError(t, err)
		require.False(t, ok)

		l := openLog(t, b, "b1")
		require.Equal(t, uint64(1), l.Epoch())
		appendTexts(t, l, 1, true, "meta")
		appendTexts(t, l, 1, false, "a", "b")
		appendTexts(t, l, 1, true, "summary")
		st := appendTexts(t, l, 2, false, "c")
		require.Equal(t, bus.Stored{Seq: 5, N: 3}, st)

		began := time.Now()
		fs := trace(t, b, 0)
		require.Zero(t, time.Since(began), "what is there is not waited for")
		require.Len(t, fs, 5)
		require.Equal(t, &protocol.Own{Epoch: 1, Node: node, Boot: "b1"}, fs[0].Own)
		require.Equal(t, []string{"meta", "a", "b", "summary", "c"}, texts(t, fs))
		type place struct {
			seq, n, prev uint64
			context      int
			private      bool
		}
		var got []place
		for _, f := range fs[1:] {
			got = append(got, place{f.Seq, f.N, f.Prev, f.Context, f.Private})
		}
		require.Equal(t, []place{{2, 0, 0, 1, true}, {3, 1, 0, 1, false}, {4, 2, 3, 1, true}, {5, 3, 3, 2, false}}, got)
		require.Equal(t, []string{"summary", "c"}, texts(t, trace(t, b, 3)))
	})
}

func TestLog_TakeoverFencesTheOwnerBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := bustest.NewServer(t)
		b1, b2 := s.Bus(t), s.Bus(t)
		l1 := openLog(t, b1, "b1")
		appendTexts(t, l1, 1, false, "a", "b")

		l2 := openLog(t, b2, "b2")
		require.Equal(t, uint64(2), l2.Epoch())
		_, err := l1.Append(t.Context(), 1, false, []protocol.Message{text("late")})
		require.ErrorIs(t, err, bus.ErrFenced)
		_, err = l1.Append(t.Context(), 1, false, []protocol.Message{text("later")})
		require.ErrorIs(t, err, bus.ErrFenced)

		l3 := openLog(t, b1, "b3") // over an owner that wrote nothing
		appendTexts(t, l3, 1, false, "c")
		fs := trace(t, b2, 0)
		require.Equal(t, []string{"a", "b", "c"}, texts(t, fs))
		last := fs[len(fs)-1]
		require.Equal(t, uint64(3), last.N)
		require.Equal(t, uint64(2), last.Prev)
		require.Equal(t, []uint64{0, 2, 3}, []uint64{fs[0].Prev, fs[2].Prev, fs[3].Prev}, "own records lead to the last that viewers got")

		own, seq, err := b2.LastOwn(t.Context(), sid)
		require.NoError(t, err)
		require.Equal(t, &protocol.Own{Epoch: 3, Node: node, Boot: "b3"}, own)
		require.Equal(t, uint64(4), seq)
	})
}

func TestLog_OfTwoTakeoversAtOnceOneWins(t *testing.T) {
	s := bustest.NewServer(t)
	buses := []*bus.Bus{s.Bus(t), s.Bus(t)}
	for round := range 20 {
		logs, errs := make([]*bus.Log, 2), make([]error, 2)
		var wg sync.WaitGroup
		for i, b := range buses {
			wg.Go(func() { logs[i], errs[i] = b.OpenLog(t.Context(), sid, node, []string{"b1", "b2"}[i]) })
		}
		wg.Wait()
		alive := 0
		for i, l := range logs {
			var race *bus.RaceError
			switch {
			case errors.As(errs[i], &race):
				require.ErrorIs(t, errs[i], bus.ErrRaced)
				require.NotEmpty(t, race.Winner.Boot)
				continue
			default:
				require.NoError(t, errs[i])
			}
			if _, err := l.Append(t.Context(), 1, false, []protocol.Message{text("x")}); err == nil {
				alive++
			} else {
				require.ErrorIs(t, err, bus.ErrFenced)
			}
		}
		require.Equal(t, 1, alive, "round %d", round)
	}
	require.Len(t, texts(t, trace(t, buses[0], 0)), 20)
}

func TestLog_AppendThatLostItsAnswerIsStoredOnce(t *testing.T) {
	s := bustest.NewServer(t)
	b := s.Bus(t)
	l := openLog(t, b, "b1")
	appendTexts(t, l, 1, false, "first")

	out, err := s.Bus(t).Subscribe(t.Context(), sid)
	require.NoError(t, err)
	s.DeafenBus(b)
	done := make(chan error, 1)
	go func() {
		_, err := l.Append(soon(t), 1, false, []protocol.Message{text("second")})
		done <- err
	}()
	ev, err := out.Next(soon(t)) // it is stored; the writer can't know
	require.NoError(t, err)
	require.NotNil(t, ev.Frame)
	s.Cut()
	require.NoError(t, <-done)
	appendTexts(t, l, 1, false, "third")
	require.Equal(t, []string{"first", "second", "third"}, texts(t, trace(t, b, 0)))
}

func TestLog_AppendThatLostItsAnswerToASuccessorIsFenced(t *testing.T) {
	s := bustest.NewServer(t)
	b, other := s.Bus(t), s.Bus(t)
	l := openLog(t, b, "b1")
	s.DeafenBus(b)
	out, err := other.Subscribe(t.Context(), sid)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := l.Append(soon(t), 1, false, []protocol.Message{text("mine")})
		done <- err
	}()
	_, err = out.Next(soon(t))
	require.NoError(t, err)
	appendTexts(t, openLog(t, other, "b2"), 1, false, "theirs")
	s.Cut()
	require.ErrorIs(t, <-done, bus.ErrFenced)
	require.Equal(t, []string{"mine", "theirs"}, texts(t, trace(t, other, 0)))
}

func TestLog_AppendWithoutAnswerLeavesTheLogInDoubt(t *testing.T) {
	s := bustest.NewServer(t)
	b := s.Bus(t)
	l := openLog(t, b, "b1")
	s.Stop()
	ctx, cancel := withTimeout(t, 50)
	defer cancel()
	_, err := l.Append(ctx, 1, false, []protocol.Message{text("a")})
	require.ErrorIs(t, err, ctx.Err())
	_, err = l.Append(t.Context(), 1, false, []protocol.Message{text("b")})
	require.ErrorIs(t, err, bus.ErrInDoubt)
}

func TestLog_LargeRecordsComeInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.Start(t)
		l := openLog(t, b, "b1")
		out, err := b.Subscribe(t.Context(), sid)
		require.NoError(t, err)
		big := strings.Repeat("0123456789", 50<<10) // 500 KiB: three parts
		st := appendTexts(t, l, 1, false, "before", big, "after", big)
		require.Equal(t, bus.Stored{Seq: 9, N: 4}, st)
		appendTexts(t, l, 1, true, big)
		appendTexts(t, l, 1, false, "end")

		want := []string{"before", big, "after", big, "end"}
		var seen []bus.Frame
		for len(seen) < len(want) {
			ev, err := out.Next(t.Context())
			require.NoError(t, err)
			require.NotNil(t, ev.Frame, "%+v", ev)
			seen = append(seen, *ev.Frame)
		}
		require.Equal(t, want, texts(t, seen))
		prev := uint64(0)
		for i, f := range seen {
			require.Equal(t, uint64(i+1), f.N)
			require.Equal(t, prev, f.Prev)
			prev = f.Seq
		}
		require.Equal(t, []string{"before", big, "after", big, big, "end"}, texts(t, trace(t, b, 0)))
		require.Equal(t, uint64(5), openLog(t, b, "b2").Last().N)
	})
}

func TestLog_ManyRecordsAreSplitOverFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.Start(t)
		l := openLog(t, b, "b1")
		var want []string
		for i := range 40 {
			want = append(want, strings.Repeat(string(rune('a'+i%26)), 20<<10))
		}
		st := appendTexts(t, l, 1, false, want...)
		require.Equal(t, uint64(40), st.N)
		fs := trace(t, b, 0)
		require.Equal(t, want, texts(t, fs))
		require.Len(t, fs, 1+4, "20 KiB records, 12 in a frame")
	})
}

func TestPurge_RemovesTheSessionAndFencesItsOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.Start(t)
		l := openLog(t, b, "b1")
		appendTexts(t, l, 1, false, "a")
		require.NoError(t, b.Purge(t.Context(), sid))
		_, err := l.Append(t.Context(), 1, false, []protocol.Message{text("b")})
		require.ErrorIs(t, err, bus.ErrFenced)
		require.Empty(t, trace(t, b, 0))
		_, err = b.LastSeq(t.Context(), sid)
		require.ErrorIs(t, err, bus.ErrNoSession)
		require.Equal(t, uint64(1), openLog(t, b, "b2").Epoch())
	})
}

func TestServerRestart_KeepsTheTraceAndTheOwner(t *testing.T) {
	s := bustest.NewServer(t)
	b := s.Bus(t)
	changes := make(chan bus.Link, 8)
	defer b.Watch(func(l bus.Link) { changes <- l })()
	before := b.Link()
	l := openLog(t, b, "b1")
	appendTexts(t, l, 1, false, "a")
	s.Restart(t)
	st, err := l.Append(soon(t), 1, false, []protocol.Message{text("b")})
	require.NoError(t, err)
	require.Equal(t, uint64(2), st.N)
	require.Equal(t, []string{"a", "b"}, texts(t, trace(t, b, 0)))
	require.False(t, (<-changes).Up)
	up := <-changes
	require.True(t, up.Up)
	require.NotEqual(t, before.Server, up.Server)
}

func TestLog_IsTakenFromTheOwnerThatWasSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := bustest.NewServer(t)
		first, second := s.Bus(t), s.Bus(t)
		_, err := first.TakeLog(t.Context(), sid, node, "b1", 1)
		require.ErrorIs(t, err, bus.ErrRaced)
		l, err := first.TakeLog(t.Context(), sid, node, "b1", 0)
		require.NoError(t, err)
		_, err = second.TakeLog(t.Context(), sid, node, "b2", 0)
		var raced *bus.RaceError
		require.ErrorAs(t, err, &raced)
		require.Equal(t, protocol.Own{Epoch: 1, Node: node, Boot: "b1"}, raced.Winner)
		appendTexts(t, l, 1, false, "still its owner")
		l, err = second.TakeLog(t.Context(), sid, node, "b2", 1)
		require.NoError(t, err)
		require.Equal(t, uint64(2), l.Epoch())
	})
}
