// Package bustest gives tests a real broker of their own.
//
//	b := bustest.Start(t)            // one broker, one bus, set up
//
//	s := bustest.NewServer(t)        // one broker, several buses
//	one, two := s.Bus(t), s.Bus(t)
//	s.Cut()                          // their connections break
//	s.Restart(t)                     // the same store, another process
//
// All is in process and works inside a synctest bubble, where hours pass at once;
// but a connection must not break inside one, because the client library shares
// timers between bubbles when it reconnects. Use Cut and Restart outside. What
// streams in files hold does not age in a bubble as it should: the server compares
// with a clock of its own, outside. Message windows, ack waits, leases and idle
// queues do.
//
// # Invariants
//
//   - nothing is shared between tests
//   - a test ends with no goroutine of the broker or a bus left
package bustest
