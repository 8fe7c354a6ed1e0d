package main

import (
	"io"

	"rookery/client"
	"rookery/protocol"
)

// What tests of this command need from inside.
var (
	Program     = program
	Visible     = visible
	VisibleLine = visibleLine
	Question    = question
	Verdict     = verdict
	ExitOf      = func(err error) int { return faultOf(err).exit() }
	NoPasswords = withoutPasswords
)

// MaxAsked is how much of a call an approver sees at once.
const MaxAsked = maxAsked

// Human returns what a person is shown: on stdout, and as notices.
func Human(out io.Writer, tell func(string, ...any), colour, users bool) func(client.Event) {
	return (&humanPrinter{out: out, tell: tell, colour: colour, asked: users}).show
}

// Event makes an event of a payload.
func Event(p protocol.Payload) client.Event { return client.Event{Message: protocol.New(p)} }
