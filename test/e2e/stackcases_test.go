package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/engine/enginetest"
	"rookery/internal/llm/llmtest"
	"rookery/protocol"
)

// eventful has calls that run side by side, a denied one, steering and three tasks.
// Each reply has one message of the assistant, so that a request tells which is next.
const eventful = `eventful
level: stack
-- script --
config approve=ask
model
  call A t {"n":1}
  call B t {"n":2}
  usage 10
model
  text "half" " way"
  usage 10
model
  think "hm"
  call C t {"n":3}
  usage 10
model
  text "the answer"
  usage 10
model
  text "one more"
  usage 10
tool A deltas "a" "aa" after 20ms
tool B after 10ms
tool C after 10ms
`

// answerOf finds the reply that is due: one for each message of the assistant.
func answerOf(r llmtest.Request) int {
	n := 0
	for _, m := range r.Messages {
		if m.Role == "assistant" {
			n++
		}
	}
	return n
}

// approveAll answers every request for an approval, the repeated ones, too.
func approveAll(ids ...string) string {
	var b strings.Builder
	for _, id := range ids {
		for n := range 3 {
			fmt.Fprintf(&b, "at +approval_request(%s) #%d: approve %s allow\n", id, n+1, id)
		}
	}
	return b.String()
}

// An owner that dies at any message that a viewer sees is followed by one that
// brings the task to the same end (L092, L102, L157).
func TestStack_OwnerDiesAtEveryMessage(t *testing.T) {
	play := func(t *testing.T, n int) *enginetest.Result {
		t.Helper()
		script := eventful + approveAll("A", "B", "C", "A#2", "B#2", "C#2") + "run one\nrun two\nrun three\n"
		s, err := enginetest.Parse(fmt.Sprintf("killed at message %d", n), []byte(script))
		require.NoError(t, err)
		if n > 0 {
			at := enginetest.Statement{Verb: enginetest.VerbAt, At: &enginetest.Hook{Nth: n, Do: enginetest.Statement{Verb: enginetest.VerbKill}}}
			s.Script = append([]enginetest.Statement{at}, s.Script...)
		}
		return playStackWith(t, s, answerOf)
	}
	undisturbed := play(t, 0)
	want := committed(undisturbed)
	require.Len(t, want, 7)
	for n := 1; n <= len(undisturbed.Output); n++ {
		t.Run(fmt.Sprintf("%d %s", n, undisturbed.Output[n-1]), func(t *testing.T) {
			r := play(t, n)
			require.Equal(t, want, committed(r), strings.Join(lines(r.Output), "\n"))
			require.Equal(t, "+task_end(completed)", r.Output[len(r.Output)-1].String())
			for id, runs := range r.Runs {
				require.Equal(t, 1, runs, id)
			}
		})
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
			open = append(open, strings.Replace(m.String(), "#2", "", 1))
		case protocol.Text:
			if p.Role == protocol.Assistant {
				open = append(open, m.String())
			}
		default:
		}
	}
	return all
}

func TestStack_TwoHundredCallsAtOnce(t *testing.T) { // L041 L046
	const n = 200
	var script, calls, want strings.Builder
	for i := range n {
		fmt.Fprintf(&calls, "  call c%d t {\"i\":%d}\n", i, i)
		fmt.Fprintf(&script, "tool c%d after %dms\n", i, 1+(n-i)%17)
		fmt.Fprintf(&want, "tool_call_output[c%d,completed]\"done c%d\"\n", i, i)
	}
	s, err := enginetest.Parse("two hundred", []byte("two hundred\nlevel: stack\n-- script --\nconfig approve=allow-all\nmodel\n"+calls.String()+
		"  usage 10\nmodel\n  text \"end\"\n  usage 10\n"+script.String()+"run go\n-- input 2 --\n"+want.String()))
	require.NoError(t, err)
	r := playStack(t, s)
	require.Empty(t, s.Check(r, enginetest.LevelStack))
	require.Len(t, r.Runs, n)
}

// Outputs larger than a frame and larger than a message travel whole, or say where
// they were cut (L054, L165).
func TestStack_HugeOutputs(t *testing.T) {
	wide := strings.Repeat("\U0001F600", 110_000) // 440 kB: a record of several parts
	s, err := enginetest.Parse("huge", []byte(`huge
level: stack
-- script --
config approve=allow-all max_output_length=0
model
  call A t {}
  call B t {}
  usage 10
model
  text "end"
  usage 10
run go
`))
	require.NoError(t, err)
	long := strings.Repeat("x", 2_000_000)
	for id, out := range map[string]*string{"A": &wide, "B": &long} {
		s.Script = append([]enginetest.Statement{{Verb: enginetest.VerbTool, Tool: &enginetest.Tool{ID: id, Output: out, Stop: protocol.Completed}}}, s.Script...)
	}
	r := playStack(t, s)
	require.Len(t, r.Inputs, 2)
	a, b := r.Inputs[1][0].Payload.(protocol.ToolCallOutput), r.Inputs[1][1].Payload.(protocol.ToolCallOutput)
	require.Len(t, a.Output, len(wide))
	require.Zero(t, strings.Compare(wide, a.Output), "the same bytes")
	require.True(t, strings.HasPrefix(b.Output, strings.Repeat("x", 100_000)))
	require.Contains(t, b.Output, "[output truncated: exceeded 120000 chars]\n[full output: ")
	var seen int
	for _, m := range r.Output {
		if p, ok := m.Payload.(protocol.ToolCallOutput); ok {
			seen += len(p.Output)
		}
	}
	require.Equal(t, len(a.Output)+len(b.Output), seen)
}
