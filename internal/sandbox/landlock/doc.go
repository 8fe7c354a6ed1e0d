// Package landlock is the sandbox backend for places without namespaces, such as a
// container with a default profile: Landlock, seccomp and resource limits, chosen
// explicitly. It confines less than native and says so.
//
//	worker ──► keeper: adopts and kills what a command leaves behind
//	              └──► the command: files of workspace and scratch, the system read only; no sockets
//	       ──► file helper: the session's operations, with the same rights
//
// Process ids and the existence of files stay visible; there are no limits on
// memory and the number of processes, no sockets, and no looking into /proc.
//
// # Invariants
//
//   - a command cannot signal its keeper, which is outside its Landlock domain
//   - nothing a command started, and did not take away from it by the kernel's own
//     means, outlives it
//   - where the kernel's Landlock is too old to confine sockets and signals, or this
//     process is root, there is no session
package landlock
