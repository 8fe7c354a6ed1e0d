package bus_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/bus/bustest"
	"rookery/protocol"
)

func TestOutput_ShowsWhatIsStoredInOrderAndNothingPrivate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.Start(t)
		out, err := b.Subscribe(t.Context(), sid)
		require.NoError(t, err)
		defer out.Close()
		l := openLog(t, b, "b1")
		appendTexts(t, l, 1, true, "secret")
		appendTexts(t, l, 1, false, "a", "b")
		appendTexts(t, l, 1, true, "secret")
		appendTexts(t, l, 1, false, "c")
		require.NoError(t, b.PublishLive(sid, protocol.Live{Epoch: 1, After: 3, Segment: "1.1"}))

		var frames []bus.Frame
		var live *protocol.Live
		for live == nil || len(frames) < 3 { // the live comes on another connection
			ev, err := out.Next(t.Context())
			require.NoError(t, err)
			if ev.Live != nil {
				live = ev.Live
				continue
			}
			require.NotNil(t, ev.Frame, "%+v", ev)
			frames = append(frames, *ev.Frame)
		}
		require.NotNil(t, frames[0].Own)
		require.Equal(t, []string{"a", "b", "c"}, texts(t, frames))
		require.Equal(t, uint64(1), frames[1].N)
		require.Equal(t, frames[1].Seq, frames[2].Prev)
		require.Equal(t, "1.1", live.Segment)
		synctest.Wait()
		out.Close()
		_, err = out.Next(t.Context())
		require.ErrorIs(t, err, bus.ErrClosed, "nothing else came")
	})
}

func TestOutput_SlowReaderLosesLivesFirstAndIsToldOfLostFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.Start(t)
		out, err := b.Subscribe(t.Context(), sid)
		require.NoError(t, err)
		defer out.Close()
		l := openLog(t, b, "b1")
		appendTexts(t, l, 1, false, "a")
		for i := range 5000 {
			require.NoError(t, b.PublishLive(sid, protocol.Live{Epoch: 1, Offset: i}))
		}
		appendTexts(t, l, 1, false, "b")
		synctest.Wait()

		var frames []bus.Frame
		lives, last := 0, 0
		for len(frames) < 3 || last < 4999 {
			ev, err := out.Next(t.Context())
			require.NoError(t, err)
			require.False(t, ev.Gap)
			switch {
			case ev.Live != nil:
				lives, last = lives+1, ev.Live.Offset
			case ev.Frame != nil:
				frames = append(frames, *ev.Frame)
			}
		}
		require.Equal(t, []string{"a", "b"}, texts(t, frames))
		require.LessOrEqual(t, lives, 1024)

		big := strings.Repeat("x", 150<<10)
		for range 80 { // 12 MB that nobody reads
			appendTexts(t, l, 1, false, big)
		}
		synctest.Wait()
		gaps, bytes := 0, 0
		var tail *bus.Frame
		for tail == nil || tail.Seq != l.Last().Seq {
			ev, err := out.Next(t.Context())
			require.NoError(t, err)
			switch {
			case ev.Gap:
				require.Nil(t, tail, "the gap comes where the frames are missing")
				gaps++
			case ev.Frame != nil:
				tail = ev.Frame
				bytes += len(big)
			}
		}
		require.Equal(t, 1, gaps)
		require.LessOrEqual(t, bytes, 8<<20)
	})
}

