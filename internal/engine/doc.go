// Package engine runs the turn loop of one agent session.
//
//	input ──► turn ──► Model ──► calls ──► Approver ──► Executor ─┐
//	           ▲                                                  │
//	           └──────────── outputs, in call order ◄─────────────┘
//
// It knows no NATS, HTTP or file; fake time works for all of it.
//
// # Invariants
//
//   - every committed call gets exactly one output, sent back in call order (L046)
//   - a message is yielded once, in the order the trace will hold it (L004)
//   - exactly one task_end for each task_begin, whatever happened (L012)
//   - a run returns only when its goroutines are gone, or abandoned by name (L081)
package engine
