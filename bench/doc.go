// Command bench measures rookery beside the floor that the broker puts under it, in
// the same run and interleaved, so that a row is a ratio and not a machine.
//
//	bench ──► floor: the same publishes by hand ──┐
//	      └─► rookery: session, worker, client ───┴─► median, p99, ratio, target
//	            ▲
//	            └── a scripted endpoint, in a process of its own (this binary again)
//
//	go run ./bench                      # all rows, at most ten minutes on two cores
//	go run ./bench -rows call,turn      # some of them
//	go run ./bench -scale 0.1           # a smoke run
//	go run ./bench/compare OLD.json NEW.json
//
// # Invariants
//
//   - floor and rookery use the same broker, with the same settings, in turns
//   - a row without a result is an error, and the run says so at its end
//   - nothing listens beyond loopback, and every process ends with this one
package main
