// Package worker serves tool calls from the bus in sandboxed workspaces.
//
//	rk.call ──Fetch──► claim ──► ack ──► tool.Execute ──► journal ──► result
//	                                          └─ deltas, at most 30 a second
//
// Goroutines, all waited for by Run:
//
//   - slots: for each queue (the worker's own and each pool) Slots of them; each fetches
//     one call at a time and runs it to the stored result
//   - acks: takes claimed calls off the queues, some at once
//   - presence: signs on, again after every reconnect; holds the lease; heartbeats
//   - replay: sends what an earlier run left in the journal; brings to the disk what
//     waits for longer than a second
//   - sweep: closes sessions that nobody uses, removes scratch that nobody will
//   - one for each control request
//
// # Invariants
//
//   - a call runs only after its claim was won, and a dispatch runs at most once in a
//     process
//   - a result is in the journal before it is sent, and until it is stored
//   - two workers never share a root
//   - a named workspace lies under an allowed directory, and touches nothing of
//     rookery's own
//   - after Run has returned, nothing of it runs
package worker
