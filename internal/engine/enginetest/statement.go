package enginetest

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"rookery/protocol"
)

// statement reads one line of the script that is not indented.
func (p *parser) statement(line int, text string) (Statement, error) {
	st := Statement{Line: line}
	sc := &scanner{rest: text}
	verb, err := sc.word("a statement")
	if err != nil {
		return st, err
	}
	st.Verb = Verb(verb)
	switch st.Verb {
	case VerbConfig:
		err = st.config(sc)
	case VerbModel:
		st.Reply = &Reply{Line: line}
		err = sc.end()
	case VerbTool:
		st.Tool, err = tool(line, sc)
	case VerbAt:
		err = p.at(&st, strings.TrimSpace(sc.rest))
	case VerbKill:
		if p.s.Level != LevelStack {
			return st, errors.New("kill needs level: stack")
		}
		err = sc.end()
	case VerbResume:
		sc.skip()
		if st.Bare = strings.TrimSpace(sc.rest) == "bare"; st.Bare {
			sc.rest = ""
		}
		err = sc.end()
	case VerbExpect:
		err = st.expect(sc)
	default:
		err = st.action(sc)
	}
	return st, err
}

// action reads what a client does; these may be followed by an expected reply.
func (st *Statement) action(sc *scanner) (err error) {
	switch st.Verb {
	case VerbRun, VerbStart:
		err = st.run(sc)
	case VerbSteer:
		st.Text, err = sc.text("the text")
	case VerbAbort, VerbCompact:
	case VerbApprove:
		err = st.approve(sc)
	case VerbWait:
		return st.wait(sc)
	case VerbRelease:
		if st.Gate, err = sc.word("the name"); err != nil {
			return err
		}
		return sc.end()
	default:
		return fmt.Errorf("unknown statement %q", st.Verb)
	}
	if err != nil {
		return err
	}
	if st.Want, err = sc.arrow(); err != nil {
		return err
	}
	return sc.end()
}

func (st *Statement) run(sc *scanner) (err error) {
	if st.Text, err = sc.text("the prompt"); err != nil {
		return err
	}
	for {
		key, value, ok, err := sc.option()
		switch {
		case err != nil:
			return err
		case !ok:
			return nil
		case key != "thinking":
			return fmt.Errorf("unknown option %s= of run; quote the text if it is part of it", key)
		}
		if !levels[value] {
			return fmt.Errorf("thinking is none, low, medium, high or xhigh, not %q", value)
		}
		st.Thinking = value
	}
}

func (st *Statement) approve(sc *scanner) (err error) {
	if st.Call, err = sc.word("the id of the call"); err != nil {
		return err
	}
	d, err := sc.word("allow or deny")
	if err != nil {
		return err
	}
	st.Decision = protocol.Decision(d)
	if st.Decision != protocol.Allow && st.Decision != protocol.Deny {
		return fmt.Errorf("a decision is allow or deny, not %q", d)
	}
	return nil
}

func (st *Statement) wait(sc *scanner) (err error) {
	sc.skip()
	if strings.TrimSpace(sc.rest) == "idle" {
		st.Verb = VerbWaitIdle
		return nil
	}
	if st.For, err = sc.duration(); err != nil {
		return err
	}
	return sc.end()
}

func (st *Statement) expect(sc *scanner) (err error) {
	what, err := sc.word("what to expect")
	if err != nil {
		return err
	}
	if what != "compactability" {
		return fmt.Errorf("expect knows compactability, not %q", what)
	}
	if st.Text, err = sc.word("the value"); err != nil {
		return err
	}
	return sc.end()
}

func (st *Statement) config(sc *scanner) error {
	var scratch Config
	for !sc.done() {
		key, value, ok, err := sc.option()
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("%q is not KEY=VALUE", sc.rest)
		}
		s := Setting{key, value}
		if err := scratch.Set(s); err != nil {
			return err
		}
		st.Config = append(st.Config, s)
	}
	if len(st.Config) == 0 {
		return errors.New("config without KEY=VALUE")
	}
	return nil
}

var countShape = regexp.MustCompile(`^(.*\S)\s+#(\d+)$`)

