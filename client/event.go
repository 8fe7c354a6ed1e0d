package client

import "rookery/protocol"

// A Kind says what an Event tells.
type Kind int

// The kinds of event.
const (
	// Message: Event.Message was said.
	Message Kind = iota
	// CaughtUp: everything that was stored when the watch began was shown.
	CaughtUp
	// Reconnecting: the connection broke. Nothing is shown until Reconnected.
	Reconnecting
	// Reconnected: it is back, and what was stored meanwhile was shown.
	Reconnected
	// Owned: the session has another owner, or an owner again; see Event.Own.
	Owned
)

// An Event is one thing that a watch shows.
type Event struct {
	Kind Kind
	// Message is a complete message, a fragment, or one that is not recorded.
	Message protocol.Message
	// Recorded reports a complete message that is stored.
	Recorded bool
	// Cursor is the last place in the trace that was shown: a watch from there
	// goes on after this event.
	Cursor protocol.Cursor
	// Own is the new owner, for Owned.
	Own *protocol.Own
}

// WatchOptions change what a watch shows. Nil is the zero value.
type WatchOptions struct {
	// From is the place behind which to begin; zero is the beginning.
	From protocol.Cursor
	// NoFollow ends the watch with what is stored now.
	NoFollow bool
	// NoPartials leaves all fragments out.
	NoPartials bool
}
