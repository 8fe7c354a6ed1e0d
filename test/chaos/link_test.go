package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"rookery/client"
	"rookery/internal/crash"
	"rookery/internal/llm/llmtest"
	"rookery/protocol"
)

// A wire is the link of one process to the broker, which a test can cut: both ends
// then see their connections closed.
type wire struct {
	to       string
	listener net.Listener
	pumps    sync.WaitGroup

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
}

func (r *rig) wire() *wire {
	r.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(r.t, err)
	w := &wire{to: r.host + ":4222", listener: l, conns: map[net.Conn]bool{}}
	w.pumps.Go(w.accept)
	r.t.Cleanup(func() {
		_ = l.Close()
		w.sever()
		w.pumps.Wait()
	})
	return w
}

func (w *wire) url() string { return "nats://" + w.listener.Addr().String() }

func (w *wire) accept() {
	for {
		near, err := w.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", w.to)
		if err != nil || !w.add(near, far) {
			_ = near.Close()
			if far != nil {
				_ = far.Close()
			}
			continue
		}
		for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
			w.pumps.Go(func() {
				_, _ = io.Copy(pair[0], pair[1])
				w.drop(near, far)
			})
		}
	}
}

// add keeps a pair of connections; false while the link is cut.
func (w *wire) add(cs ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range cs {
		w.conns[c] = true
	}
	return !w.cut
}

func (w *wire) drop(cs ...net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range cs {
		_ = c.Close()
		delete(w.conns, c)
	}
}

// sever cuts the link until mend.
func (w *wire) sever() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
	for c := range w.conns {
		_ = c.Close()
	}
	clear(w.conns)
}

func (w *wire) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = false
}

// awaiting is a task of one step that ends when the test lets it.
func awaiting(v view) []llmtest.Step {
	if _, told := v.Told[1]; !told {
		return step(1, "until [ -e let ]; do sleep 0.02; done;")
	}
	return answer(v.summary(1))
}

// let ends the step.
func (r *rig) let() {
	r.t.Helper()
	require.NoError(r.t, os.WriteFile(filepath.Join(r.workspace, "let"), nil, 0o600))
}

// A call ends while its worker can't reach the broker, for CHAOS_CUT seconds; it may
// be killed meanwhile, and comes back. The result arrives, once.
func TestLink_CutOverTheEndOfACall(t *testing.T) {
	for name, point := range map[string]string{"the worker lives": "", "the worker is killed": "after-journal"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			delete(r.env, "ROOKERY_TOOLS_UNREACHABLE_GRACE") // the default is for minutes
			w := r.wire()
			r.orchestrator("o1", "")
			worker := r.start("toolworker", r.with("NATS_URL", w.url(), crash.Variable, point), r.workerArgs("w1")...)
			worker.says("signed on")
			sid := r.run(r.request(r.brain.teach(awaiting)))
			r.began(1)
			w.sever()
			r.let()
			worker.says("call finished")
			if point != "" {
				worker.crashed()
			}
			<-time.After(time.Duration(number(t, "CHAOS_CUT", 0)) * time.Second)
			if point != "" {
				r.start("toolworker", r.with("NATS_URL", w.url()), r.workerArgs("w1")...)
			}
			w.mend()
			lines := r.verify(sid)
			require.Equal(t, `tool_call_output[step-1,completed]"did-1\n"`, outputOf(t, lines))
			require.Contains(t, lines, `text[assistant]"all 1 done"`)
			require.Equal(t, map[string]int{string(sid) + "/1-0 step-1": 1}, r.ledger())
		})
	}
}

// The only orchestrator is cut off while a call ends: it goes on where it was.
func TestLink_CutOfTheOnlyOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.wire()
	o := r.start("orchestrator", r.with("NATS_URL", w.url()), "--node", "o1")
	o.says("orchestrator serves")
	worker := r.worker("")
	sid := r.run(r.request(r.brain.teach(awaiting)))
	r.began(1)
	w.sever()
	r.let()
	worker.says("call finished")
	w.mend()
	lines := r.verify(sid)
	require.Equal(t, `tool_call_output[step-1,completed]"did-1\n"`, outputOf(t, lines))
	require.NotContains(t, lines, "+takeover")
	require.Equal(t, map[string]int{string(sid) + "/1-0 step-1": 1}, r.ledger())
}

