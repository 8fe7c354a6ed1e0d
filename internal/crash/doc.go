// Package crash lets a test end this process at a named place, as a power cut
// would: without a deferred function, a flushed buffer or a word to anybody.
//
//	ROOKERY_CRASH=after-claim    the first time that place is reached
//	ROOKERY_CRASH=after-claim:3  the third time
//
// Places of a worker, in the order of a call: before-claim, after-claim,
// before-ack, running (with the first output), after-effect, after-journal,
// after-result. Places of a session: before-append and after-append (a frame is
// stored, nobody was told); before-KIND and after-KIND for the kind of each record,
// such as after-task-begin; after-dispatch (the call is published). A frame is cut
// so that the record that is named is the first, or the last, of its own.
//
// # Invariants
//
//   - without the variable nothing here has an effect, and At costs an atomic load
//   - a process that reaches its place does nothing more: At does not return
package crash