func TestOutput_SeesAFrameThatWasLost(t *testing.T) {
	s := bustest.NewServer(t)
	b, viewer := s.Bus(t), s.Bus(t)
	l := openLog(t, b, "b1")
	out, err := viewer.Subscribe(t.Context(), sid)
	require.NoError(t, err)
	defer out.Close()
	appendTexts(t, l, 1, false, "a")
	ev, err := out.Next(soon(t))
	require.NoError(t, err)
	require.NotNil(t, ev.Frame)

	s.DeafenBus(viewer)
	appendTexts(t, l, 1, false, "lost")
	s.CutBus(viewer)
	for up := false; !up; {
		ev, err := out.Next(soon(t))
		require.NoError(t, err)
		require.NotNil(t, ev.Link, "%+v", ev)
		up = ev.Link.Up
	}
	appendTexts(t, l, 1, false, "b")
	ev, err = out.Next(soon(t))
	require.NoError(t, err)
	require.True(t, ev.Gap, "%+v", ev)
	ev, err = out.Next(soon(t))
	require.NoError(t, err)
	require.Equal(t, []string{"b"}, texts(t, []bus.Frame{*ev.Frame}))
}

func TestHistory_PagesAreTheVisibleTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := bustest.NewServer(t)
		b, viewer := s.Bus(t), s.Bus(t)
		stop, err := b.ServeOrch(node, orchestrator(nil), true)
		require.NoError(t, err)
		defer stop()
		_, err = viewer.History(t.Context(), sid, protocol.Cursor{})
		require.ErrorIs(t, err, bus.ErrNoSession)

		l := openLog(t, b, "b1")
		var want []string
		big := strings.Repeat("y", 300<<10)
		for i := range 30 {
			s := strings.Repeat(string(rune('a'+i%26)), 40<<10)
			want = append(want, s, "small", big)
			appendTexts(t, l, 1, false, s, "small", big)
			appendTexts(t, l, 1, true, "secret")
		}
		check := func(t *testing.T) {
			t.Helper()
			var got []bus.Frame
			pages, after := 0, protocol.Cursor{}
			for more := true; more; pages++ {
				p, err := viewer.History(t.Context(), sid, after)
				require.NoError(t, err)
				require.NotEmpty(t, p.Frames)
				require.LessOrEqual(t, len(protocol.Encode(p)), 900<<10)
				got = append(got, p.Frames...)
				last := p.Frames[len(p.Frames)-1]
				after, more = protocol.Cursor{Seq: last.Seq, Pos: last.Pos + len(last.Messages) - 1}, p.More
			}
			require.Greater(t, pages, 10)
			require.Equal(t, want, texts(t, got))
			require.NotNil(t, got[0].Own)
			p, err := viewer.History(t.Context(), sid, after)
			require.NoError(t, err)
			require.Empty(t, p.Frames)
		}
		check(t)
		stop()
		check(t) // no orchestrator: from the trace itself
	})
}

func TestHistory_BeginsWithinAFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.Start(t)
		l := openLog(t, b, "b1")
		st := appendTexts(t, l, 1, false, "a", "b", "c")
		appendTexts(t, l, 1, false, "d")
		p, err := b.History(t.Context(), sid, protocol.Cursor{Seq: st.Seq, Pos: 1})
		require.NoError(t, err)
		require.Equal(t, []string{"c", "d"}, texts(t, p.Frames))
		require.Equal(t, uint64(3), p.Frames[0].N)
		require.Equal(t, 2, p.Frames[0].Pos)
	})
}

func TestHistory_RecordLargerThanAnAnswerIsReadFromTheTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := bustest.NewServer(t)
		b, viewer := s.Bus(t), s.Bus(t)
		stop, err := b.ServeOrch(node, orchestrator(nil), true)
		require.NoError(t, err)
		defer stop()
		huge := strings.Repeat("z", 3<<20)
		appendTexts(t, openLog(t, b, "b1"), 1, false, "a", huge, "b")
		var got []bus.Frame
		after := protocol.Cursor{}
		for more := true; more; {
			p, err := viewer.History(t.Context(), sid, after)
			require.NoError(t, err)
			require.NotEmpty(t, p.Frames)
			got = append(got, p.Frames...)
			last := p.Frames[len(p.Frames)-1]
			after, more = protocol.Cursor{Seq: last.Seq, Pos: last.Pos + len(last.Messages) - 1}, p.More
		}
		require.Equal(t, []string{"a", huge, "b"}, texts(t, got))
	})
}
