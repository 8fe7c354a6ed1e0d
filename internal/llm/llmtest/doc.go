// Package llmtest is an OpenAI-compatible endpoint that says what a test or a
// benchmark wants, over real HTTP.
//
//	s := llmtest.Start(t)
//	s.Reply(llmtest.Call("A", "read_file", `{"path":`, `"x"}`), llmtest.Usage(10, 5))
//	s.Reply(llmtest.Text("do", "ne"))
//	… run against s.URL …
//	s.Requests()
//
// Replies are taken in order; a function may choose them by the request, and a
// static server sends prepared bytes as fast as it can.
//
// # Invariants
//
//   - every request is recorded and checked as a strict provider would (see Check)
//   - a fault in a request, or a request that no reply is for, is told: it fails
//     the test of Start, and Faults has it for a server without a test
//   - Close returns only when every handler has
package llmtest
