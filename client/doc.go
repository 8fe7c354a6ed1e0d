// Package client is the Go SDK of rookery: it starts tasks, acts on sessions and
// watches them.
//
//	Run, Steer, Abort, … ──► command ──► owner
//	                                       │ stores
//	Watch ◄── view ◄──┬── history (pages)  ▼
//	  complete        ├── records, republished by the broker
//	  messages and    ├── deltas, lossy
//	  fragments       └── snapshot of what is being streamed
//
// A Watch runs in the goroutine that ranges over it and starts none of its own. A
// view is its state: which record was applied last, which segments are open.
//
// # Invariants
//
//   - all viewers of a session end with the same complete messages, in the order of
//     the trace, whenever they joined and whatever of the live messages they lost
//   - a complete message that is streamed follows its fragments: start, delta*,
//     stop, with the deltas joined equal to it; what was lost is filled in
//   - a fragment whose segment never completed is closed by a stop before the
//     record that says so
//   - nothing of an owner that was replaced is shown after its successor
//   - a viewer's memory is bounded, and independent of the session's length
package client
