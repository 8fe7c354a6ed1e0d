// Package native is the sandbox backend that confines with the kernel's own means:
// namespaces, mounts, seccomp, Landlock, control groups and resource limits.
//
//	worker ──► spawner: empty environment; one for a worker
//	              └──► holder: first process of a session's user, mount, network, pid, … namespaces
//	                     ├──► file helper: the session's operations, in its view, with no rights
//	                     └──► init: first process of a call's pid namespace, with its own mounts and /proc
//	                            └──► the command
//
// All of them are this program, run again; Main tells which one a process is. They
// talk over socket pairs. /tmp, the home directory, the loopback network and shared
// memory are the session's; processes are the call's. One init waits ahead in each
// session, because to begin takes a process longer than a call to start.
//
// # Invariants
//
//   - outside, no process of a session has user or group 0; inside, none that runs
//     the model's commands or operations has a capability, or can get one
//   - whoever ends, what is below ends: the kernel kills a pid namespace with its
//     first process, and each process ends with its parent and its socket
//   - a session's view is built from nothing: what is not put there is not there
//   - only stdin, stdout and stderr reach a command, and they are no files of the host
//   - no file system of the host is mounted or changed by it; control groups are
//     removed, at the latest by the next worker
package native
