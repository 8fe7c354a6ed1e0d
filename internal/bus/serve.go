package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"rookery/protocol"
)

// The worker's side of tool calls.

// Errors of a worker.
var (
	// ErrNoQueue reports that the destination has no queue: sign on again.
	ErrNoQueue = errors.New("no queue for this destination")
	// ErrSettled reports that a dispatch has another result already.
	ErrSettled = errors.New("call has a result already")
)

// fetchWait is how long the broker holds one pull.
const fetchWait = 30 * time.Second

// A Delivery is a call that the queue handed out. Claim it, Ack it, run it: the
// claim decides who does, an Ack only ends the redelivery.
type Delivery struct {
	Call protocol.Call
	Dest Destination

	bus *Bus
	ack string
}

// Fetch waits for one call. Several may wait at once, one for each free slot:
// nothing is fetched that can't run. A call that is handed out and not acked
// within 10 s is handed out again, to anybody. ErrNoQueue: see there.
func (b *Bus) Fetch(ctx context.Context, d Destination) (*Delivery, error) {
	if err := checkIDs(d.ID); err != nil {
		return nil, err
	}
	missing := 0
	for {
		m, err := b.pull(ctx, d)
		switch {
		case err == nil && m != nil:
			if dl := b.delivery(d, m); dl != nil {
				return dl, nil
			}
			continue
		case err == nil:
			missing = 0
			continue // nothing came; ask again
		case errors.Is(err, ErrNoQueue):
			if missing++; missing > 20 { // two seconds: a restarted broker is not ready at once
				return nil, fmt.Errorf("fetch from %s: %w", d, err)
			}
		}
		if end := b.again(ctx, err); end != nil {
			return nil, fmt.Errorf("fetch from %s: %w", d, end)
		}
	}
}

// pull asks for one message; nil without error when none came in time.
func (b *Bus) pull(ctx context.Context, d Destination) (*nats.Msg, error) {
	actx, cancel := b.ctl.bound(ctx, fetchWait+attemptTimeout)
	defer cancel()
	inbox := b.ctl.nc.NewInbox()
	got := make(chan *nats.Msg, 4) // the library writes; one message or status comes
	s, err := b.ctl.nc.ChanSubscribe(inbox, got)
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Unsubscribe() }() // the broker then drops the pull
	body, err := json.Marshal(map[string]any{"batch": 1, "expires": fetchWait})
	if err != nil {
		return nil, err
	}
	subject := "$JS.API.CONSUMER.MSG.NEXT." + b.stream(streamCall) + "." + d.durable()
	if err := b.ctl.nc.PublishRequest(subject, inbox, body); err != nil {
		return nil, err
	}
	select {
	case m := <-got:
		return pulled(m)
	case <-actx.Done():
		if errors.Is(actx.Err(), context.DeadlineExceeded) && ctx.Err() == nil {
			return nil, nil //nolint:nilnil // nothing came
		}
		return nil, errors.Join(ctx.Err(), errCut)
	}
}

func pulled(m *nats.Msg) (*nats.Msg, error) {
	switch status := m.Header.Get(hdrStatus); status {
	case "":
		return m, nil
	case statusNotFound, "408":
		return nil, nil //nolint:nilnil // nothing came
	case "503":
		return nil, ErrNoQueue
	case "409":
		if d := m.Header.Get("Description"); d == "Consumer Deleted" {
			return nil, ErrNoQueue
		}
	}
	return nil, fmt.Errorf("broker: %s %s", m.Header.Get(hdrStatus), m.Header.Get("Description"))
}

// delivery reads a call; one that can't be read is taken off the queue and logged.
func (b *Bus) delivery(d Destination, m *nats.Msg) *Delivery {
	dl := &Delivery{Dest: d, bus: b, ack: m.Reply}
	err := protocol.Unmarshal(m.Data, &dl.Call)
	if err == nil {
		err = errors.Join(checkIDs(dl.Call.Session), checkDispatch(dl.Call.Dispatch))
	}
	if err == nil && m.Subject != b.call(d, dl.Call.Session, dl.Call.Dispatch) {
		err = errors.New("subject and body name different calls")
	}
	if err == nil {
		return dl
	}
	b.log.Warn("call not understood", "subject", m.Subject, "err", err)
	if err := b.shout(b.ctl, m.Reply, []byte("+TERM")); err != nil {
		b.log.Debug("call not taken off the queue", "subject", m.Subject, "err", err)
	}
	return nil
}

// Claim takes the call for this process. won is false when somebody else has it,
// or this process had it already and the queue hands it out again; either way
// Ack it and do nothing. It repeats until it is known or ctx ends.
func (d *Delivery) Claim(ctx context.Context, c protocol.Claim) (won bool, err error) {
	c.Revoked = false
	a, mine, err := d.bus.writeClaim(ctx, d.Dest, d.Call.Session, d.Call.Dispatch, c)
	switch {
	case err != nil:
		return false, err
	case !a.repeated: // a duplicate of the first attempt is an earlier delivery's
		return mine && !a.Duplicate, nil
	case mine && !a.Duplicate:
		return true, nil
	}
	have, err := d.bus.Claim(ctx, d.Dest, d.Call.Session, d.Call.Dispatch)
	return have != nil && have.Boot == c.Boot && have.At.Equal(c.At), err
}

