package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Error codes of the broker that decide what a publish meant.
const (
	codeNotFound  = 10037
	codeNoSpace   = 10047
	codeConflict  = 10071 // another write came between
	codeBusy      = 10164 // another write of the same subject is in flight
	codeNotStored = 10077 // the subject is taken, or the stream is full
)

// A refusal is the broker's answer to a request it did not do.
type refusal struct {
	Code        int    `json:"err_code"`
	Description string `json:"description"`
}

func (r *refusal) Error() string {
	return fmt.Sprintf("broker: %s (%d)", r.Description, r.Code)
}

// taken reports that a first writer wins subject has its message already.
func (r *refusal) taken() bool {
	return r.Code == codeNotStored && strings.Contains(r.Description, "per subject")
}

func refused(err error) *refusal {
	r, _ := errors.AsType[*refusal](err)
	return r
}

// An ack tells where a message is stored.
type ack struct {
	Seq       uint64 `json:"seq"`
	Duplicate bool   `json:"duplicate"`
	// repeated: an earlier attempt may have been the one that stored it.
	repeated bool
}

// attempt publishes to a stream once.
func (b *Bus) attempt(ctx context.Context, m *nats.Msg) (ack, error) {
	r, err := b.send(ctx, m, attemptTimeout)
	if err != nil {
		return ack{}, err
	}
	var a struct {
		ack
		Error *refusal `json:"error"`
	}
	if err := json.Unmarshal(r.Data, &a); err != nil {
		return ack{}, fmt.Errorf("answer to a publish on %s: %w", m.Subject, err)
	}
	if a.Error != nil {
		return ack{}, a.Error
	}
	return a.ack, nil
}

// store publishes the same bytes until the stream answers or ctx ends. An error
// that is a refusal is the stream's word; after any other the fate is unknown.
func (b *Bus) store(ctx context.Context, m *nats.Msg) (ack, error) {
	for repeated := false; ; repeated = true {
		a, err := b.attempt(ctx, m)
		a.repeated = repeated
		if err == nil || refused(err) != nil {
			return a, err
		}
		if end := b.again(ctx, err); end != nil {
			return a, end
		}
	}
}

// first stores m on a subject that keeps its first message. mine reports that m
// or an earlier copy of it with the same id is what is stored.
func (b *Bus) first(ctx context.Context, m *nats.Msg) (a ack, mine bool, err error) {
	a, err = b.store(ctx, m)
	if r := refused(err); r != nil && r.taken() {
		return a, false, nil
	}
	return a, err == nil, err
}

func message(subject string, body []byte, id string) *nats.Msg {
	m := nats.NewMsg(subject)
	m.Data = body
	if id != "" {
		m.Header.Set(nats.MsgIdHdr, id)
	}
	return m
}

func number(m *nats.Msg, header string) uint64 {
	n, _ := strconv.ParseUint(m.Header.Get(header), 10, 64) // absent or odd: 0
	return n
}

// Headers and states of direct gets.
const (
	hdrSubject  = "Nats-Subject"
	hdrSequence = "Nats-Sequence"
	hdrTime     = "Nats-Time-Stamp"
	hdrPending  = "Nats-Num-Pending"
	hdrStatus   = "Status"

	statusEOB      = "204"
	statusNotFound = "404"
)

// errNotStored reports that there is no such message.
var errNotStored = errors.New("no such message")

// last gets the last message under a subject, which may hold wildcards, from the
// stream's leader: what was acknowledged before is seen.
func (b *Bus) last(ctx context.Context, stream, subject string) (*nats.Msg, error) {
	return b.get(ctx, stream, map[string]any{"last_by_subj": subject})
}

func (b *Bus) get(ctx context.Context, stream string, what map[string]any) (*nats.Msg, error) {
	body, err := json.Marshal(what)
	if err != nil {
		return nil, err
	}
	var r *nats.Msg
	for {
		if r, err = b.send(ctx, &nats.Msg{Subject: "$JS.API.STREAM.MSG.GET." + stream, Data: body}, attemptTimeout); err == nil {
			break
		}
		if end := b.again(ctx, err); end != nil {
			return nil, fmt.Errorf("read %s: %w", stream, end)
		}
	}
	var a struct {
		Error   *refusal
		Message struct {
			Subject string
			Seq     uint64
			Hdrs    []byte
			Data    []byte
			Time    time.Time
		}
	}
	if err := json.Unmarshal(r.Data, &a); err != nil {
		return nil, fmt.Errorf("read %s: %w", stream, err)
	}
	switch {
	case a.Error != nil && a.Error.Code == codeNotFound:
		return nil, errNotStored
	case a.Error != nil:
		return nil, fmt.Errorf("read %s: %w", stream, a.Error)
	}
	m := nats.NewMsg(a.Message.Subject)
	m.Data = a.Message.Data
	if len(a.Message.Hdrs) > 0 {
		if m.Header, err = nats.DecodeHeadersMsg(a.Message.Hdrs); err != nil {
			return nil, fmt.Errorf("read %s: message %d: %w", stream, a.Message.Seq, err)
		}
	}
	m.Header.Set(hdrSequence, strconv.FormatUint(a.Message.Seq, 10))
	m.Header.Set(hdrTime, a.Message.Time.UTC().Format(time.RFC3339Nano))
	return m, nil
}

