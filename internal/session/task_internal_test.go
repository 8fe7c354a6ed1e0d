package session

import (
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/engine"
)

// A task's end may be stored, and the next task begun, before its engine's goroutine
// says that it is over.
func TestEnded_LateWordOfTheLastTaskStopsNothing(t *testing.T) {
	last, next := &engine.Engine{}, &engine.Engine{}
	stopped := ""
	s := &session{engine: next, stop: func() { stopped += "next" }}
	s.take(ended{last, func() { stopped += "last" }})
	require.Equal(t, "last", stopped)
	require.Same(t, next, s.engine)
	require.NotNil(t, s.stop)

	s.take(ended{next, s.stop})
	require.Equal(t, "lastnext", stopped)
	require.Nil(t, s.engine)
	require.Nil(t, s.stop)
}