// Ack takes the call off the queue. It does not wait; a lost ack means another
// delivery, which the claim refuses.
func (d *Delivery) Ack() error { return d.bus.shout(d.bus.ctl, d.ack, []byte("+ACK")) }

// A call is handed to the next worker at once passFast times, then after a pause that
// grows by a millisecond each time, up to passSlow. The pause is ours: a delayed -NAK
// waits for whatever else the broker's timer waits for.
const (
	passFast = 16
	passSlow = 250 * time.Millisecond
)

// Pass gives the call back to the queue, for a worker that has its tool; it must
// not be claimed. It does not wait.
func (d *Delivery) Pass() {
	again := func() {
		if err := d.bus.shout(d.bus.ctl, d.ack, []byte("-NAK")); err != nil { // it comes again by itself
			d.bus.log.Debug("call not passed on", "call", d.Call.Dispatch, "err", err)
		}
	}
	pause := min(time.Duration(d.deliveries()-passFast)*time.Millisecond, passSlow)
	if pause <= 0 {
		again()
		return
	}
	time.AfterFunc(pause, again)
}

// deliveries is how often the call was handed out; very often if that can't be known.
func (d *Delivery) deliveries() int {
	t := strings.Split(d.ack, ".") // $JS.ACK, perhaps domain and account, stream, consumer, deliveries, …
	at := 4
	if len(t) > 9 {
		at = 6
	}
	if len(t) < 9 {
		return math.MaxInt32
	}
	n, err := strconv.Atoi(t[at])
	if err != nil {
		return math.MaxInt32
	}
	return n
}

// PublishResult stores the result of a dispatch, and repeats that until it is
// known to be stored or ctx ends. A result of the same boot that is there already
// is success; ErrSettled reports another's.
func (b *Bus) PublishResult(ctx context.Context, sid protocol.ID, dispatch string, r protocol.Result) error {
	if err := errors.Join(checkIDs(sid, r.Worker, protocol.ID(r.Boot)), checkDispatch(dispatch)); err != nil {
		return err
	}
	body := protocol.Encode(r)
	if len(body) > protocol.MaxBody {
		return fmt.Errorf("result of %s/%s: %w: %d bytes", sid, dispatch, ErrTooLarge, len(body))
	}
	id := fmt.Sprintf("%s/%s/d/%s", sid, dispatch, r.Boot)
	_, mine, err := b.first(ctx, message(b.names.result(r.Worker, sid, dispatch), body, id))
	if err == nil && !mine {
		var have *protocol.Result
		if have, err = b.Result(ctx, r.Worker, sid, dispatch); err == nil && (have == nil || have.Boot != r.Boot) {
			err = ErrSettled
		}
	}
	if err != nil {
		return fmt.Errorf("result of %s/%s: %w", sid, dispatch, err)
	}
	return nil
}

// PublishToolDelta streams a piece of a running call's output. It may be lost.
func (b *Bus) PublishToolDelta(wid, sid protocol.ID, dispatch string, d protocol.ToolDelta) error {
	if err := errors.Join(checkIDs(wid, sid), checkDispatch(dispatch)); err != nil {
		return err
	}
	return b.shout(b.out, b.tool(wid, sid, dispatch), protocol.Encode(d))
}

// Heartbeat tells the worker's state. It may be lost.
func (b *Bus) Heartbeat(h protocol.Heartbeat) error {
	if err := checkIDs(h.Worker); err != nil {
		return err
	}
	return b.shout(b.out, b.heartbeat(h.Worker), protocol.Encode(h))
}

// A ControlHandler takes one request to a worker. It must not block; respond may
// be called later, from any goroutine, once.
type ControlHandler func(verb string, c protocol.Control, respond func(protocol.ControlReply))

// ServeControl answers as a worker, until stop.
func (b *Bus) ServeControl(wid protocol.ID, h ControlHandler) (stop func(), err error) {
	if err := checkIDs(wid); err != nil {
		return nil, err
	}
	bad := func(err error) protocol.ControlReply { return protocol.ControlReply{Error: err.Error()} }
	return serve(b, b.control(wid, "*"), "", bad, func(t []string, c protocol.Control, respond func(protocol.ControlReply)) {
		h(t[3], c, respond)
	})
}

// Register signs a worker on, at any orchestrator or at the one named; the queues
// exist when it is accepted. ErrNoOrchestrator: nobody is there.
func (b *Bus) Register(ctx context.Context, w protocol.WorkerInfo, at protocol.ID) (protocol.Reply, error) {
	if err := checkIDs(w.Worker); err != nil {
		return protocol.Reply{}, err
	}
	if at == "" {
		return b.administer(ctx, w.Worker, verbRegister, w)
	}
	if err := checkIDs(at); err != nil {
		return protocol.Reply{}, err
	}
	r, err := askAgain[protocol.Reply](ctx, b, b.at(at, w.Worker, verbRegister), w)
	if errors.Is(err, ErrGone) {
		err = fmt.Errorf("%w: %s", ErrNoOrchestrator, at)
	}
	return r, err
}