// at reads "MESSAGE [#n]: ACTION". The colon is the first one outside quotes that
// an action follows; a MESSAGE may end inside a string, since it is a prefix.
func (p *parser) at(st *Statement, text string) error {
	i := p.hookColon(text)
	if i < 0 {
		return errors.New("at needs MESSAGE: ACTION")
	}
	h := &Hook{Message: strings.TrimSpace(text[:i]), Nth: 1}
	if m := countShape.FindStringSubmatch(h.Message); m != nil {
		n, err := strconv.Atoi(m[2])
		if err != nil || n < 1 {
			return fmt.Errorf("#%s is not a count from 1", m[2])
		}
		h.Message, h.Nth = m[1], n
	}
	if h.Message == "" {
		return errors.New("at needs a message before the colon")
	}
	action := strings.TrimSpace(text[i+1:])
	switch verb, _, _ := strings.Cut(action, " "); Verb(verb) {
	case VerbModel, VerbTool, VerbConfig, VerbAt, VerbExpect:
		return fmt.Errorf("%s can't stand behind at", verb)
	default:
	}
	do, err := p.statement(st.Line, action)
	if err == nil && do.Verb == VerbWaitIdle {
		return errors.New("wait idle can't stand behind at: the message would never pass")
	}
	h.Do, st.At = do, h
	return err
}

func (p *parser) hookColon(text string) int {
	first, quoted := -1, false
	for i := 0; i < len(text); i++ {
		switch {
		case quoted && text[i] == '\\':
			i++
		case text[i] == '"':
			quoted = !quoted
		case text[i] == ':' && isStatement(text[i+1:]):
			if !quoted {
				return i
			}
			if first < 0 {
				first = i
			}
		}
	}
	if first < 0 && !quoted {
		return strings.LastIndex(text, ": ") // for the error of an unknown action
	}
	return first
}

func isStatement(s string) bool {
	s = strings.TrimLeft(s, " \t")
	if i := strings.IndexAny(s, " \t"); i >= 0 {
		s = s[:i]
	}
	switch Verb(s) {
	case VerbRun, VerbStart, VerbCompact, VerbSteer, VerbAbort, VerbApprove, VerbRelease, VerbResume, VerbKill,
		VerbWait, VerbWaitIdle, VerbModel, VerbTool, VerbConfig, VerbAt, VerbExpect:
		return true
	}
	return false
}

func tool(line int, sc *scanner) (*Tool, error) {
	id, err := sc.word("the id of the call")
	if err != nil {
		return nil, err
	}
	t := &Tool{Line: line, ID: id, Stop: protocol.Completed}
	for !sc.done() {
		word, err := sc.word("an option")
		if err != nil {
			return nil, err
		}
		if err := t.option(word, sc); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *Tool) option(word string, sc *scanner) (err error) {
	switch word {
	case "after":
		var p Pause
		p.For, err = sc.duration()
		t.Pauses = append(t.Pauses, p)
	case "hold":
		var p Pause
		p.Gate, err = sc.word("the name of the hold")
		t.Pauses = append(t.Pauses, p)
	case "deltas":
		if t.Deltas, err = sc.more(); err == nil && len(t.Deltas) == 0 {
			err = errors.New(`deltas needs quoted strings: deltas "a" "b"`)
		}
	case "output":
		text, ok, qerr := sc.quoted()
		if err = qerr; err == nil && !ok {
			text, err = sc.word("the output")
		}
		t.Output = &text
	case "stop":
		t.Stop, err = status(sc)
	case "none":
		t.None = true
	case "twice":
		t.Twice = true
	case "die":
		t.Die = true
	default:
		err = fmt.Errorf("unknown option %q of tool", word)
	}
	return err
}

func status(sc *scanner) (protocol.StopReason, error) {
	w, err := sc.word("a status")
	if err != nil {
		return "", err
	}
	switch s := protocol.StopReason(w); s {
	case protocol.Completed, protocol.Failed, protocol.Aborted, protocol.Timeout, protocol.Malformed:
		return s, nil
	}
	return "", fmt.Errorf("a status is completed, failed, aborted, timeout or malformed, not %q", w)
}
