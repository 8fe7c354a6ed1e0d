// Package resume says what a fold of a trace means to the engine: where a run goes on.
//
//	records ──trace.Fold──► State ──Of──► engine.Resume ──► Engine.Run, Engine.Compact
//
// # Invariants
//
//   - a fold without a task gives a Resume without one: the next run begins a task
//   - what a fold knows of a running task, its turn and its calls, the engine gets
package resume
