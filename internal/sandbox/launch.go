package sandbox

import "os/exec"

// A Launch has another program confine and run a command of the backend None. It
// rewrites cmd, whose path, arguments and environment are the command's; directory,
// streams and process group stay. That program ends as the command does.
type Launch func(cmd *exec.Cmd) (Launched, error)

// Launched is what a Launch leaves to the call.
type Launched struct {
	// Started is called once, after the start or its failure.
	Started func()
	// End kills all that the program has started, and makes it end. It may be called
	// again, and after the end.
	End func()
}

// Launching makes the backend's commands start by l.
func (n *None) Launching(l Launch) *None {
	n.launch = l
	return n
}
