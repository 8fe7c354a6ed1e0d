package bus

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"rookery/protocol"
)

// ErrNoOrchestrator reports that nobody serves the session, or could.
var ErrNoOrchestrator = errors.New("no orchestrator")

// grace is how long a command looks for an orchestrator; after a restart of the
// broker they need a moment to be back.
const grace = 500 * time.Millisecond

// commandWait is how long one attempt of a command waits for its answer.
const commandWait = 2 * time.Second

// Command asks the session's owner, or, when it has none, any orchestrator to
// become it, and follows the answer to another one. A command without answer is
// repeated with the same id until ctx ends; owners know repeated ids.
// ErrNoOrchestrator comes with the reply that said so, if one did.
func (b *Bus) Command(ctx context.Context, sid protocol.ID, verb protocol.Verb, c protocol.Command) (protocol.Reply, error) {
	if err := checkIDs(sid, protocol.ID(verb)); err != nil {
		return protocol.Reply{}, err
	}
	owner, open := b.command(sid, string(verb)), b.open(sid, string(verb))
	r, err := b.route(ctx, owner, open, c, func(oid protocol.ID) string { return b.at(oid, sid, string(verb)) })
	if err == nil && r.Code == protocol.ReplyNoOrchestrator {
		err = fmt.Errorf("%w: %s", ErrNoOrchestrator, r.Reason)
	}
	if err != nil {
		return r, fmt.Errorf("%s %s: %w", verb, sid, err)
	}
	return r, nil
}

// route asks at subject and, where nobody or no answer is there, at open, in turn,
// until somebody answers; at is where an answer "use" leads. It ends with
// ErrNoOrchestrator when there was nobody all round for the time of grace: an
// owner that is slow is not nobody.
func (b *Bus) route(ctx context.Context, subject, open string, c any, at func(protocol.ID) string) (protocol.Reply, error) {
	start := time.Now()
	next, silent := subject, false
	for {
		r, err := ask[protocol.Reply](ctx, b, next, c, commandWait)
		switch {
		case err == nil && r.Code == protocol.ReplyUse && checkIDs(r.Use) == nil && next != at(r.Use):
			next = at(r.Use)
			continue
		case err == nil && r.Code != protocol.ReplyUse:
			return r, nil
		case err == nil:
			err = fmt.Errorf("%w: %.40q is named as the one to ask", ErrGone, r.Use)
		}
		silent = silent || !errors.Is(err, ErrGone)
		if next == subject && next != open {
			next = open
			continue
		}
		if !silent && time.Since(start) > grace {
			return protocol.Reply{}, ErrNoOrchestrator
		}
		next, silent = subject, false
		if end := b.again(ctx, err); end != nil {
			return protocol.Reply{}, end
		}
	}
}

// CommandAt asks one orchestrator and no other: a forwarded command, or one for
// the orchestrator of this process. ErrGone means that it is not there.
func (b *Bus) CommandAt(ctx context.Context, oid, sid protocol.ID, verb protocol.Verb, c protocol.Command) (protocol.Reply, error) {
	if err := checkIDs(oid, sid, protocol.ID(verb)); err != nil {
		return protocol.Reply{}, err
	}
	r, err := askAgain[protocol.Reply](ctx, b, b.at(oid, sid, string(verb)), c)
	if err != nil {
		return r, fmt.Errorf("%s %s at %s: %w", verb, sid, oid, err)
	}
	return r, nil
}

// A CommandHandler takes one command. It must not block: the next command of the
// subscription waits for it. respond may be called later, from any goroutine, once.
type CommandHandler func(sid protocol.ID, verb protocol.Verb, c protocol.Command, respond func(protocol.Reply))

func badRequest(err error) protocol.Reply {
	return protocol.Reply{Code: protocol.ReplyBadRequest, Reason: err.Error()}
}

// ServeSession takes the commands of a session that this process owns. stop ends
// that; a command that arrives in the same moment is repeated by its sender.
func (b *Bus) ServeSession(sid protocol.ID, h CommandHandler) (stop func(), err error) {
	if err := checkIDs(sid); err != nil {
		return nil, err
	}
	return serve(b, b.command(sid, "*"), "", badRequest, func(tokens []string, c protocol.Command, respond func(protocol.Reply)) {
		h(sid, protocol.Verb(tokens[3]), c, respond)
	})
}

