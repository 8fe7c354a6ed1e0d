package fileop

import (
	"context"
	"encoding/json"
	"sync"
	"syscall"

	"rookery/internal/sandbox"
	"rookery/internal/sandbox/confine"
)

// A request is a file operation, or the end of interest in one.
type request struct {
	ID     uint64          `json:"id"`
	Op     string          `json:"op,omitempty"`
	Args   json.RawMessage `json:"args,omitempty"`
	Cancel bool            `json:"cancel,omitempty"`
}

// A reply answers one. The reply of ID 0 says that the helper is ready.
type reply struct {
	ID  uint64          `json:"id"`
	Out json.RawMessage `json:"out,omitempty"`
	Err string          `json:"err,omitempty"`
}

// Serve runs operations on the view for the client at the other end of the seqpacket
// socket fd, until that ends. failure, if not nil, is told instead: the helper could
// not be set up.
func Serve(fd int, ops sandbox.Ops, view *sandbox.View, failure error) {
	if failure != nil {
		_ = confine.Send(fd, reply{Err: failure.Error()})
		return
	}
	if confine.Send(fd, reply{}) != nil {
		return
	}
	h := &helper{fd: fd, ops: ops, view: view, cancels: map[uint64]context.CancelFunc{}}
	for {
		var r request
		if _, err := confine.Recv(fd, &r); err != nil {
			return
		}
		h.serve(r)
	}
}

// A helper runs each operation in a goroutine; they end with the process.
type helper struct {
	fd   int
	ops  sandbox.Ops
	view *sandbox.View

	mu      sync.Mutex
	cancels map[uint64]context.CancelFunc
}

func (h *helper) serve(r request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.Cancel {
		if cancel, ok := h.cancels[r.ID]; ok {
			cancel()
		}
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.cancels[r.ID] = cancel
	go func() {
		defer h.forget(r.ID)
		answer := reply{ID: r.ID}
		out, err := h.ops.Run(ctx, h.view, r.Op, r.Args)
		if err != nil {
			answer.Err = err.Error()
		} else {
			answer.Out = out
		}
		if confine.Send(h.fd, answer) != nil {
			syscall.Exit(0)
		}
	}()
}

func (h *helper) forget(id uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cancels[id]()
	delete(h.cancels, id)
}
