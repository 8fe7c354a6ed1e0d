package bus

import (
	"github.com/nats-io/nats.go"
)

// ParsePlace reads a subject of a trace and builds it again.
func ParsePlace(subject string) (again string, err error) {
	pl, err := names(DefaultPrefix).parseTrace(subject)
	if err != nil {
		return "", err
	}
	if pl.context == 0 {
		return names(DefaultPrefix).traceOwn(pl.session), nil
	}
	return names(DefaultPrefix).traceContext(pl.session, pl.context, pl.private), nil
}

// Assemble makes frames of messages; errors are counted.
func Assemble(ms []*nats.Msg) (fs []Frame, bad int) {
	var a assembler
	for _, m := range ms {
		f, ok, err := a.next(names(DefaultPrefix), m)
		if err != nil {
			bad++
		}
		if ok {
			fs = append(fs, f)
		}
	}
	return fs, bad
}

// ParseDone reads a message about a dispatch.
func ParseDone(subject string, body []byte) (CallEvent, error) {
	b := &Bus{names: names(DefaultPrefix)}
	m := &nats.Msg{Subject: subject, Data: body}
	if e, err := b.parseDone(m); err == nil {
		return e, nil
	}
	return b.parseDelta(m)
}

// CheckDispatch is checkDispatch.
func CheckDispatch(s string) error { return checkDispatch(s) }
