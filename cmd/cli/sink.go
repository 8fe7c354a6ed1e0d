package main

import (
	"fmt"
	"io"
)

// A sink remembers the first failure of what is written to it, so that a command
// whose output was lost does not end as if it were there. Only one goroutine at a
// time may write.
type sink struct {
	w   io.Writer
	err error
}

func (s *sink) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	if err != nil && s.err == nil {
		s.err = err
	}
	return n, err
}

// say writes to a terminal, a sink or something on the way to one. A failure is
// told at the end of the command.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
