// Package host puts the roles of rookery together in one process: it finds or
// starts the broker of this user, and runs an orchestrator and a worker on it.
//
//	run, attach, ls ──Join──► runtime file ──► broker process (detached, one a store)
//	                   │                           ▲
//	                   └── none there: start it ───┘  flock on the store: exactly one
//	run, serve ──Start──► Stack: orchestrator + worker on that bus
//
// The runtime file of a store tells address and credentials. Who has the store's
// lock writes it, by rename, once it listens, and removes it at its end; a broker
// that was killed leaves it behind, and then whoever needs the broker starts it.
//
// Goroutines: a Stack's orchestrator and worker, which Stop and Wait wait for;
// everything else runs in its caller.
//
// # Invariants
//
//   - one process uses a store: it holds the lock from before the broker starts
//     until after the store is closed
//   - a broker that ends for being idle leaves no client behind: one that connects
//     in that moment keeps it, or finds that it is gone and starts another
//   - a detached broker holds no descriptor of who started it but /dev/null, its log
//     and, until it is ready, the pipe on which it says so
//   - credentials are in a file of mode 0600 in a directory of mode 0700 of ours;
//     any other one is refused
package host
