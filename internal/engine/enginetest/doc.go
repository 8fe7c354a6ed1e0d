// Package enginetest runs scenario files against an engine and holds the parts
// that other runners of the same files need.
//
//	file ──Parse──► Scenario ──► script ──► actions on the session under test
//	                   │           └──────► scripted Model, Tools, Approver
//	                   └── sections ◄──Check── Result (output, traces, inputs, runs)
//
// A scenario is one txtar file: a title, `covers:` and `level:` lines, a script and
// the sections of what must come out, each line in the notation of
// protocol.Message. Parse is strict and knows nothing of a runner; Run is the
// runner for the pure engine, in fake time.
//
// Beside the statements of the format a reply's `end` takes `retry_after=D` and
// `code=CODE`, and lines that begin with # are comments.
//
// # Invariants
//
//   - whatever does not parse is an error that names file and line
//   - a scripted reply closes every segment it started, with the outcome's status
//   - a reply notices an abort only where it pauses; its clock runs on while emit blocks
//   - a section that is absent is not checked; one that is present is compared whole
package enginetest
