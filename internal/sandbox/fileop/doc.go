// Package fileop runs a session's file operations in another process, a helper that
// a backend starts in the session's view and with its rights.
//
//	Session.Do ──► Client ──seqpacket──► Serve ──► sandbox.Ops on the View
//
// # Invariants
//
//   - an operation is answered once, or its caller is told why not
//   - a helper that has died is started again by the next operation
//   - a helper ends with its socket
package fileop
