// Package llm answers model requests over an OpenAI-compatible endpoint.
//
//	Request ──► body ──► POST ──► events ──► chunks ──► segments ──► emit
//	              ▲        │         │                     │
//	        kept prefix    └─ status ┴─ clocks, errors ────┴──► Outcome
//
// go-openai builds the URL and the authentication and sends; the body that goes
// out and everything that is read is ours, because providers differ in more ways
// than a strict reader survives. Demo is a model without an endpoint.
//
// # Invariants
//
//   - a reply is completed only after a finish reason, or [DONE] behind some answer
//   - a tool call is completed only then, so a failed attempt has no tool running
//   - every started segment gets its stop and its complete payload, whatever happened
//   - the deltas of a segment joined are its complete payload, byte for byte
//   - the encoding of a history does not depend on what follows it
//   - Stream starts no goroutine; the clocks are timers that it stops
package llm
