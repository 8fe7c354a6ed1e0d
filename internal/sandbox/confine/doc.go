// Package confine holds what a process needs to give up its rights for good, and
// how the processes of a sandbox talk while they do.
//
//	worker ──Send: JSON, descriptors──► child of the sandbox ──► Drop, Filter ──► command
//
// # Invariants
//
//   - a filter refuses what it does not know, other architectures and, where the
//     kernel looks at 32 bits of an argument, whatever the other 32 say
//   - filters are compiled once and passed on as bytes
//   - a received descriptor has one owner: who received it
package confine
