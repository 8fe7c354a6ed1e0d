// Package budget holds what rookery may cost at most, as tests that no busy machine
// makes fail: allocations, publishes of a turn, and what many sessions leave behind.
//
// # Invariants
//
//   - nothing here looks at a clock, but to give up
package budget
