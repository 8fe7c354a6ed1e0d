package session_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/internal/session"
	"rookery/protocol"
)

// join adds a worker that has signed on.
func (r *rig) join(t *testing.T, id protocol.ID, change ...func(*protocol.WorkerInfo)) *worker {
	t.Helper()
	b := r.server.Bus(t)
	w := newWorker(t, b, id, change...)
	w.register(t)
	require.Eventually(t, func() bool { return r.leased(t, id) }, wait, tick)
	return w
}

func (r *rig) leased(t *testing.T, id protocol.ID) bool {
	t.Helper()
	leases, err := r.client.Leases(context.Background())
	require.NoError(t, err)
	for _, l := range leases {
		if l.Kind == bus.LeaseWorker && l.ID == id {
			return true
		}
	}
	return false
}

// depart ends a worker as a machine that goes down in order.
func (r *rig) depart(t *testing.T, w *worker) {
	t.Helper()
	w.leave()
	require.Eventually(t, func() bool { return !r.leased(t, w.info.Worker) }, wait, tick)
}

func (r *rig) status(t *testing.T, sid protocol.ID) protocol.Status {
	t.Helper()
	reply := r.command(t, sid, protocol.VerbStatus, protocol.Command{ID: "q"})
	require.NotNil(t, reply.Status)
	return *reply.Status
}

// code is what of a reply does not depend on the trace.
func code(r protocol.Reply) protocol.Reply { return protocol.Reply{Code: r.Code, Reason: r.Reason} }

// task runs one task of a session to its end.
func (r *rig) task(t *testing.T, sid protocol.ID, cmd protocol.Command) protocol.Reply {
	t.Helper()
	reply := r.command(t, sid, protocol.VerbRun, cmd)
	if reply.Code.Accepted() {
		require.Eventually(t, func() bool { return r.status(t, sid).State == protocol.StateIdle }, wait, tick)
	}
	return reply
}

func many(n int) []step {
	var steps []step
	for range n {
		steps = append(steps, says("ok"))
	}
	return steps
}

func soon(c *session.Config) { c.ReplaceAfter = time.Millisecond }

func TestFleet_LabelsChooseTheWorker(t *testing.T) {
	r := newRig(t, &script{steps: many(9)})
	r.host(t, "o1")
	r.join(t, "w2", func(w *protocol.WorkerInfo) { w.Labels = map[string]string{"gpu": "1", "zone": "a"} })
	r.join(t, "w3", func(w *protocol.WorkerInfo) {
		w.Labels, w.Pools = map[string]string{"gpu": "1"}, []protocol.ID{"other"}
	})
	for _, sid := range []protocol.ID{"a", "b", "c"} {
		cmd := prompt("t1", "go", allow)
		cmd.Session.Labels = map[string]string{"gpu": "1"}
		require.Equal(t, protocol.ReplyAccepted, r.task(t, sid, cmd).Code)
		require.Equal(t, protocol.ID("w2"), r.status(t, sid).Worker)
	}
	cmd := prompt("t1", "go", allow)
	cmd.Session.Labels = map[string]string{"gpu": "2", "zone": "a"}
	reply := r.task(t, "d", cmd)
	require.Equal(t, protocol.ReplyWorkspace, reply.Code)
	require.Equal(t, "no worker of pool default with gpu=2, zone=a is there (others: w1, w2, w3)", reply.Reason)
}

// A new session goes to the worker with most free slots; between equal ones, to the
// one with fewer sessions.
func TestFleet_PlacesWhereThereIsRoom(t *testing.T) {
	r := newRig(t, &script{steps: many(9)})
	r.host(t, "o1")
	w2 := r.join(t, "w2")
	beat := func(one, two protocol.Heartbeat) {
		one.Worker, one.Boot = "w1", r.worker.info.Boot
		two.Worker, two.Boot = "w2", w2.info.Boot
		mark := protocol.Background{Session: "mark", ID: protocol.Token(4)}
		two.Background = []protocol.Background{mark}
		require.NoError(t, r.worker.bus.Heartbeat(one))
		require.NoError(t, r.worker.bus.Heartbeat(two))
		if r.status(t, "mark").Worker == "w2" { // else it is not on w2, whose heartbeat is then not shown
			require.Eventually(t, func() bool {
				return len(r.status(t, "mark").Background) == 1 && r.status(t, "mark").Background[0].ID == mark.ID
			}, wait, tick)
		}
	}
	pinned := prompt("t1", "go", allow)
	pinned.Session.Worker = "w2"
	require.Equal(t, protocol.ReplyAccepted, r.task(t, "mark", pinned).Code)
	for sid, c := range map[protocol.ID]struct {
		one, two protocol.Heartbeat
		want     protocol.ID
	}{
		"free1": {protocol.Heartbeat{Free: 4, Sessions: 9}, protocol.Heartbeat{Free: 1}, "w1"},
		"free2": {protocol.Heartbeat{Free: 1}, protocol.Heartbeat{Free: 4, Sessions: 9}, "w2"},
		"few1":  {protocol.Heartbeat{Free: 4, Sessions: 1}, protocol.Heartbeat{Free: 4, Sessions: 2}, "w1"},
		"few2":  {protocol.Heartbeat{Free: 4, Sessions: 2}, protocol.Heartbeat{Free: 4, Sessions: 1}, "w2"},
		"drain": {protocol.Heartbeat{Free: 4, Draining: true}, protocol.Heartbeat{Free: 0}, "w2"},
	} {
		beat(c.one, c.two)
		require.Equal(t, protocol.ReplyAccepted, r.task(t, sid, prompt("t1", "go", allow)).Code)
		require.Equal(t, c.want, r.status(t, sid).Worker, sid)
	}
}

