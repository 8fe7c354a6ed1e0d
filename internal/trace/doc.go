// Package trace knows what the recorded messages of a session mean: where each
// one belongs, what the model has seen, what is still owed, and whether a trace
// keeps the rules.
//
//	messages ──Placer──► context and privacy ──► records ──Fold──► State
//	                                                └────Verify──► faults
//
// It is pure: no files but the JSONL layout's readers and writers, no clock.
//
// # Invariants
//
//   - a fold of the records is all that a run needs to go on; live and resumed
//     input are equal to the byte (L157)
//   - folding has no side effects and can be repeated (L166)
//   - an uncommitted turn never enters the history (L155)
package trace
