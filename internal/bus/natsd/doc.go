// Package natsd runs a broker inside a process.
//
// # Invariants
//
//   - what a publish was acknowledged survives the end of the process
//   - a slow reader never holds a writer up
//   - Start either serves or says what to do about it, and leaves nothing behind
package natsd
