// Package archtest holds the rules of the tree as tests: who may import whom, which
// modules are used where, what every package says of itself, and which words have
// no place in it.
//
//	cmd ─► host, client ─► session, worker ─► llm, bus, tool ─► engine, trace, sandbox ─► protocol
//
// # Invariants
//
//   - a package that the table does not have fails
//   - imports point downwards: an import that the table does not have fails
//   - a test may import any package but a command: it joins what it needs
package archtest