// Sessions that come at once, before any heartbeat, are spread.
func TestFleet_CountsWhatItHasJustPlaced(t *testing.T) {
	r := newRig(t, &script{steps: many(8)})
	r.host(t, "o1")
	r.join(t, "w2")
	got := map[protocol.ID]int{}
	for _, sid := range []protocol.ID{"a", "b", "c", "d"} {
		require.Equal(t, protocol.ReplyAccepted, r.task(t, sid, prompt("t1", "go", allow)).Code)
		got[r.status(t, sid).Worker]++
	}
	require.Equal(t, map[protocol.ID]int{"w1": 2, "w2": 2}, got)
}

func TestFleet_MadeWorkspaceIsReplacedAndTheModelToldSo(t *testing.T) {
	m := &script{steps: many(3)}
	r := newRig(t, m)
	r.host(t, "o1", soon)
	require.Equal(t, protocol.ReplyAccepted, r.task(t, "s1", prompt("t1", "go", allow)).Code)
	require.Equal(t, protocol.ID("w1"), r.status(t, "s1").Worker)
	r.depart(t, r.worker)
	require.Contains(t, r.task(t, "s1", prompt("t2", "on", allow)).Reason, "no worker of pool default is there")

	r.join(t, "w2")
	require.Equal(t, protocol.ReplyAccepted, r.task(t, "s1", prompt("t3", "on", allow)).Code)
	require.Equal(t, protocol.ID("w2"), r.status(t, "s1").Worker)
	in := m.request(1).Input
	require.Equal(t, `text[user]"on"`, in[0].String())
	require.Equal(t, protocol.UserText("[workspace replaced: worker w1 is gone, and the files with it; the workspace is new and empty]"), in[1].Payload)
	require.Equal(t, protocol.ReplyAccepted, r.task(t, "s1", prompt("t4", "and on", allow)).Code)
	require.Len(t, m.request(2).Input, 1, "it is told once")
	r.verify(t)
}

func TestFleet_WorkspaceThatWasRemovedIsReplaced(t *testing.T) {
	m := &script{steps: many(2)}
	r := newRig(t, m)
	r.host(t, "o1")
	require.Equal(t, protocol.ReplyAccepted, r.task(t, "s1", prompt("t1", "go", allow)).Code)
	r.worker.mu.Lock()
	r.worker.gone = true
	r.worker.mu.Unlock()
	require.Equal(t, protocol.ReplyAccepted, r.task(t, "s1", prompt("t2", "on", allow)).Code)
	require.Len(t, m.request(1).Input, 2)
	r.verify(t)
}

// A worker that restarts has its workspaces still: it is waited for.
func TestFleet_RestartOfAWorkerIsWaitedFor(t *testing.T) {
	m := &script{steps: many(2)}
	r := newRig(t, m)
	r.host(t, "o1", func(c *session.Config) { c.ReplaceAfter = time.Hour })
	require.Equal(t, protocol.ReplyAccepted, r.task(t, "s1", prompt("t1", "go", allow)).Code)
	r.depart(t, r.worker)
	r.join(t, "w2")
	replies := make(chan protocol.Reply, 1)
	go func() {
		reply, err := r.client.Command(context.Background(), "s1", protocol.VerbRun, prompt("t2", "on", allow))
		if err == nil {
			replies <- reply
		}
		close(replies)
	}()
	r.join(t, "w1")
	require.Equal(t, protocol.ReplyAccepted, (<-replies).Code)
	require.Equal(t, protocol.ID("w1"), r.status(t, "s1").Worker)
	r.untilIdle(t, "s1")
	require.Len(t, m.request(1).Input, 1)
}

