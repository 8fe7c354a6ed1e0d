package enginetest_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/engine/enginetest"
	"rookery/protocol"
)

const whole = `everything that a file may say
covers: L001 L002, L003
level: stack
a remark

-- script --
# a comment
config approve=ask max_turns=0 compaction_prompt=sum it up tool_timeout=200ms retries=0 context_factory=off
config max_output_length=5 max_context_length=-1 max_session_turns=3 mode=discard thinking=low

model
  think why
  text "he" "llo"
  call A t {"x": "a -> b=c"}
  call "B C" t "{" "}"
  call D t

  wait 80ms
  hold h
  half text "par"
  half call E t
  usage 10
  usage cache_read=1 cache_write=2 output=3
  end timeout connection lost retry_after=2s code=auth
model
	text tab
	end length
tool A after 10ms hold x deltas "a" "b" stop failed
tool B output "x y" none twice die
run go home thinking=high -> accepted
run! "a -> b=c" -> refused task_in_progress
compact -> refused nothing_to_compact
steer  do   it -> true
abort -> aborting
approve "B C" deny -> refused already decided
wait 1s
wait idle
release h
at partial_text(delta:"a: abort #2"): abort -> idle
at text[user]"half: #3: steer more: much -> false
at tool_call[f#2,completed] #4: approve f#2 allow
at +task_end(completed): kill
resume
kill
expect compactability just_compacted
-- output full --
text[user]"go"

  request_begin
-- input 2 --
-- trace 001 --
session_meta
-- history 3 full --
-- requests --
2
-- runs --
A 1
B C 2
-- compactability --
ok
`

func parse(t *testing.T, text string) *enginetest.Scenario {
	t.Helper()
	s, err := enginetest.Parse("f.txtar", []byte(text))
	require.NoError(t, err)
	return s
}

func TestParse_Header(t *testing.T) {
	s := parse(t, whole)
	require.Equal(t, "everything that a file may say", s.Title)
	require.Equal(t, []string{"L001", "L002", "L003"}, s.Covers)
	require.Equal(t, enginetest.LevelStack, s.Level)
	require.False(t, s.For(enginetest.LevelEngine))
	require.True(t, s.For(enginetest.LevelStack))
	both := parse(t, "t\n-- script --\n")
	require.True(t, both.For(enginetest.LevelEngine) && both.For(enginetest.LevelStack))
}

func TestParse_Replies(t *testing.T) {
	replies := parse(t, whole).Replies()
	require.Len(t, replies, 2)
	r := replies[0]
	item := func(kind enginetest.ItemKind, line int, half bool, pieces ...string) enginetest.Item {
		return enginetest.Item{Line: line, Kind: kind, Half: half, Pieces: pieces}
	}
	call := func(line int, id string, half bool, pieces ...string) enginetest.Item {
		it := item(enginetest.ItemCall, line, half, pieces...)
		it.ID, it.Name = id, "t"
		return it
	}
	require.Equal(t, []enginetest.Item{
		item(enginetest.ItemThink, 12, false, "why"),
		item(enginetest.ItemText, 13, false, "he", "llo"),
		call(14, "A", false, `{"x": "a -> b=c"}`),
		call(15, "B C", false, "{", "}"),
		call(16, "D", false, "{}"),
		{Line: 18, Kind: enginetest.ItemWait, For: 80 * time.Millisecond},
		{Line: 19, Kind: enginetest.ItemHold, Gate: "h"},
		item(enginetest.ItemText, 20, true, "par"),
		call(21, "E", true),
	}, r.Items)
	require.True(t, r.Half())
	require.Equal(t, []protocol.Usage{{CacheWrite: 10, Total: 10}, {CacheRead: 1, CacheWrite: 2, Output: 3, Total: 6}}, r.Usages)
	require.Equal(t, &enginetest.End{Line: 24, Status: protocol.Timeout, Message: "connection lost", RetryAfter: 2 * time.Second, Code: "auth"}, r.End)
	require.Equal(t, &enginetest.End{Line: 27, Status: protocol.Completed, Length: true}, replies[1].End)
}

