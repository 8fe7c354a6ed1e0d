package engine_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/engine"
	"rookery/internal/engine/enginetest"
	"rookery/protocol"
)

// six are three tasks with six turns and three calls. Each reply has one message, so
// that a request's history tells which reply is next.
const six = `six turns
-- script --
config approve=allow-all
model
  wait 1ms
  call A t {"n":1}
  wait 1ms
  usage 10
model
  wait 1ms
  call B t {"n":2}
  wait 1ms
  usage 10
model
  wait 1ms
  text "half way"
  wait 1ms
  usage 10
model
  wait 1ms
  think "hm"
  wait 1ms
  call C t {"n":3}
  wait 1ms
  usage 10
model
  wait 1ms
  text "go on"
  wait 1ms
  usage 10
model
  wait 1ms
  text "the answer"
  wait 1ms
  usage 10
tool A deltas "a" "aa" after 20ms
tool B after 10ms stop failed
tool C after 10ms
`

// reply says which reply is next: one for each that was committed.
func reply(req engine.Request) int {
	n := 0
	for _, m := range req.History {
		switch p := m.Payload.(type) {
		case protocol.ToolCall:
			n++
		case protocol.Text:
			if p.Role == protocol.Assistant {
				n++
			}
		default:
		}
	}
	return n
}

// Whoever goes on with a task at whatever record brings it to the same end: what ran
// does not run again, and what was said is not said again.
func TestEngine_GoesOnAtEveryMessage(t *testing.T) { // L001 L092 L102 L155 L157 L159 L162
	play := func(n int) *enginetest.Result {
		s, err := enginetest.Parse(fmt.Sprintf("gone at message %d", n), []byte(six+"run one\nrun two\nrun three\n"))
		require.NoError(t, err)
		at := enginetest.Statement{Verb: enginetest.VerbAt, At: &enginetest.Hook{Nth: n, Do: enginetest.Statement{Verb: enginetest.VerbResume}}}
		s.Script = append([]enginetest.Statement{at}, s.Script...)
		return enginetest.RunWith(t, s, reply)
	}
	undisturbed := play(0)
	require.Len(t, undisturbed.Inputs, 6)
	want := committed(undisturbed)
	require.Len(t, want, 7)
	for n := 1; n <= len(undisturbed.Output); n++ {
		if undisturbed.Output[n-1].Kind() == (protocol.TaskBegin{}).Kind() {
			continue // its prompt is not stored: it was not accepted
		}
		r := play(n)
		name := fmt.Sprintf("gone at message %d, %s", n, undisturbed.Output[n-1])
		for id, runs := range r.Runs {
			require.Equal(t, 1, runs, "%s: %s", name, id)
		}
		require.Equal(t, want, committed(r), name)
		require.Equal(t, "+task_end(completed)", r.Output[len(r.Output)-1].String(), name)
		for i := range r.Inputs {
			paired(t, r.Histories[i], r.Inputs[i], name)
		}
	}
}

// committed lists what completed requests said. A call that is made again in a new
// attempt has another id.
func committed(r *enginetest.Result) []string {
	var all, open []string
	for _, m := range r.Traces[1] {
		switch p := m.Payload.(type) {
		case protocol.RequestEnd:
			if p.Status == protocol.Completed {
				all = append(all, open...)
			}
			open = nil
		case protocol.Thinking, protocol.ToolCall:
			open = append(open, m.String())
		case protocol.Text:
			if p.Role == protocol.Assistant {
				open = append(open, m.String())
			}
		default:
		}
	}
	for i, line := range all {
		all[i] = strings.Replace(line, "#2", "", 1)
	}
	return all
}