func TestFleet_NamedWorkspaceStaysOnItsHost(t *testing.T) {
	r := newRig(t, &script{steps: many(2)})
	r.host(t, "o1", soon)
	cmd := prompt("t1", "go", allow)
	cmd.Session.Workspace = "/ws/s1"
	require.Equal(t, protocol.ReplyAccepted, r.task(t, "s1", cmd).Code)
	r.depart(t, r.worker)
	r.join(t, "w2", func(w *protocol.WorkerInfo) { w.Host = "elsewhere" })
	reply := r.task(t, "s1", prompt("t2", "on", allow))
	require.Equal(t, protocol.ReplyWorkspace, reply.Code)
	require.Equal(t, "no living worker on host h can hold /ws/s1 (it was with w1): start one there that allows it", reply.Reason)
	r.join(t, "w3")
	require.Equal(t, protocol.Reply{Code: protocol.ReplyAccepted}, code(r.task(t, "s1", prompt("t3", "on", allow))))
	require.Equal(t, protocol.ID("w3"), r.status(t, "s1").Worker)
}

func TestFleet_ToolsOfThePoolJoin(t *testing.T) {
	m := &script{steps: []step{callsOf("count", "A"), says("done")}}
	r := newRig(t, m)
	r.worker.info.Pools = []protocol.ID{"p"}
	r.host(t, "o1")
	count := protocol.Tool{ToolSpec: protocol.ToolSpec{Name: "count", Description: "counts"}}
	bound := protocol.Tool{ToolSpec: protocol.ToolSpec{Name: "bound", Description: "works on files"}, Workspace: true}
	w2 := r.join(t, "w2", func(w *protocol.WorkerInfo) { w.Pools, w.Tools = []protocol.ID{"p"}, []protocol.Tool{count, bound} })
	r.join(t, "w3", func(w *protocol.WorkerInfo) {
		w.Private, w.Tools = true, []protocol.Tool{{ToolSpec: protocol.ToolSpec{Name: "mine", Description: "of one run"}}}
	})
	cmd := prompt("t1", "go", allow)
	cmd.Session.Pool, cmd.Session.Worker = "p", "w1"
	require.Equal(t, protocol.ReplyAccepted, r.task(t, "s1", cmd).Code)
	var names []string
	for _, tool := range m.request(0).Tools {
		names = append(names, tool.Name)
	}
	require.Equal(t, []string{"t", "look", "count"}, names)
	require.Equal(t, 1, w2.ran("A"))
	require.Equal(t, "done A", m.request(1).Input[0].Payload.(protocol.ToolCallOutput).Output)
	r.verify(t)
}

func TestFleet_RefusesWhatAModelCouldNotTellApart(t *testing.T) {
	r := newRig(t, &script{})
	read := protocol.Tool{ToolSpec: protocol.ToolSpec{Name: "read_file", Parameters: json.RawMessage(`{"required":["path"]}`)}, Workspace: true}
	r.host(t, "o1", func(c *session.Config) { c.Builtin = []protocol.Tool{read} })
	sign := func(id protocol.ID, tools ...protocol.Tool) string {
		info := protocol.WorkerInfo{Worker: id, Boot: "b", Host: "h", Pools: []protocol.ID{"default"}, Tools: tools}
		reply, err := r.client.Register(t.Context(), info, "")
		require.NoError(t, err)
		kept, err := r.client.Worker(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, reply.Reason, kept.Refused)
		return reply.Reason
	}
	other := read
	other.Parameters = json.RawMessage(`{"required":["file"]}`)
	require.Equal(t, "tool read_file has the name of a built-in one, which requires [path] in a workspace: give it another name", sign("w5", other))
	other = read
	other.Parameters = json.RawMessage(`{"required":["path"],"properties":{"more":{}}}`)
	require.Empty(t, sign("w5", other))

	r.join(t, "w2", func(w *protocol.WorkerInfo) {
		w.Tools = []protocol.Tool{{ToolSpec: protocol.ToolSpec{Name: "x", Parameters: json.RawMessage(`{"a":1}`)}}}
	})
	require.Contains(t, sign("w6", protocol.Tool{ToolSpec: protocol.ToolSpec{Name: "x", Parameters: json.RawMessage(`{"a":2}`)}}), "another schema on worker w2")
	require.Empty(t, sign("w6", protocol.Tool{ToolSpec: protocol.ToolSpec{Name: "x", Parameters: json.RawMessage(`{"a":1}`)}}))
}
