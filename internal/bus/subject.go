package bus

import (
	"fmt"
	"strings"

	"rookery/protocol"
)

// names builds and parses every subject. It is the prefix, one token.
type names string

func (p names) join(tokens ...string) string { return string(p) + "." + strings.Join(tokens, ".") }

func (p names) traceAll(sid protocol.ID) string { return p.join("trace", string(sid), ">") }

// traceShown is what viewers get: visible frames and own records.
func (p names) traceShown(sid protocol.ID) string { return p.join("trace", string(sid), "*") }

func (p names) traceOwn(sid protocol.ID) string { return p.join("trace", string(sid), tokenOwn) }

func (p names) traceContext(sid protocol.ID, context int, private bool) string {
	s := p.join("trace", string(sid), fmt.Sprintf("%03d", context))
	if private {
		s += "." + tokenPrivate
	}
	return s
}

func (p names) outAll(sid protocol.ID) string  { return p.join("out", string(sid), ">") }
func (p names) outOwn(sid protocol.ID) string  { return p.join("out", string(sid), "m", tokenOwn) }
func (p names) outLive(sid protocol.ID) string { return p.join("out", string(sid), "d") }

func (p names) command(sid protocol.ID, verb string) string { return p.join("cmd", string(sid), verb) }

func (p names) open(sid protocol.ID, verb string) string {
	return p.join("orch", "open", string(sid), verb)
}

func (p names) at(oid, sid protocol.ID, verb string) string {
	return p.join("orch", "at", string(oid), string(sid), verb)
}

// orch is rk.orch.<service> or rk.orch.<service>.<id>.
func (p names) orch(service string, id ...protocol.ID) string {
	tokens := []string{"orch", service}
	for _, i := range id {
		tokens = append(tokens, string(i))
	}
	return p.join(tokens...)
}

func (p names) call(d Destination, sid protocol.ID, dispatch string) string {
	return p.join("call", d.String(), string(sid), dispatch)
}

func (p names) callFilter(d Destination) string { return p.join("call", d.String(), ">") }

func (p names) claim(d Destination, sid protocol.ID, dispatch string) string {
	return p.join("res", d.String(), string(sid), dispatch, tokenClaim)
}

func (p names) result(wid, sid protocol.ID, dispatch string) string {
	return p.join("res", ToWorker(wid).String(), string(sid), dispatch, tokenResult)
}

func (p names) done(sid protocol.ID) string { return p.join("done", "*", "*", string(sid), "*", "*") }

func (p names) tool(wid, sid protocol.ID, dispatch string) string {
	return p.join("tool", string(wid), string(sid), dispatch)
}

func (p names) heartbeat(wid protocol.ID) string { return p.join("hb", string(wid)) }

func (p names) control(wid protocol.ID, verb string) string {
	return p.join("ctl", string(wid), verb)
}

func (p names) usage(sid protocol.ID, request string) string {
	return p.join("usage", string(sid), request)
}

// stream is the name of a stream: TRACE, or RK2_TRACE for another prefix.
func (p names) stream(name string) string {
	if p == DefaultPrefix {
		return name
	}
	return strings.ToUpper(string(p)) + "_" + name
}

func (p names) bucket(name string) string       { return string(p) + "_" + name }
func (p names) bucketStream(name string) string { return "KV_" + p.bucket(name) }
func (p names) key(bucket, key string) string   { return "$KV." + p.bucket(bucket) + "." + key }

// Tokens with a meaning.
const (
	tokenOwn     = "own"
	tokenPrivate = "x"
	tokenClaim   = "c"
	tokenResult  = "d"
)

// DefaultPrefix is the first token of every subject unless Options say otherwise.
const DefaultPrefix = "rk"

// A Destination is where calls go: one worker (w.<id>) or any of a pool (p.<id>).
type Destination struct {
	Pool bool
	ID   protocol.ID
}

// ToWorker is the destination of one worker.
func ToWorker(id protocol.ID) Destination { return Destination{ID: id} }

// ToPool is the destination of a pool's workers.
func ToPool(id protocol.ID) Destination { return Destination{Pool: true, ID: id} }

// String returns the two tokens w.<id> or p.<id>.
func (d Destination) String() string {
	if d.Pool {
		return "p." + string(d.ID)
	}
	return "w." + string(d.ID)
}

// durable is the name of the destination's consumer.
func (d Destination) durable() string { return strings.Replace(d.String(), ".", "_", 1) }

// ParseDestination reads what String wrote.
func ParseDestination(s string) (Destination, error) {
	kind, rest, ok := strings.Cut(s, ".")
	if !ok || kind != "w" && kind != "p" {
		return Destination{}, fmt.Errorf("%.60q is no destination: w.<worker> or p.<pool>", s)
	}
	id, err := protocol.ParseID(rest)
	if err != nil {
		return Destination{}, fmt.Errorf("destination %.60q: %w", s, err)
	}
	return Destination{Pool: kind == "p", ID: id}, nil
}

// split returns the tokens of a subject after the prefix and family, if it has
// exactly n of them.
func (p names) split(subject, family string, n int) ([]string, bool) {
	rest, ok := strings.CutPrefix(subject, string(p)+"."+family+".")
	if !ok {
		return nil, false
	}
	tokens := strings.Split(rest, ".")
	return tokens, len(tokens) == n
}

// A place is what a subject of a trace, or of its republished copy, says.
type place struct {
	session protocol.ID
	context int // 0 for an own record
	private bool
}

// parseTrace reads rk.trace.<sid>.<ctx>[.x], rk.trace.<sid>.own and the
// republished rk.out.<sid>.m.<ctx>, rk.out.<sid>.m.own.
func (p names) parseTrace(subject string) (place, error) {
	tokens, ok := p.split(subject, "trace", 2)
	var pl place
	switch {
	case ok:
	case len(tokens) == 3 && tokens[2] == tokenPrivate:
		pl.private = true
	default:
		if tokens, ok = p.split(subject, "out", 3); !ok || tokens[1] != "m" {
			return place{}, fmt.Errorf("%.80q is no subject of a trace", subject)
		}
		tokens = []string{tokens[0], tokens[2]}
	}
	sid, err := protocol.ParseID(tokens[0])
	if err != nil {
		return place{}, fmt.Errorf("subject %.80q: %w", subject, err)
	}
	pl.session = sid
	if tokens[1] == tokenOwn && !pl.private {
		return pl, nil
	}
	if pl.context, ok = digits(tokens[1]); !ok || pl.context == 0 {
		return place{}, fmt.Errorf("subject %.80q: %q is no context", subject, tokens[1])
	}
	return pl, nil
}

// digits reads a decimal number of at most nine digits and nothing else.
func digits(s string) (int, bool) {
	if s == "" || len(s) > 9 {
		return 0, false
	}
	n := 0
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, true
}

// checkDispatch admits <request>-<position>-<attempt>.
func checkDispatch(s string) error {
	parts := strings.Split(s, "-")
	for _, part := range parts {
		if _, ok := digits(part); !ok {
			parts = nil
		}
	}
	if len(parts) != 3 {
		return fmt.Errorf("%.60q is no dispatch: <request>-<position>-<attempt>", s)
	}
	return nil
}

// checkIDs refuses ids that are not one token; callers may not have parsed them.
func checkIDs(ids ...protocol.ID) error {
	for _, id := range ids {
		if _, err := protocol.ParseID(string(id)); err != nil {
			return err
		}
	}
	return nil
}
