// Package backend picks a sandbox by the name that an operator gives it.
//
// # Invariants
//
//   - a name means one backend, whatever works here: nothing falls back
package backend
