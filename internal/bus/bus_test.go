package bus_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/bus/bustest"
	"rookery/protocol"
)

const (
	sid  = protocol.ID("s1")
	node = protocol.ID("o1")
)

func text(s string) protocol.Message {
	return protocol.New(protocol.Text{Role: protocol.Assistant, Text: s, StopReason: protocol.Completed})
}

func texts(t *testing.T, fs []bus.Frame) []string {
	t.Helper()
	var out []string
	for _, f := range fs {
		for _, m := range f.Messages {
			p, ok := m.Payload.(protocol.Text)
			require.True(t, ok, "payload %T", m.Payload)
			out = append(out, p.Text)
		}
	}
	return out
}

func openLog(t *testing.T, b *bus.Bus, boot string) *bus.Log {
	t.Helper()
	l, err := b.OpenLog(t.Context(), sid, node, boot)
	require.NoError(t, err)
	return l
}

func appendTexts(t *testing.T, l *bus.Log, context int, private bool, ss ...string) bus.Stored {
	t.Helper()
	var ms []protocol.Message
	for _, s := range ss {
		ms = append(ms, text(s))
	}
	st, err := l.Append(t.Context(), context, private, ms)
	require.NoError(t, err)
	return st
}

func trace(t *testing.T, b *bus.Bus, after uint64) []bus.Frame {
	t.Helper()
	var fs []bus.Frame
	for f, err := range b.Trace(t.Context(), sid, after) {
		require.NoError(t, err)
		fs = append(fs, f)
	}
	return fs
}

// soon bounds a wait that a correct program ends by itself.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestSetup_IsIdempotentInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.Start(t)
		require.NoError(t, b.Setup(t.Context(), bus.StoreOptions{}))
		require.True(t, b.Connected())
	})
}

// withTimeout ends a context after a few milliseconds.
func withTimeout(t *testing.T, ms int) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), time.Duration(ms)*time.Millisecond)
}
