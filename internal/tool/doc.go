// Package tool says what a tool is, runs one call of it, and holds the built-in
// tools: commands and files of a session's workspace.
//
//	protocol.Call ──► Registry.Execute: schema ► Tool.Run ► cap, notes ──► protocol.Result
//	                                               │  └─ printed bytes ──► emit (as printed)
//	                                               ▼
//	                           sandbox.Session: Start (commands), Do (Ops, on files)
//
// File tools are thin: their work is an Op on a sandbox.View, so that a confining
// backend runs it in the session's view, in a helper of its own.
//
// A command belongs to the session, not to its call: one that still runs when its
// call returns goes to the background, where other calls type to it and read it.
//
// # Invariants
//
//   - Execute always returns one Result with a text that is not empty, whatever the
//     tool does; the pieces given to emit are, joined, that text
//   - nothing of a tool runs with arguments that its schema refuses
//   - memory does not grow with what a command prints or with a file's size
//   - a command ends with its session; what it prints is read all the time
//   - file tools never leave the session's view and never wait on what is no
//     regular file
package tool
