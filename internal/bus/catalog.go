package bus

import "rookery/protocol"

// A Subject is one row of the contract with whoever speaks to the broker: the
// rest of it, with an example of each payload, is in subjects.md.
type Subject struct {
	// Name has the default prefix and its variable tokens in angle brackets.
	Name string
	// Kind is core, request, stream or key.
	Kind string
	// Stream holds it, or the bucket of a key.
	Stream string
	From   string
	To     string
	// Payload and Reply are zero values of the bodies' types; nil for none.
	// A []protocol.Message is newline separated.
	Payload, Reply any
	Order          string
	Delivery       string
	// Restart says what a restart of the broker does to it.
	Restart string
}

// What the rows repeat.
const (
	kindCore    = "core"
	kindRequest = "request"
	kindStream  = "stream"
	kindKey     = "key"

	anyOrchestrator = "any orchestrator (queue group orch)"

	atMostOnce  = "at most once"
	atLeastOnce = "at least once; repeating it is harmless"
	firstWins   = "stored once: the first writer wins"

	lostOnRestart = "lost while the broker is away"
	askAnew       = "the asker repeats it"
	kept          = "kept"
	noOrder       = "none"
	oneByOne      = "in the order they are asked"
)

// Catalog lists every subject.
func Catalog() []Subject {
	all := append(traceSubjects(), requestSubjects()...)
	all = append(all, callSubjects()...)
	return append(all, keySubjects()...)
}

func traceSubjects() []Subject {
	return []Subject{
		{
			Name: "rk.trace.<sid>.<ctx>", Kind: kindStream, Stream: streamTrace, From: "owner", To: "orchestrators; viewers by rk.out",
			Payload: []protocol.Message{}, Order: "total in a session", Delivery: "stored once: compare-and-append", Restart: kept,
		},
		{
			Name: "rk.trace.<sid>.<ctx>.x", Kind: kindStream, Stream: streamTrace, From: "owner", To: "orchestrators",
			Payload: []protocol.Message{}, Order: "total in a session", Delivery: "stored once: compare-and-append", Restart: kept,
		},
		{
			Name: "rk.trace.<sid>.own", Kind: kindStream, Stream: streamTrace, From: "new owner", To: "orchestrators; viewers by rk.out",
			Payload: protocol.Own{}, Order: "total in a session", Delivery: "stored once: compare-and-append", Restart: kept,
		},
		{
			Name: "rk.out.<sid>.m.<ctx>", Kind: kindCore, From: "broker, republished from TRACE", To: "viewers",
			Payload: []protocol.Message{}, Order: "as stored", Delivery: "at most once; a loss shows in Rk-Prev and is read from the history", Restart: lostOnRestart,
		},
		{
			Name: "rk.out.<sid>.m.own", Kind: kindCore, From: "broker, republished from TRACE", To: "viewers",
			Payload: protocol.Own{}, Order: "as stored", Delivery: "at most once; a loss shows in Rk-Prev and is read from the history", Restart: lostOnRestart,
		},
		{
			Name: "rk.out.<sid>.d", Kind: kindCore, From: "owner", To: "viewers",
			Payload: protocol.Live{}, Order: "as sent; against rk.out.<sid>.m by after", Delivery: atMostOnce, Restart: lostOnRestart,
		},
		{
			Name: "rk.usage.<sid>.<rid>", Kind: kindStream, Stream: streamUsage, From: "owner", To: "orchestrators",
			Payload: protocol.UsageRow{}, Order: noOrder, Delivery: firstWins, Restart: kept,
		},
	}
}

func requestSubjects() []Subject {
	type reply = protocol.Reply
	return []Subject{
		{
			Name: "rk.cmd.<sid>.<verb>", Kind: kindRequest, From: "client", To: "owner",
			Payload: protocol.Command{}, Reply: reply{}, Order: oneByOne, Delivery: "at least once; an id seen before gets its first answer", Restart: askAnew,
		},
		{
			Name: "rk.orch.open.<sid>.<verb>", Kind: kindRequest, From: "client, when rk.cmd has no responders or no answer", To: anyOrchestrator,
			Payload: protocol.Command{}, Reply: reply{}, Order: noOrder, Delivery: "at least once; an id seen before gets its first answer", Restart: askAnew,
		},
		{
			Name: "rk.orch.at.<oid>.<sid>.<verb>", Kind: kindRequest, From: "client that was told use; orchestrator that forwards", To: "that orchestrator",
			Payload: protocol.Command{}, Reply: reply{}, Order: oneByOne, Delivery: "at least once; an id seen before gets its first answer", Restart: askAnew,
		},
		{
			Name: "rk.orch.hist.<sid>", Kind: kindRequest, From: "viewer", To: anyOrchestrator,
			Payload: HistoryRequest{}, Reply: Page{}, Order: "a page is in stored order", Delivery: atLeastOnce, Restart: askAnew,
		},
		{
			Name: "rk.orch.ls", Kind: kindRequest, From: "client", To: anyOrchestrator,
			Payload: ListRequest{}, Reply: Listing[protocol.Entry]{}, Order: "by last change", Delivery: atLeastOnce, Restart: askAnew,
		},
		{
			Name: "rk.orch.usage", Kind: kindRequest, From: "client", To: anyOrchestrator,
			Payload: ListRequest{}, Reply: Listing[protocol.UsageRow]{}, Order: "as written", Delivery: atLeastOnce, Restart: askAnew,
		},
		{
			Name: "rk.orch.rm.<sid>", Kind: kindRequest, From: "client", To: anyOrchestrator,
			Reply: reply{}, Order: noOrder, Delivery: atLeastOnce, Restart: askAnew,
		},
		{
			Name: "rk.orch.import.<sid>", Kind: kindRequest, From: "client; the pieces after the first go to rk.orch.at.<oid>.<sid>.import", To: anyOrchestrator,
			Payload: Import{}, Reply: reply{}, Order: "by part", Delivery: "at least once; a part seen before is ignored", Restart: askAnew,
		},
		{
			Name: "rk.orch.register.<wid>", Kind: kindRequest, From: "worker", To: anyOrchestrator,
			Payload: protocol.WorkerInfo{}, Reply: reply{}, Order: noOrder, Delivery: atLeastOnce, Restart: askAnew,
		},
		{
			Name: "rk.orch.ping.<oid>", Kind: kindRequest, From: "orchestrator", To: "that orchestrator",
			Reply: Pong{}, Order: noOrder, Delivery: atLeastOnce, Restart: askAnew,
		},
	}
}

