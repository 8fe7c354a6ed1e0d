// Command compare joins two results of bench by the names of their rows and prints
// what changed:
//
//	go run ./bench/compare OLD.json NEW.json
//
// # Invariants
//
//   - a row that only one result has is named, not dropped
package main