func TestParse_Tools(t *testing.T) {
	output := "x y"
	require.Equal(t, map[string]enginetest.Tool{
		"A": {Line: 28, ID: "A", Deltas: []string{"a", "b"}, Pauses: []enginetest.Pause{{For: 10 * time.Millisecond}, {Gate: "x"}}, Stop: protocol.Failed},
		"B": {Line: 29, ID: "B", Output: &output, Stop: protocol.Completed, None: true, Twice: true, Die: true},
	}, parse(t, whole).Tools())
}

func TestParse_Statements(t *testing.T) {
	want := func(word, reason string) *enginetest.Want { return &enginetest.Want{Word: word, Reason: reason} }
	hook := func(line int, message string, nth int, do enginetest.Statement) enginetest.Statement {
		do.Line = line
		return enginetest.Statement{Line: line, Verb: enginetest.VerbAt, At: &enginetest.Hook{Message: message, Nth: nth, Do: do}}
	}
	got := parse(t, whole).Script
	require.Equal(t, []enginetest.Setting{
		{"approve", "ask"}, {"max_turns", "0"}, {"compaction_prompt", "sum it up"}, {"tool_timeout", "200ms"}, {"retries", "0"}, {"context_factory", "off"},
	}, got[0].Config)
	require.Equal(t, []enginetest.Statement{
		{Line: 30, Verb: enginetest.VerbRun, Text: "go home", Thinking: "high", Want: want("accepted", "")},
		{Line: 31, Verb: enginetest.VerbStart, Text: "a -> b=c", Want: want("refused", "task_in_progress")},
		{Line: 32, Verb: enginetest.VerbCompact, Want: want("refused", "nothing_to_compact")},
		{Line: 33, Verb: enginetest.VerbSteer, Text: "do   it", Want: want("true", "")},
		{Line: 34, Verb: enginetest.VerbAbort, Want: want("aborting", "")},
		{Line: 35, Verb: enginetest.VerbApprove, Call: "B C", Decision: protocol.Deny, Want: want("refused", "already decided")},
		{Line: 36, Verb: enginetest.VerbWait, For: time.Second},
		{Line: 37, Verb: enginetest.VerbWaitIdle},
		{Line: 38, Verb: enginetest.VerbRelease, Gate: "h"},
		hook(39, `partial_text(delta:"a: abort #2")`, 1, enginetest.Statement{Verb: enginetest.VerbAbort, Want: want("idle", "")}),
		hook(40, `text[user]"half:`, 3, enginetest.Statement{Verb: enginetest.VerbSteer, Text: "more: much", Want: want("false", "")}),
		hook(41, `tool_call[f#2,completed]`, 4, enginetest.Statement{Verb: enginetest.VerbApprove, Call: "f#2", Decision: protocol.Allow}),
		hook(42, `+task_end(completed)`, 1, enginetest.Statement{Verb: enginetest.VerbKill}),
		{Line: 43, Verb: enginetest.VerbResume},
		{Line: 44, Verb: enginetest.VerbKill},
		{Line: 45, Verb: enginetest.VerbExpect, Text: "just_compacted"},
	}, got[6:])
}

func TestParse_Sections(t *testing.T) {
	s := parse(t, whole)
	type head struct {
		name string
		line int
		kind enginetest.SectionKind
		n    int
		full bool
		want string
	}
	var got []head
	for _, sec := range s.Sections {
		got = append(got, head{sec.Name, sec.Line, sec.Kind, sec.N, sec.Full, strings.Join(sec.Want, "|")})
	}
	require.Equal(t, []head{
		{"output full", 46, enginetest.SectionOutput, 0, true, `text[user]"go"|request_begin`},
		{"input 2", 50, enginetest.SectionInput, 2, false, ""},
		{"trace 001", 51, enginetest.SectionTrace, 1, false, "session_meta"},
		{"history 3 full", 53, enginetest.SectionHistory, 3, true, ""},
		{"requests", 54, enginetest.SectionRequests, 0, false, "2"},
		{"runs", 56, enginetest.SectionRuns, 0, false, "A 1|B C 2"},
		{"compactability", 59, enginetest.SectionCompactability, 0, false, "ok"},
	}, got)
}