func callSubjects() []Subject {
	const news = "at most once; claim and result can be read again"
	return []Subject{
		{
			Name: "rk.call.w.<wid>.<sid>.<cid>", Kind: kindStream, Stream: streamCall, From: "owner", To: "that worker, by consumer w_<wid>",
			Payload: protocol.Call{}, Order: "as queued, but for redeliveries", Delivery: "at least once: the claim decides who runs it", Restart: kept,
		},
		{
			Name: "rk.call.p.<pool>.<sid>.<cid>", Kind: kindStream, Stream: streamCall, From: "owner", To: "a worker of the pool, by consumer p_<pool>",
			Payload: protocol.Call{}, Order: "as queued, but for redeliveries", Delivery: "at least once: the claim decides who runs it", Restart: kept,
		},
		{
			Name: "rk.res.w.<wid>.<sid>.<cid>.c", Kind: kindStream, Stream: streamRes, From: "worker, or owner to revoke", To: "owner",
			Payload: protocol.Claim{}, Order: noOrder, Delivery: firstWins, Restart: kept,
		},
		{
			Name: "rk.res.p.<pool>.<sid>.<cid>.c", Kind: kindStream, Stream: streamRes, From: "worker, or owner to revoke", To: "owner",
			Payload: protocol.Claim{}, Order: noOrder, Delivery: firstWins, Restart: kept,
		},
		{
			Name: "rk.res.w.<wid>.<sid>.<cid>.d", Kind: kindStream, Stream: streamRes, From: "the worker that holds the claim", To: "owner",
			Payload: protocol.Result{}, Order: "after its claim", Delivery: firstWins, Restart: kept,
		},
		{
			Name: "rk.done.w.<wid>.<sid>.<cid>.c", Kind: kindCore, From: "broker, republished from RES", To: "owner",
			Payload: protocol.Claim{}, Order: "as stored", Delivery: news, Restart: lostOnRestart,
		},
		{
			Name: "rk.done.p.<pool>.<sid>.<cid>.c", Kind: kindCore, From: "broker, republished from RES", To: "owner",
			Payload: protocol.Claim{}, Order: "as stored", Delivery: news, Restart: lostOnRestart,
		},
		{
			Name: "rk.done.w.<wid>.<sid>.<cid>.d", Kind: kindCore, From: "broker, republished from RES", To: "owner",
			Payload: protocol.Result{}, Order: "as stored", Delivery: news, Restart: lostOnRestart,
		},
		{
			Name: "rk.tool.<wid>.<sid>.<cid>", Kind: kindCore, From: "the worker that holds the claim", To: "owner",
			Payload: protocol.ToolDelta{}, Order: "as sent; by offset", Delivery: atMostOnce, Restart: lostOnRestart,
		},
		{
			Name: "rk.hb.<wid>", Kind: kindCore, From: "worker, every 2 s", To: "orchestrators",
			Payload: protocol.Heartbeat{}, Order: "as sent", Delivery: atMostOnce, Restart: lostOnRestart,
		},
		{
			Name: "rk.ctl.<wid>.<verb>", Kind: kindRequest, From: "orchestrator", To: "that worker",
			Payload: protocol.Control{}, Reply: protocol.ControlReply{}, Order: oneByOne, Delivery: atLeastOnce, Restart: askAnew,
		},
	}
}

func keySubjects() []Subject {
	return []Subject{
		{
			Name: "$KV.rk_nodes.o.<oid>", Kind: kindKey, Stream: "rk_nodes", From: "orchestrator, every 3 s", To: "orchestrators",
			Payload: Lease{}, Order: "last one counts", Delivery: "expires after 10 s", Restart: "bucket and leases are lost; made again by who holds a lease",
		},
		{
			Name: "$KV.rk_nodes.w.<wid>", Kind: kindKey, Stream: "rk_nodes", From: "worker, every 3 s", To: "orchestrators",
			Payload: Lease{}, Order: "last one counts", Delivery: "expires after 10 s", Restart: "bucket and leases are lost; made again by who holds a lease",
		},
		{
			Name: "$KV.rk_sessions.<sid>", Kind: kindKey, Stream: "rk_sessions", From: "owner", To: "orchestrators",
			Payload: protocol.Entry{}, Order: "last one counts", Delivery: atLeastOnce, Restart: kept,
		},
		{
			Name: "$KV.rk_ws.<sid>", Kind: kindKey, Stream: "rk_ws", From: "orchestrator", To: "orchestrators",
			Payload: protocol.WorkspaceRef{}, Order: "last one counts", Delivery: "compare-and-set", Restart: kept,
		},
		{
			Name: "$KV.rk_tools.<wid>", Kind: kindKey, Stream: "rk_tools", From: "orchestrator, for the worker that signed on", To: "orchestrators",
			Payload: protocol.WorkerInfo{}, Order: "last one counts", Delivery: "counts while the worker's lease lives", Restart: kept,
		},
	}
}
