package llm

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"rookery/internal/engine"
	"rookery/protocol"
)

// DemoName is the name under which the demo model is configured.
const DemoName = "demo"

const demoHonest = "demo model: no intelligence, only a script. "

// Demo returns a model that needs no endpoint: it follows a script and says so.
// It counts the words of a file, reads, writes and lists files and runs commands,
// all by real tool calls, and answers with what they returned. It keeps no state.
func Demo() engine.Model { return demo{} }

type demo struct{}

// Stream implements engine.Model.
func (demo) Stream(ctx context.Context, req engine.Request, emit func(protocol.Payload) error) engine.Outcome {
	ids := req.IDs
	if ids == nil {
		ids = &protocol.CallIDs{}
	}
	q := &queue{cfg: &Config{}, emit: emit, ids: ids}
	turn := readDemo(req)
	reply, next := turn.answer()
	for piece := range pieces(reply, 12) {
		if ctx.Err() != nil {
			break
		}
		q.write(q.current(text), piece)
	}
	o := engine.Outcome{Status: protocol.Completed, Finish: "stop"}
	if next != nil && ctx.Err() == nil {
		s := q.begin(call)
		s.name, s.providerID = next.tool, "demo"
		for piece := range pieces(next.arguments(), 8) {
			q.write(s, piece)
		}
		o.Finish = "tool_calls"
	}
	switch {
	case q.err != nil:
		o = engine.Outcome{Status: protocol.Aborted, Message: fmt.Errorf("%w: %w", errEmit, q.err).Error()}
	case ctx.Err() != nil:
		o = engine.Outcome{Status: protocol.Aborted, Message: fmt.Sprintf("the request was cancelled: %v", context.Cause(ctx))}
	default:
		u := protocol.Usage{CacheWrite: int64(turn.tokens) + 1, Output: int64(estimate(reply)) + 1}
		u.Total = u.CacheWrite + u.Output
		o.Usage, o.Estimated = &u, true
	}
	q.closeAll(func(*segment) protocol.StopReason { return o.Status })
	return o
}

// pieces cuts s behind blanks into deltas of about n bytes.
func pieces(s string, n int) func(func(string) bool) {
	return func(yield func(string) bool) {
		for len(s) > 0 {
			end := len(s)
			if n < len(s) {
				if i := strings.IndexAny(s[n:], " \n"); i >= 0 {
					end = n + i + 1
				}
			}
			if !yield(s[:end]) {
				return
			}
			s = s[end:]
		}
	}
}

// A demoCall is a tool call of the script.
type demoCall struct {
	tool string
	args map[string]string
}

func (c demoCall) arguments() string {
	b, _ := json.Marshal(c.args) // strings always encode
	return string(b)
}

// A demoPlan is what a prompt asks for: calls, and an answer made of their outputs.
type demoPlan struct {
	intro  string
	calls  []demoCall
	answer func(outputs []protocol.ToolCallOutput) string
}

// A demoTurn is what the model sees.
type demoTurn struct {
	prompt  string
	outputs []protocol.ToolCallOutput // since the prompt
	spoken  bool                      // the session has an answer already
	summary bool                      // the last text asks for a summary
	tools   map[string]bool
	tokens  float64
}

// readDemo finds the prompt that is being worked on and what came since.
func readDemo(req engine.Request) demoTurn {
	t := demoTurn{tools: map[string]bool{}, tokens: estimate(req.System)}
	for _, tool := range req.Tools {
		t.tools[tool.Name] = true
	}
	for _, m := range append(append([]protocol.Message(nil), req.History...), req.Input...) {
		switch p := m.Payload.(type) {
		case protocol.Text:
			t.tokens += estimate(p.Text)
			if p.Role == protocol.Assistant {
				t.spoken = true
				continue
			}
			said := p.Text
			t.summary = strings.Contains(said, "["+protocol.TagSummary+"]")
			if steer, ok := protocol.ParseSteering(said); ok {
				said = steer
			}
			if said = strings.TrimSpace(stripMarkers(said)); said != "" {
				t.prompt, t.outputs = said, nil
			}
		case protocol.ToolCallOutput:
			t.tokens += estimate(p.Output)
			t.outputs = append(t.outputs, p)
		default:
		}
	}
	return t
}

