package enginetest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"rookery/protocol"
)

// item reads one indented line of the open model statement.
func (p *parser) item(line int, text string) error {
	if p.reply.End != nil {
		return fmt.Errorf("%q stands behind the end of the reply", text)
	}
	sc := &scanner{rest: text}
	word, err := sc.word("an item")
	if err != nil {
		return err
	}
	switch word {
	case "usage":
		u, err := usage(sc)
		if err == nil {
			p.reply.Usages = append(p.reply.Usages, u)
		}
		return err
	case "end":
		p.reply.End, err = end(line, sc)
		return err
	}
	it := Item{Line: line}
	if word == "half" {
		it.Half = true
		if word, err = sc.word("think, text or call"); err != nil {
			return err
		}
	}
	it.Kind = ItemKind(word)
	if err := it.read(sc); err != nil {
		return err
	}
	if p.reply.Half() && !it.Half && it.Kind != ItemWait && it.Kind != ItemHold {
		return errors.New("a complete item stands behind a half one")
	}
	p.reply.Items = append(p.reply.Items, it)
	return nil
}

func (it *Item) read(sc *scanner) (err error) {
	switch it.Kind {
	case ItemThink, ItemText:
		if it.Pieces, err = sc.pieces("the text"); err != nil {
			return err
		}
		return sc.end()
	case ItemCall:
		return it.call(sc)
	case ItemWait, ItemHold:
		if it.Half {
			break
		}
		if it.Kind == ItemWait {
			it.For, err = sc.duration()
		} else {
			it.Gate, err = sc.word("the name of the hold")
		}
		if err != nil {
			return err
		}
		return sc.end()
	}
	if it.Half {
		return fmt.Errorf("half %q: think, text or call can be half", it.Kind)
	}
	return fmt.Errorf("unknown item %q", it.Kind)
}

// call reads ID NAME ARGS: the arguments are quoted pieces or the raw rest of the
// line; without any they are {}, half ones empty.
func (it *Item) call(sc *scanner) (err error) {
	if it.ID, err = sc.word("the id of the call"); err != nil {
		return err
	}
	if it.Name, err = sc.word("the name of the tool"); err != nil {
		return err
	}
	switch {
	case sc.done() && it.Half:
		return nil
	case sc.done():
		it.Pieces = []string{"{}"}
		return nil
	case sc.rest[0] != '"' && sc.rest[0] != '`':
		it.Pieces = []string{strings.TrimRight(sc.rest, " \t")}
		return nil
	}
	if it.Pieces, err = sc.more(); err != nil {
		return err
	}
	return sc.end()
}

// usage reads N, all of it uncached prompt, or the figures by name.
func usage(sc *scanner) (u protocol.Usage, err error) {
	total := int64(-1)
	for !sc.done() {
		key, value, ok, err := sc.option()
		if err != nil {
			return u, err
		}
		if !ok {
			if key, value = "", sc.rest; u != (protocol.Usage{}) || total >= 0 {
				return u, sc.end()
			}
			sc.rest = ""
		}
		n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		if err != nil || n < 0 {
			return u, fmt.Errorf("usage: %q is not a number of tokens", value)
		}
		switch key {
		case "":
			u.CacheWrite, total = n, n
		case "cache_read":
			u.CacheRead = n
		case "cache_write":
			u.CacheWrite = n
		case "output":
			u.Output = n
		case "total":
			total = n
		default:
			return u, fmt.Errorf("usage has cache_read, cache_write, output and total, not %q", key)
		}
	}
	sum := u.CacheRead + u.CacheWrite + u.Output
	switch {
	case total < 0 && sum == 0:
		return u, errors.New("usage without a number")
	case total < 0:
		total = sum
	case sum == 0:
		u.CacheWrite = total
	}
	u.Total = total
	return u, nil
}

// end reads STATUS [MESSAGE] [retry_after=D] [code=CODE].
func end(line int, sc *scanner) (*End, error) {
	e := &End{Line: line}
	sc.skip()
	if rest, ok := strings.CutPrefix(sc.rest, "length"); ok && (rest == "" || rest[0] == ' ') {
		e.Status, e.Length, sc.rest = protocol.Completed, true, rest
	} else {
		s, err := status(sc)
		if err != nil {
			return nil, err
		}
		e.Status = s
	}
	for !sc.done() {
		key, value, ok, err := sc.option()
		switch {
		case err != nil:
			return nil, err
		case !ok && e.Message == "":
			if e.Message, err = sc.text("the message"); err != nil {
				return nil, err
			}
		case !ok:
			return nil, sc.end()
		case key == "retry_after":
			if e.RetryAfter, err = parseDuration(value); err != nil {
				return nil, err
			}
		case key == "code":
			e.Code = protocol.Code(value)
		default:
			return nil, fmt.Errorf("end has retry_after= and code=, not %s=", key)
		}
	}
	return e, nil
}
