package native

import (
	"errors"

	"golang.org/x/sys/unix"
)

// try runs steps in order and tells which one failed.
func try(steps ...step) *stageError {
	for _, s := range steps {
		if err := s.do(); err != nil {
			return failed(s.name, err)
		}
	}
	return nil
}

type step struct {
	name string
	do   func() error
}

func failed(stage string, err error) *stageError {
	if inner, ok := errors.AsType[*stageError](err); ok {
		return inner
	}
	e := &stageError{Stage: stage, Text: err.Error()}
	if no, ok := errors.AsType[unix.Errno](err); ok {
		e.Errno = int(no)
	}
	return e
}
