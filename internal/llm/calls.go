package llm

import (
	"errors"
	"strings"
	"unicode/utf16"
)

// maxCalls bounds the calls of one reply.
const maxCalls = 512

var errTooManyCalls = errors.New("the reply has more than 512 tool calls")

// calls finds the call that a fragment belongs to. Providers name it by index, by
// id, by both or by neither, and get each of them wrong.
type calls struct {
	all      []*segment
	byID     map[string]*segment
	byIndex  map[int]*segment
	last     *segment
	function *segment // of the old function_call
	joins    map[*segment]*joiner
}

// find returns the call that the fragment continues, nil for a new one.
func (c *calls) find(id, name, args string, index *num) *segment {
	var cur *segment
	switch {
	case id != "" && c.byID[id] != nil:
		cur = c.byID[id]
		if index != nil && cur.hasIndex && cur.index != int(*index) {
			if cur = c.byIndex[int(*index)]; cur != nil && cur.providerID != id {
				return nil
			}
		}
	case id != "":
		if index != nil {
			cur = c.byIndex[int(*index)]
		}
		if cur != nil && cur.providerID != "" {
			return nil
		}
	case index != nil:
		cur = c.byIndex[int(*index)]
	case name == "":
		cur = c.last
	}
	if cur != nil && name != "" && another(cur, name, args) {
		return nil
	}
	return cur
}

// another reports that a fragment with a name begins a new call although it has
// the id or the index of cur.
func another(cur *segment, name, args string) bool {
	body := cur.body.String()
	if cur.name == "" || strings.TrimSpace(body) == "" {
		return false
	}
	return name != cur.name || strings.HasPrefix(strings.TrimSpace(args), "{") && object(body)
}

// place returns the call of a fragment, a new one where it begins one.
func (c *calls) place(q *queue, d callDelta) (*segment, error) {
	var name, args string
	if d.Function != nil {
		name, args = d.Function.Name.s, d.Function.Arguments.s
	}
	cur := c.find(d.ID.s, name, args, d.Index)
	if cur == nil {
		if len(c.all) == maxCalls {
			return nil, errTooManyCalls
		}
		cur = c.begin(q)
	}
	if d.ID.s != "" {
		if cur.providerID == "" {
			cur.providerID = d.ID.s
		}
		c.byID[d.ID.s] = cur
	}
	if d.Index != nil {
		cur.index, cur.hasIndex = int(*d.Index), true
		c.byIndex[cur.index] = cur
	}
	c.last = cur
	return cur, nil
}

func (c *calls) begin(q *queue) *segment {
	if c.byID == nil {
		c.byID, c.byIndex, c.joins = map[string]*segment{}, map[int]*segment{}, map[*segment]*joiner{}
	}
	s := q.begin(call)
	c.all = append(c.all, s)
	c.joins[s] = &joiner{}
	return s
}

// mergeName returns the name of a call that had one and got another fragment of
// it: the same again, the rest of it, or a better one, as the offered tools tell.
func mergeName(old, piece string, offered map[string]bool) string {
	switch {
	case piece == "" || piece == old:
		return old
	case old == "":
		return piece
	case offered[old+piece]:
		return old + piece
	case offered[piece] && !offered[old]:
		return piece
	}
	return old
}

// A joiner puts together the two halves of a character that came in two strings.
type joiner struct{ high uint16 }

// join returns the text of t with what the one before left over.
func (j *joiner) join(t str) string {
	var out string
	switch {
	case j.high != 0 && t.head != 0:
		out = string(utf16.DecodeRune(rune(j.high), rune(t.head)))
	case j.high != 0 && t.s == "" && t.tail == 0:
		return "" // an empty string in between
	case j.high != 0, t.head != 0:
		out = "\ufffd"
	}
	j.high = t.tail
	return strings.ReplaceAll(out+t.s, "\x00", "\ufffd")
}

// rest returns the replacement for a half that stayed alone.
func (j *joiner) rest() string {
	if j.high == 0 {
		return ""
	}
	j.high = 0
	return "\ufffd"
}
