// Package session hosts sessions: it runs the engine on them, records what it says,
// sends its calls to workers, and answers what people ask.
//
//	commands ──► owner goroutine ──► frames ──► trace ──(stored)──► viewers
//	                │      ▲
//	        engine goroutine: model, approver, executor (decorated here)
//	                              └──► call ──► worker ──► result
//
// Goroutines of a session, and what each one owns:
//
//   - owner (run): all state; it alone appends and answers
//   - appender (one publish at a time): the log while a publish is in flight
//   - engine (work): the loop over Engine.Run; it only sends to the owner
//   - the engine's own: model streams, approvals, executions; they send to the
//     owner and wait for what is stored
//   - clerk: directory entries and usage rows, in order, while there are any
//
// # Invariants
//
//   - a command is acknowledged after its record is stored, and not otherwise
//   - a call is published after its tool_call, approval_decision and
//     call_dispatched are stored
//   - the next request is sent after all outputs of the turn are stored
//   - a person is asked after the rest of the model's reply is stored
//   - private records are never sent to viewers
//   - a session that lost its trace to another owner says nothing more
package session
