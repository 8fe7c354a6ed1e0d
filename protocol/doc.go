// Package protocol holds every value that crosses a process border in rookery:
// messages and their payloads, commands and replies, calls, claims and results,
// and the words the loop writes for the model (markers, notes).
//
//	engine ── Message ──► trace (one JSON object a line) ──► viewers
//	client ── Command ──► owner ── Reply ──► client
//	owner  ── Call ─────► worker ── Claim, ToolDelta, Result ──► owner
//
// It imports nothing else of rookery and holds no state.
//
// # Invariants
//
//   - decoding never panics; a value that can't be read is an error that says where
//   - encode∘decode is the identity, byte for byte, also for unknown payloads and fields
//   - fidelity is opaque: it is stored and sent back verbatim
package protocol