// Limits of one batch of a scan.
const (
	scanBatch = 512
	scanBytes = 2 << 20
)

// toEnd makes a scan go on until nothing is left, also of what comes meanwhile.
const toEnd = math.MaxUint64

// scan yields the messages of a stream under filter from a sequence on, in order,
// up to and including the sequence to, which must be of one of them, or toEnd. It
// needs no consumer, and asks for the next messages while those before are used. A
// cut connection only delays it; a replica that has not got to yet is waited for.
func (b *Bus) scan(ctx context.Context, stream, filter string, from, to uint64) iter.Seq2[*nats.Msg, error] {
	return func(yield func(*nats.Msg, error) bool) {
		r := reader{bus: b, stream: stream, filter: filter}
		defer r.close()
		for from <= to {
			got := r.next(ctx, from)
			for _, m := range got.ms {
				seq := number(m, hdrSequence)
				if from = seq + 1; seq > to || !yield(m, nil) {
					return
				}
			}
			err := got.err
			if from > to || err == nil && got.left > 0 {
				continue
			}
			if err == nil && to != toEnd {
				err = b.behind(ctx, stream, to)
			}
			if err == nil {
				return // to was purged meanwhile
			}
			if end := b.again(ctx, err); end != nil {
				yield(nil, fmt.Errorf("read %s: %w", filter, end))
				return
			}
		}
	}
}

// A reader reads batches, one ahead.
type reader struct {
	bus            *Bus
	stream, filter string

	ahead  chan batch // capacity 1; nil when no batch is being read
	from   uint64     // where it begins
	cancel context.CancelFunc
}

// A batch is what one request brought: messages, how many are left after them, and
// what cut it short.
type batch struct {
	ms   []*nats.Msg
	left uint64
	err  error
}

// next returns the batch from a sequence on, and begins with the one behind it.
func (r *reader) next(ctx context.Context, from uint64) batch {
	if r.ahead == nil || r.from != from {
		r.close()
		r.begin(ctx, from)
	}
	got := <-r.ahead
	r.cancel()
	r.ahead = nil
	if n := len(got.ms); got.err == nil && got.left > 0 && n > 0 {
		r.begin(ctx, number(got.ms[n-1], hdrSequence)+1)
	}
	return got
}

func (r *reader) begin(ctx context.Context, from uint64) {
	ctx, cancel := context.WithCancel(ctx)
	ahead := make(chan batch, 1)
	r.ahead, r.from, r.cancel = ahead, from, cancel
	go func() { // next or close waits for it
		var got batch
		got.ms, got.left, got.err = r.bus.batch(ctx, r.stream, r.filter, from)
		ahead <- got
	}()
}

// close waits for what is being read.
func (r *reader) close() {
	if r.ahead != nil {
		r.cancel()
		<-r.ahead
		r.ahead = nil
	}
}

// errBehind reports a replica that has not got a message yet.
var errBehind = errors.New("replica is behind")

// behind is errBehind when the leader has the message.
func (b *Bus) behind(ctx context.Context, stream string, seq uint64) error {
	switch _, err := b.get(ctx, stream, map[string]any{"seq": seq}); {
	case errors.Is(err, errNotStored):
		return nil
	case err != nil:
		return err
	}
	return errBehind
}

// batch asks for the next messages from a sequence on, and how many are left after
// them. What came before an error is returned with it.
func (b *Bus) batch(ctx context.Context, stream, filter string, from uint64) (ms []*nats.Msg, left uint64, err error) {
	actx, cancel := b.ctl.bound(ctx, 2*attemptTimeout)
	defer cancel()
	inbox := b.ctl.nc.NewInbox()
	got := make(chan *nats.Msg, scanBatch+8) // the library writes; never full: a batch and its end
	s, err := b.ctl.nc.ChanSubscribe(inbox, got)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = s.Unsubscribe() }()
	body, err := json.Marshal(map[string]any{"seq": from, "next_by_subj": filter, "batch": scanBatch, "max_bytes": scanBytes})
	if err != nil {
		return nil, 0, err
	}
	if err := b.ctl.nc.PublishRequest("$JS.API.DIRECT.GET."+stream, inbox, body); err != nil {
		return nil, 0, err
	}
	for {
		var m *nats.Msg
		select {
		case m = <-got:
		case <-actx.Done():
			return ms, 0, errors.Join(ctx.Err(), errCutOr(actx.Err()))
		}
		switch m.Header.Get(hdrStatus) {
		case "":
			m.Subject = m.Header.Get(hdrSubject)
			ms = append(ms, m)
		case statusEOB, statusNotFound:
			return ms, number(m, hdrPending), nil
		default:
			return ms, 0, fmt.Errorf("broker: %s %s", m.Header.Get(hdrStatus), m.Header.Get("Description"))
		}
	}
}

func errCutOr(err error) error {
	if errors.Is(err, context.Canceled) {
		return errCut
	}
	return err
}

func stamp(m *nats.Msg) time.Time {
	t, _ := time.Parse(time.RFC3339Nano, m.Header.Get(hdrTime)) // the broker's own format
	return t
}
