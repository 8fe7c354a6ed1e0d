// Package sandbox is the port through which tools run commands and touch files,
// and holds its simplest backend, none.
//
//	worker ──Open──► Session ──Start──► Call: one process tree, stdin, output, Wait
//	                    │
//	                    └──Do──► Op: a named file operation on the session's View
//
// A session is the unit of confinement, a call the unit of killing. A file
// operation is plain Go code on a View; a backend runs it where the session's
// files are seen as its commands see them: none in this process, a confining
// backend in a helper of the session, which it starts with the same Ops.
//
// # Invariants
//
//   - when a call's main process has ended, its whole tree is killed, and its
//     output ends within Drain even if somebody still holds the pipe
//   - a call's environment is built from a fixed list, never from this process's
//   - no operation of a View leaves its trees
//   - after Close of a session none of its calls runs
package sandbox
