package bus_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/bus/bustest"
	"rookery/protocol"
)

// orchestrator answers commands with h and accepts everything else.
func orchestrator(h bus.CommandHandler) bus.Orchestrator {
	accept := func(respond func(protocol.Reply)) { respond(protocol.Reply{Code: protocol.ReplyAccepted}) }
	return bus.Orchestrator{
		Command:  h,
		Remove:   func(_ protocol.ID, respond func(protocol.Reply)) { accept(respond) },
		Import:   func(_ protocol.ID, _ bus.Import, respond func(protocol.Reply)) { accept(respond) },
		Register: func(_ protocol.WorkerInfo, respond func(protocol.Reply)) { accept(respond) },
	}
}

func accepted() protocol.Reply { return protocol.Reply{Code: protocol.ReplyAccepted} }

func TestCommand_GoesToTheOwnerElseToAnyOrchestrator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := bustest.NewServer(t)
		b, client := s.Bus(t), s.Bus(t)
		start := time.Now()
		_, err := client.Command(t.Context(), sid, protocol.VerbRun, protocol.Command{ID: "c1"})
		require.ErrorIs(t, err, bus.ErrNoOrchestrator)
		require.Less(t, time.Since(start), 2*time.Second)

		stop, err := b.ServeOrch(node, orchestrator(func(id protocol.ID, verb protocol.Verb, c protocol.Command, respond func(protocol.Reply)) {
			respond(protocol.Reply{Code: protocol.ReplyIdle, Reason: string(id) + string(verb) + c.ID})
		}), true)
		require.NoError(t, err)
		defer stop()
		r, err := client.Command(t.Context(), sid, protocol.VerbAbort, protocol.Command{ID: "c2"})
		require.NoError(t, err)
		require.Equal(t, protocol.Reply{Code: protocol.ReplyIdle, Reason: "s1abortc2"}, r)

		stopSession, err := b.ServeSession(sid, func(_ protocol.ID, _ protocol.Verb, _ protocol.Command, respond func(protocol.Reply)) {
			go func() {
				time.Sleep(time.Second) // an owner answers when the record is stored
				respond(accepted())
			}()
		})
		require.NoError(t, err)
		r, err = client.Command(t.Context(), sid, protocol.VerbAbort, protocol.Command{ID: "c3"})
		require.NoError(t, err)
		require.Equal(t, protocol.ReplyAccepted, r.Code)
		stopSession()
		r, err = client.Command(t.Context(), sid, protocol.VerbAbort, protocol.Command{ID: "c4"})
		require.NoError(t, err)
		require.Equal(t, protocol.ReplyIdle, r.Code)
	})
}

func TestCommand_FollowsUseToAnOrchestratorOutsideTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := bustest.NewServer(t)
		b, client := s.Bus(t), s.Bus(t)
		stop, err := b.ServeOrch("o1", orchestrator(func(_ protocol.ID, _ protocol.Verb, _ protocol.Command, respond func(protocol.Reply)) {
			respond(protocol.Reply{Code: protocol.ReplyUse, Use: "o2"})
		}), true)
		require.NoError(t, err)
		defer stop()
		_, err = client.Command(t.Context(), sid, protocol.VerbRun, protocol.Command{ID: "c1"})
		require.ErrorIs(t, err, bus.ErrNoOrchestrator, "o2 is not there")

		stop2, err := s.Bus(t).ServeOrch("o2", orchestrator(func(_ protocol.ID, _ protocol.Verb, _ protocol.Command, respond func(protocol.Reply)) {
			respond(accepted())
		}), false)
		require.NoError(t, err)
		defer stop2()
		r, err := client.Command(t.Context(), sid, protocol.VerbRun, protocol.Command{ID: "c1"})
		require.NoError(t, err)
		require.Equal(t, protocol.ReplyAccepted, r.Code)

		r, err = client.CommandAt(t.Context(), "o2", sid, protocol.VerbRun, protocol.Command{ID: "c1"})
		require.NoError(t, err)
		require.Equal(t, protocol.ReplyAccepted, r.Code)
		_, err = client.CommandAt(t.Context(), "o3", sid, protocol.VerbRun, protocol.Command{ID: "c1"})
		require.ErrorIs(t, err, bus.ErrGone)
		require.NoError(t, client.Ping(t.Context(), "o2"))
		require.ErrorIs(t, client.Ping(t.Context(), "o3"), bus.ErrGone)
	})
}