// An Orchestrator says what one answers. The bus itself answers history,
// listings, the ledger and pings.
type Orchestrator struct {
	// Command takes commands for sessions that have no owner, or another one.
	Command CommandHandler
	// Remove deletes a session.
	Remove func(sid protocol.ID, respond func(protocol.Reply))
	// Import takes a piece of a trace; accepted with Use set to the own id keeps
	// the following pieces here.
	Import func(sid protocol.ID, in Import, respond func(protocol.Reply))
	// Register takes a worker that signs on.
	Register func(w protocol.WorkerInfo, respond func(protocol.Reply))
}

// An Import is a piece of a trace that comes from outside.
type Import struct {
	// Part counts from 0; More says that another one follows.
	Part     int                `json:"part"`
	More     bool               `json:"more,omitempty"`
	Messages []protocol.Message `json:"messages"`
}

// Verbs of rk.orch.at beside the commands'.
const (
	verbRemove   = "rm"
	verbImport   = "import"
	verbRegister = "register"
)

// ServeOrch answers as orchestrator oid; with queue also what is for any
// orchestrator. The fields of h must be set.
func (b *Bus) ServeOrch(oid protocol.ID, h Orchestrator, queue bool) (stop func(), err error) {
	if err := checkIDs(oid); err != nil {
		return nil, err
	}
	var stops []func()
	stop = func() {
		for _, s := range stops {
			s()
		}
	}
	services := []func() (func(), error){
		func() (func(), error) { return b.servePing(oid) },
		func() (func(), error) { return b.serveAt(oid, h) },
	}
	if queue {
		services = append(services, b.queueServices(h)...)
	}
	for _, start := range services {
		s, err := start()
		if err != nil {
			stop()
			return nil, fmt.Errorf("serve as orchestrator %s: %w", oid, err)
		}
		stops = append(stops, s)
	}
	return stop, nil
}

// orchQueue is the queue group of rk.orch subjects for any orchestrator.
const orchQueue = "orch"

func (b *Bus) queueServices(h Orchestrator) []func() (func(), error) {
	type reply = protocol.Reply
	return []func() (func(), error){
		func() (func(), error) {
			return serve(b, b.open("*", "*"), orchQueue, badRequest, func(t []string, c protocol.Command, respond func(reply)) {
				h.Command(protocol.ID(t[3]), protocol.Verb(t[4]), c, respond)
			})
		},
		func() (func(), error) {
			return serve(b, b.orch(verbRemove, "*"), orchQueue, badRequest, func(t []string, _ struct{}, respond func(reply)) {
				h.Remove(protocol.ID(t[3]), respond)
			})
		},
		func() (func(), error) {
			return serve(b, b.orch(verbImport, "*"), orchQueue, badRequest, func(t []string, in Import, respond func(reply)) {
				h.Import(protocol.ID(t[3]), in, respond)
			})
		},
		func() (func(), error) {
			return serve(b, b.orch(verbRegister, "*"), orchQueue, badRequest, func(_ []string, w protocol.WorkerInfo, respond func(reply)) {
				h.Register(w, respond)
			})
		},
		func() (func(), error) {
			return serve(b, b.orch("hist", "*"), orchQueue, badPage, func(t []string, r HistoryRequest, respond func(Page)) {
				b.handlers.Go(func() { b.serveHistory(protocol.ID(t[3]), r, respond) })
			})
		},
		func() (func(), error) {
			return serve(b, b.orch("ls"), orchQueue, badListing[protocol.Entry], func(_ []string, r ListRequest, respond func(Listing[protocol.Entry])) {
				b.handlers.Go(func() { serveListing(b, b.entries, r, respond) })
			})
		},
		func() (func(), error) {
			return serve(b, b.orch("usage"), orchQueue, badListing[protocol.UsageRow], func(_ []string, r ListRequest, respond func(Listing[protocol.UsageRow])) {
				b.handlers.Go(func() { serveListing(b, b.rows, r, respond) })
			})
		},
	}
}

