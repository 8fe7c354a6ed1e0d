// Package bus owns every name on NATS: subjects, streams, buckets, consumers,
// and the protocols that make them safe to use.
//
//	owner  ── Log.Append ──► TRACE ──(server republishes)──► rk.out ──► Output.Next   viewers
//	client ── Command ─────► rk.cmd, else rk.orch.open ─────► ServeSession, ServeOrch  owner
//	owner  ── Dispatch ────► CALL ─► Fetch ─► Claim ─► RES ──(republished)──► WatchCalls
//
// Nothing of nats.go is visible outside; other packages speak in values of
// protocol and of this package.
//
// Three connections carry the traffic: control (requests, appends, claims),
// output (deltas, lossy) and subscriptions. None of them buffers while it is
// cut off: a publish then fails at once and is repeated by whoever must know its
// fate, so nothing stale is sent after a reconnect.
//
// Goroutines: the client library's, and for each subscription one that calls the
// handler; Close waits for all of them. Everything else runs in its caller.
//
// # Invariants
//
//   - a session's trace has one writer: an Append of a stale Log is refused
//   - an Append that returned nil is stored once, whatever the connection did meanwhile
//   - private records never reach rk.out
//   - of all who claim or revoke one dispatch exactly one wins
//   - the first result of a dispatch stays; repeating it is harmless
//   - an Output never loses a frame silently: a lost one is told as a gap
//   - requests are answered to inboxes only
package bus
