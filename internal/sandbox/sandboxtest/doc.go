// Package sandboxtest holds the contract of sandbox.Backend as one suite of tests,
// run by every implementation, and a backend for tests without processes.
//
// # Invariants
//
//   - the suite looks at a session only through the port and through files of the
//     workspace, so that it holds for backends with namespaces, too
//   - no time decides a test: a process is gone when a lock that it held is free
package sandboxtest