// serveAt takes what is for this orchestrator and no other. The body's type
// depends on the verb.
func (b *Bus) serveAt(oid protocol.ID, h Orchestrator) (stop func(), err error) {
	type raw = rawBody
	return serve(b, b.at(oid, "*", "*"), "", badRequest, func(t []string, body raw, respond func(protocol.Reply)) {
		id, err := protocol.ID(t[4]), error(nil)
		switch t[5] {
		case verbRemove:
			h.Remove(id, respond)
		case verbImport:
			var in Import
			if err = body.read(&in); err == nil {
				h.Import(id, in, respond)
			}
		case verbRegister:
			var w protocol.WorkerInfo
			if err = body.read(&w); err == nil {
				h.Register(w, respond)
			}
		default:
			var c protocol.Command
			if err = body.read(&c); err == nil {
				h.Command(id, protocol.Verb(t[5]), c, respond)
			}
		}
		if err != nil {
			respond(badRequest(err))
		}
	})
}

// rawBody keeps a body for later.
type rawBody []byte

func (r *rawBody) UnmarshalJSON(b []byte) error {
	*r = append((*r)[:0], b...)
	return nil
}

func (r rawBody) read(v any) error { return protocol.Unmarshal(r, v) }

// Remove asks an orchestrator to delete a session.
func (b *Bus) Remove(ctx context.Context, sid protocol.ID) (protocol.Reply, error) {
	return b.administer(ctx, sid, verbRemove, struct{}{})
}

// Import sends a trace to an orchestrator, in pieces, all to the same one. It ends
// with the first reply that is not accepted.
func (b *Bus) Import(ctx context.Context, sid protocol.ID, ms iter.Seq2[protocol.Message, error]) (protocol.Reply, error) {
	var in Import
	var r protocol.Reply
	size := 0
	flush := func(more bool) error {
		in.More = more
		var err error
		if r.Use == "" {
			r, err = b.administer(ctx, sid, verbImport, in)
		} else {
			r, err = askAgain[protocol.Reply](ctx, b, b.at(r.Use, sid, verbImport), in)
		}
		in, size = Import{Part: in.Part + 1}, 0
		return err
	}
	for m, err := range ms {
		if err != nil {
			return r, err
		}
		n := len(m.Encode()) + 1
		if len(in.Messages) > 0 && size+n > pageSize {
			if err := flush(true); err != nil || !r.Code.Accepted() {
				return r, err
			}
		}
		in.Messages, size = append(in.Messages, m), size+n
	}
	err := flush(false)
	return r, err
}

// administer asks any orchestrator, and follows "use".
func (b *Bus) administer(ctx context.Context, sid protocol.ID, verb string, q any) (protocol.Reply, error) {
	if err := checkIDs(sid); err != nil {
		return protocol.Reply{}, err
	}
	subject := b.orch(verb, sid)
	r, err := b.route(ctx, subject, subject, q, func(oid protocol.ID) string { return b.at(oid, sid, verb) })
	if err != nil {
		return r, fmt.Errorf("%s %s: %w", verb, sid, err)
	}
	return r, nil
}

// A Pong answers a Ping.
type Pong struct {
	Node protocol.ID `json:"node"`
}

// Ping asks whether an orchestrator is there. ErrGone: nobody listens under that
// id at the broker; any other error proves nothing.
func (b *Bus) Ping(ctx context.Context, oid protocol.ID) error {
	if err := checkIDs(oid); err != nil {
		return err
	}
	_, err := ask[Pong](ctx, b, b.orch("ping", oid), struct{}{}, attemptTimeout)
	return err
}

func (b *Bus) servePing(oid protocol.ID) (stop func(), err error) {
	return serve(b, b.orch("ping", oid), "", func(error) Pong { return Pong{oid} },
		func(_ []string, _ struct{}, respond func(Pong)) { respond(Pong{oid}) })
}

func badPage(err error) Page { return Page{Code: protocol.ReplyBadRequest, Reason: err.Error()} }