func TestParse_WindowsLineEnds(t *testing.T) {
	require.Equal(t, parse(t, whole).Script, parse(t, strings.ReplaceAll(whole, "\n", "\r\n")).Script)
}

func TestParse_ConfigTurnsLimitsOff(t *testing.T) {
	var c enginetest.Config
	for _, s := range parse(t, whole).Script[0].Config {
		require.NoError(t, c.Set(s))
	}
	require.Equal(t, -1, c.Settings.MaxTurns)
	require.Equal(t, -1, c.Settings.Reconnects)
	require.Equal(t, 200*time.Millisecond, c.ToolTimeout)
	require.True(t, c.Settings.NoCompaction)
	require.NoError(t, c.Set(enginetest.Setting{Key: "tool_timeout", Value: "0"}))
	require.Equal(t, time.Duration(-1), c.ToolTimeout)
	require.NoError(t, c.Set(enginetest.Setting{Key: "tool_timeout", Value: "1500"}))
	require.Equal(t, 1500*time.Millisecond, c.ToolTimeout)
}

func TestParse_Faults(t *testing.T) {
	script := func(lines string) string { return "title\n-- script --\n" + lines + "\n" }
	for _, c := range []struct{ text, want string }{
		{"", "f:1: the title is missing"},
		{"title\n", "f:1: the section script is missing"},
		{"title\ncovers: L1\n-- script --\n", `f:2: covers: "L1" is not an id`},
		{"title\nlevel: unit\n-- script --\n", `f:2: level is engine, stack or both, not "unit"`},
		{"title\n-- script --\n-- outputs --\n", `f:3: unknown section "outputs"`},
		{"title\n-- script --\n-- input --\n", `f:3: section "input" needs a number`},
		{"title\n-- script --\n-- input x --\n", `"x" is not a number from 1`},
		{"title\n-- script --\n-- runs full --\n", `f:3: section "runs full": unexpected "full"`},
		{"title\n-- script --\n-- output --\n-- output --\n", `f:4: section "output" stands twice`},
		{"title\n-- script --\n-- requests --\ntwo\n", `f:3: requests is a number, not "two"`},
		{"title\n-- script --\n-- runs --\nA\n", `f:3: runs: "A" is not ID COUNT`},
		{script("frobnicate"), `f:3: unknown statement "frobnicate"`},
		{script("# fine\n\nrun"), "f:5: the prompt is missing"},
		{script(`run "go`), `f:3: bad quoting: "go`},
		{script(`run "go"x`), `f:3: bad quoting: "x" right behind the string "go"`},
		{script(`run "go" home`), `f:3: unexpected "home"`},
		{script("run go max=3"), "f:3: unknown option max= of run"},
		{script("run go thinking=deep"), "f:3: thinking is none, low"},
		{script("run go -> maybe"), `f:3: a reply is accepted, refused, true, false, aborting or idle, not "maybe"`},
		{script("run go ->"), "f:3: the expected reply is missing"},
		{script("steer x -> true now"), `f:3: unexpected "now"`},
		{script("approve A"), "f:3: allow or deny is missing"},
		{script("approve A perhaps"), "f:3: a decision is allow or deny"},
		{script("wait long"), `f:3: "long" is not a duration`},
		{script("wait -1s"), "f:3: a duration can't be negative"},
		{script("release"), "f:3: the name is missing"},
		{script("kill"), "f:3: kill needs level: stack"},
		{script("resume now"), `f:3: unexpected "now"`},
		{script("expect rain yes"), "f:3: expect knows compactability"},
		{script("config"), "f:3: config without KEY=VALUE"},
		{script("config max_turns"), `f:3: "max_turns" is not KEY=VALUE`},
		{script("config max_turns=many"), `f:3: max_turns is a number, not "many"`},
		{script("config colour=red"), `f:3: unknown config key "colour"`},
		{script("config approve=maybe"), "f:3: approve is allow-all"},
		{script("config tool_timeout=soon"), "f:3: tool_timeout is a duration"},
		{script("config context_factory=maybe"), "f:3: context_factory is on or off"},
		{script("config thinking=deep"), "f:3: thinking is none, low"},
		{script("at request_begin abort"), "f:3: at needs MESSAGE: ACTION"},
		{script("at : abort"), "f:3: at needs a message"},
		{script("at request_begin #0: abort"), "f:3: #0 is not a count from 1"},
		{script("at request_begin: dance"), `f:3: unknown statement "dance"`},
		{script("at request_begin: wait idle"), "f:3: wait idle can't stand behind at"},
		{script("at request_begin: at text: abort"), "f:3: at can't stand behind at"},
		{script("at request_begin: model"), "f:3: model can't stand behind at"},
		{script("tool"), "f:3: the id of the call is missing"},
		{script("tool A sometimes"), `f:3: unknown option "sometimes" of tool`},
		{script("tool A deltas"), "f:3: deltas needs quoted strings"},
		{script("tool A stop maybe"), "f:3: a status is completed"},
		{script("tool A after"), "f:3: a duration is missing"},
		{script("  text x"), "is indented, but no model statement is above it"},
		{script("model go"), `f:3: unexpected "go"`},
		{script("model\nrun go\n  text x"), `f:5: "text x" is indented`},
		{script("model\n  sing x"), `f:4: unknown item "sing"`},
		{script("model\n  text"), "f:4: the text is missing"},
		{script("model\n  text a=b c=d"), "f:4:"},
		{script("model\n  text \"a\" b"), `f:4: unexpected "b"`},
		{script("model\n  half wait 1s"), `f:4: half "wait": think, text or call can be half`},
		{script("model\n  half"), "f:4: think, text or call is missing"},
		{script("model\n  half text a\n  text b"), "f:5: a complete item stands behind a half one"},
		{script("model\n  call A"), "f:4: the name of the tool is missing"},
		{script("model\n  usage"), "f:4: usage without a number"},
		{script("model\n  usage ten"), `f:4: usage: "ten" is not a number of tokens`},
		{script("model\n  usage input=3"), "f:4: usage has cache_read"},
		{script("model\n  end"), "f:4: a status is missing"},
		{script("model\n  end badly"), "f:4: a status is completed"},
		{script("model\n  end timeout x retry=1s"), "f:4: end has retry_after= and code="},
		{script("model\n  end timeout\n  text late"), `f:5: "text late" stands behind the end of the reply`},
	} {
		_, err := enginetest.Parse("f", []byte(c.text))
		require.ErrorContains(t, err, c.want, "%s", c.text)
	}
}

func TestParse_TellsAllFaults(t *testing.T) {
	_, err := enginetest.Parse("f", []byte("t\n-- script --\ndance\nsing\n-- nope --\n"))
	for _, want := range []string{"f:3: ", "f:4: ", "f:5: "} {
		require.ErrorContains(t, err, want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(whole)
	f.Add("t\n-- script --\nat \"\\\": run\nmodel\n  call A t \"\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := enginetest.Parse("f", []byte(text))
		if err != nil {
			return
		}
		require.NotEmpty(t, s.Title)
		for _, sec := range s.Sections {
			_, _ = (&enginetest.Result{}).Lines(sec)
		}
	})
}