// answer returns the text to say and the call to make, nil for none.
func (t demoTurn) answer() (string, *demoCall) {
	if rest, ok := strings.CutPrefix(t.prompt, titleInstruction+"\n\nUser:\n"); ok {
		return CleanTitle(FirstLine(rest)), nil
	}
	if t.summary {
		return "[" + protocol.TagSummary + "]" + demoHonest + "It can't summarize; the files in the workspace are as they were left.[/" + protocol.TagSummary + "]", nil
	}
	if t.prompt == "" { // behind a compaction in the middle of a task
		return demoHonest + "A compaction took away what I was asked: ask me again.", nil
	}
	p := planDemo(t.prompt)
	said := ""
	if !t.spoken {
		said = demoHonest
	}
	n := len(t.outputs)
	if n > 0 && t.outputs[n-1].StopReason != protocol.Completed && n < len(p.calls) {
		return said + "I stop here, that call did not work: " + t.outputs[n-1].Output, nil
	}
	if n >= len(p.calls) {
		return said + p.answer(t.outputs), nil
	}
	next := p.calls[n]
	if !t.tools[next.tool] {
		return said + fmt.Sprintf("For that I need the tool %s, which this session does not have.", next.tool), nil
	}
	if n == 0 {
		said += p.intro
	}
	return said, &next
}

var (
	demoCount = regexp.MustCompile(`(?is)(?:count|how many)\b.*\bwords?\b.*?\b(?:in|of)\s+(?:the\s+)?(?:file\s+)?(\S+)`)
	demoWrite = regexp.MustCompile(`(?is)\bwrite\s+(.+?)\s+(?:in)?to\s+(?:the\s+)?(?:file\s+)?(\S+)\s*$`)
	demoRun   = regexp.MustCompile(`(?is)^\s*(?:please\s+)?(?:run|execute)\s+(?:the\s+command\s+)?(.+)$`)
	demoRead  = regexp.MustCompile(`(?is)\b(?:read|show|print|cat)\s+(?:me\s+)?(?:the\s+)?(?:file\s+)?(\S+)`)
	demoList  = regexp.MustCompile(`(?is)\blist\b|^\s*ls\b`)
	demoDigit = regexp.MustCompile(`(?m)^\s*(\d+)\s*$`)
	demoPlain = regexp.MustCompile(`^[A-Za-z0-9_./-]+$`)
)

func planDemo(prompt string) demoPlan {
	if m := demoCount.FindStringSubmatch(prompt); m != nil {
		return planCount(demoFile(m[1]))
	}
	if m := demoWrite.FindStringSubmatch(prompt); m != nil {
		file := demoFile(m[2])
		return planOne("I write "+file+".", demoCall{"write_file", map[string]string{"path": file, "content": demoQuoted(m[1]) + "\n"}},
			"The tool says: ")
	}
	if m := demoRun.FindStringSubmatch(prompt); m != nil {
		cmd := demoQuoted(m[1])
		return planOne("I run it.", demoCall{"exec_command", map[string]string{"cmd": cmd}}, "The command printed:\n")
	}
	if m := demoRead.FindStringSubmatch(prompt); m != nil {
		file := demoFile(m[1])
		return planOne("I read "+file+".", demoCall{"read_file", map[string]string{"path": file}}, "It says:\n")
	}
	look := demoCall{"list_files", map[string]string{"path": "."}}
	if demoList.MatchString(prompt) {
		return planOne("I list the files.", look, "These are the files:\n")
	}
	return planOne("I can't understand that, but I can look around.", look,
		"I can do a few things only: count the words in FILE, read FILE, write TEXT to FILE, list files, run COMMAND. These are the files here:\n")
}

func planOne(intro string, c demoCall, lead string) demoPlan {
	return demoPlan{intro, []demoCall{c}, func(outs []protocol.ToolCallOutput) string {
		last := outs[len(outs)-1]
		if last.StopReason != protocol.Completed {
			return "That did not work: " + last.Output
		}
		return lead + last.Output
	}}
}

func planCount(file string) demoPlan {
	word := file
	if !demoPlain.MatchString(word) {
		word = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return demoPlan{
		intro: "I look at " + file + " and have wc count.",
		calls: []demoCall{
			{"read_file", map[string]string{"path": file}},
			{"exec_command", map[string]string{"cmd": "wc -w < " + word}},
		},
		answer: func(outs []protocol.ToolCallOutput) string {
			last := outs[len(outs)-1]
			n := demoDigit.FindStringSubmatch(last.Output)
			if last.StopReason != protocol.Completed || n == nil {
				return "I could not count them: " + last.Output
			}
			return fmt.Sprintf("%s has %s words.", file, n[1])
		},
	}
}

// demoFile takes a file's name out of a sentence.
func demoFile(s string) string {
	return strings.TrimRight(strings.Trim(s, "\"'`"), ".,;:!?\"'`")
}

// demoQuoted takes the quotes from around a text.
func demoQuoted(s string) string {
	s = strings.TrimSpace(s)
	for _, q := range []string{"`", `"`, "'"} {
		if len(s) > 1 && strings.HasPrefix(s, q) && strings.HasSuffix(s, q) {
			return s[1 : len(s)-1]
		}
	}
	return s
}