func TestCommand_NobodyWhoCanServeIsAnErrorWithTheReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.Start(t)
		stop, err := b.ServeOrch("o1", orchestrator(func(_ protocol.ID, _ protocol.Verb, _ protocol.Command, respond func(protocol.Reply)) {
			respond(protocol.Reply{Code: protocol.ReplyNoOrchestrator, Reason: "model gpt not configured"})
		}), true)
		require.NoError(t, err)
		defer stop()
		_, err = b.Command(t.Context(), sid, protocol.VerbRun, protocol.Command{ID: "c1"})
		require.ErrorIs(t, err, bus.ErrNoOrchestrator)
		require.ErrorContains(t, err, "model gpt not configured")
	})
}

func TestCommand_WithoutAnswerIsRepeatedWithTheSameID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.Start(t)
		stopSession, err := b.ServeSession(sid, func(protocol.ID, protocol.Verb, protocol.Command, func(protocol.Reply)) {})
		require.NoError(t, err) // an owner that hangs
		defer stopSession()
		var asked atomic.Int32
		stop, err := b.ServeOrch(node, orchestrator(func(_ protocol.ID, _ protocol.Verb, c protocol.Command, respond func(protocol.Reply)) {
			if asked.Add(1) < 3 {
				return
			}
			respond(protocol.Reply{Code: protocol.ReplyAccepted, Reason: c.ID})
		}), true)
		require.NoError(t, err)
		defer stop()
		r, err := b.Command(t.Context(), sid, protocol.VerbSteer, protocol.Command{ID: "c1", Text: "left"})
		require.NoError(t, err)
		require.Equal(t, "c1", r.Reason)

		stop()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = b.Command(ctx, sid, protocol.VerbSteer, protocol.Command{ID: "c1", Text: "left"})
		require.ErrorIs(t, err, context.DeadlineExceeded, "an owner that hangs is not nobody")
	})
}

func TestCommand_TooLargeAndBadIDsAreRefusedHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.Start(t)
		_, err := b.Command(t.Context(), sid, protocol.VerbRun, protocol.Command{ID: "c1", Text: string(make([]byte, 800<<10))})
		require.ErrorIs(t, err, bus.ErrTooLarge)
		_, err = b.Command(t.Context(), "a.b", protocol.VerbRun, protocol.Command{ID: "c1"})
		require.ErrorContains(t, err, "not an id")
	})
}

func TestImport_AllPiecesGoToOneOrchestrator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := bustest.NewServer(t)
		got := map[protocol.ID][]string{}
		for _, oid := range []protocol.ID{"o1", "o2", "o3"} {
			h := orchestrator(nil)
			h.Import = func(id protocol.ID, in bus.Import, respond func(protocol.Reply)) {
				for _, m := range in.Messages {
					got[oid] = append(got[oid], m.Payload.(protocol.Text).Text)
				}
				respond(protocol.Reply{Code: protocol.ReplyAccepted, Use: oid})
			}
			stop, err := s.Bus(t).ServeOrch(oid, h, true)
			require.NoError(t, err)
			defer stop()
		}
		big := string(make([]byte, 60<<10)) // NUL is six bytes in JSON
		r, err := s.Bus(t).Import(t.Context(), sid, func(yield func(protocol.Message, error) bool) {
			for range 12 {
				if !yield(text(big), nil) {
					return
				}
			}
		})
		require.NoError(t, err)
		require.Equal(t, protocol.ReplyAccepted, r.Code)
		require.Len(t, got, 1)
		require.Len(t, got[r.Use], 12)
	})
}

func TestListings_ComeFromAnOrchestratorOrTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := bustest.NewServer(t)
		b, client := s.Bus(t), s.Bus(t)
		const n = 3000
		for i := range n {
			id := protocol.ID("s" + strconv.Itoa(i))
			require.NoError(t, b.PutSession(t.Context(), protocol.Entry{Session: id, State: protocol.StateIdle, Title: string(make([]byte, 100))}))
		}
		require.NoError(t, b.DeleteSession(t.Context(), "s7"))
		count := func() (all int) {
			for e, err := range client.Sessions(t.Context()) {
				require.NoError(t, err)
				require.NotEqual(t, protocol.ID("s7"), e.Session)
				all++
			}
			return all
		}
		require.Equal(t, n-1, count())
		stop, err := b.ServeOrch(node, orchestrator(nil), true)
		require.NoError(t, err)
		defer stop()
		require.Equal(t, n-1, count())
		_, err = client.Session(t.Context(), "s7")
		require.ErrorIs(t, err, bus.ErrNoSession)

		row := protocol.UsageRow{Session: sid, Request: "1", Model: "m", Usage: protocol.Usage{Total: 5}}
		require.NoError(t, b.PutUsage(t.Context(), row))
		again := row
		again.Usage.Total = 7
		require.NoError(t, b.PutUsage(t.Context(), again))
		for got, err := range client.Usage(t.Context()) {
			require.NoError(t, err)
			require.Equal(t, row, got, "the first row stays")
		}
	})
}