// An owner that is cut off, or stopped, is deposed: at once when its connection is
// gone, else when its lease is. When it comes back it says nothing more: its records
// are refused, its fragments dropped by viewers.
func TestOwner_WakesUpDeposed(t *testing.T) {
	for name, c := range map[string]struct{ stop, cut bool }{
		"its connection is gone": {true, true}, "its lease is gone": {true, false}, "its link is cut": {false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			w := r.wire()
			owner := r.start("orchestrator", r.with("NATS_URL", w.url()), "--node", "victim")
			owner.says("orchestrator serves")
			r.worker("")
			r.orchestrator("survivor", "")
			req := r.request(r.brain.teach(func(v view) []llmtest.Step {
				if v.Asked == 0 {
					return []llmtest.Step{llmtest.Text("half "), llmtest.Hold("awake"), llmtest.Text("said by a ghost"), llmtest.Usage(10, 5)}
				}
				return []llmtest.Step{llmtest.Text("whole"), llmtest.Hold("seen"), llmtest.Usage(10, 5)}
			}))
			_, err := r.client.At("victim").Run(t.Context(), req)
			require.NoError(t, err)
			seen := r.watch(req.Session)
			seen.says("half ")

			if c.stop {
				owner.signal(syscall.SIGSTOP)
			}
			if c.cut {
				w.sever()
			}
			seen.says("whole") // the survivor's request runs
			w.mend()
			owner.signal(syscall.SIGCONT)
			r.endpoint.Release("awake")
			owner.says("session lost")
			r.endpoint.Release("seen")
			lines := r.verify(req.Session)
			require.Equal(t, 1, count(lines, "+takeover"))
			require.NotContains(t, fmt.Sprint(lines), "ghost")
			seen.ends()
			require.NotContains(t, seen.text(), "ghost")
			require.Equal(t, visible(r, req.Session), seen.complete())
		})
	}
}

// An owner that is merely slow is not deposed: who asks for it gets no answer, and that
// proves nothing while its lease lives.
func TestOwner_ThatIsSlowStaysTheOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	owner := r.orchestrator("victim", "")
	r.worker("")
	r.orchestrator("survivor", "")
	req := r.request(r.brain.teach(awaiting))
	_, err := r.client.At("victim").Run(t.Context(), req)
	require.NoError(t, err)
	r.began(1)
	pings := r.overhear("rk.orch.ping.victim")
	owner.signal(syscall.SIGSTOP)
	for len(pings) > 0 {
		<-pings
	}
	<-pings
	<-pings // the one before got no answer
	owner.signal(syscall.SIGCONT)
	r.let()
	lines := r.verify(req.Session)
	require.NotContains(t, lines, "+takeover")
	require.Contains(t, lines, `text[assistant]"all 1 done"`)
}

// overhear tells of each message on a subject.
func (r *rig) overhear(subject string) <-chan *nats.Msg {
	r.t.Helper()
	nc, err := nats.Connect(r.url())
	require.NoError(r.t, err)
	r.t.Cleanup(nc.Close)
	heard := make(chan *nats.Msg, 1024)
	_, err = nc.ChanSubscribe(subject, heard)
	require.NoError(r.t, err)
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	require.NoError(r.t, nc.FlushWithContext(ctx))
	return heard
}

// visible is what the trace shows to viewers.
func visible(r *rig, sid protocol.ID) []string {
	r.t.Helper()
	var out []string
	for e, err := range r.client.History(r.t.Context(), sid, protocol.Cursor{}) {
		require.NoError(r.t, err)
		if e.Kind == client.Message && e.Recorded {
			out = append(out, e.Message.String())
		}
	}
	return out
}

// A viewing is what a viewer has seen.
type viewing struct {
	r    *rig
	mu   sync.Mutex // the watch writes, the test reads
	all  []string
	full []string
	err  error
	done chan struct{}
}

// watch follows a session until its task ends.
func (r *rig) watch(sid protocol.ID) *viewing {
	r.t.Helper()
	v := &viewing{r: r, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	r.t.Cleanup(func() { cancel(); <-v.done })
	go func() {
		defer close(v.done)
		for e, err := range r.client.Watch(ctx, sid, nil) {
			if v.see(e, err) {
				return
			}
		}
	}()
	return v
}

// see takes one event, and reports the end.
func (v *viewing) see(e client.Event, err error) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		v.err = err
		return !errors.Is(err, context.Canceled)
	}
	if e.Kind != client.Message {
		return false
	}
	v.all = append(v.all, e.Message.String())
	if e.Recorded {
		v.full = append(v.full, e.Message.String())
	}
	_, over := e.Message.Payload.(protocol.TaskEnd)
	return over
}

func (v *viewing) text() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return fmt.Sprint(v.all)
}

func (v *viewing) complete() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.full
}

func (v *viewing) says(text string) {
	v.r.t.Helper()
	v.r.wait(func() bool { return strings.Contains(v.text(), text) }, func() string { return "the viewer did not see " + text + " in " + v.text() })
}

func (v *viewing) ends() {
	v.r.t.Helper()
	v.r.wait(func() bool {
		select {
		case <-v.done:
			return true
		default:
			return false
		}
	}, because("the viewer does not see the end"))
	require.NoError(v.r.t, v.err)
}
