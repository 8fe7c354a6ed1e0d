package native

import (
	"context"
	"encoding/json"
	"os"
	"sync"

	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"

	"rookery/internal/sandbox"
	"rookery/internal/sandbox/confine"
)

// A helperRequest is a file operation, or the end of interest in one.
type helperRequest struct {
	ID     uint64          `json:"id"`
	Op     string          `json:"op,omitempty"`
	Args   json.RawMessage `json:"args,omitempty"`
	Cancel bool            `json:"cancel,omitempty"`
}

// A helperReply answers one. The reply of ID 0 says that the helper is ready.
type helperReply struct {
	ID  uint64          `json:"id"`
	Out json.RawMessage `json:"out,omitempty"`
	Err string          `json:"err,omitempty"`
}

// runHelper serves the file operations of a session, in its view and with its
// rights, until the worker or the holder ends.
func runHelper(ops sandbox.Ops) {
	view, failure := confineHelper()
	if failure != nil {
		_ = confine.Send(fdSocket, helperReply{Err: failure.Error()})
		return
	}
	if confine.Send(fdSocket, helperReply{}) != nil {
		return
	}
	h := &helper{ops: ops, view: view, cancels: map[uint64]context.CancelFunc{}}
	for {
		var r helperRequest
		if _, err := confine.Recv(fdSocket, &r); err != nil {
			return
		}
		h.serve(r)
	}
}

func confineHelper() (view *sandbox.View, failure *stageError) {
	var filter []byte
	failure = try(
		step{"keep descriptors back", func() error { return confine.CloseFrom(fdSocket) }},
		step{"hide the helper", confine.Hide},
		step{"read the system call filter", func() (err error) {
			filter, err = confine.Read(os.NewFile(fdFilter, "filter"))
			return err
		}},
		step{"open the view", func() (err error) {
			view, err = openView()
			return err
		}},
		step{"set limits", func() error { return confine.Limit(fileLimits()) }},
		step{"set up landlock", func() error {
			// All threads: an operation runs on any.
			return landlock.V9.BestEffort().RestrictPaths(
				landlock.RODirs("/usr", "/proc/self").IgnoreIfMissing(), // time zones, its own threads
				landlock.RWDirs(workspaceDir, scratchDir).WithRefer(),
			)
		}},
		step{"install the system call filter", func() error { return confine.Install(filter) }},
	)
	return view, failure
}

// fileLimits bound what any process of a session may do with files. A core file of
// one byte, not of none: none would still start a handler on the host.
func fileLimits() map[int]uint64 {
	return map[int]uint64{
		unix.RLIMIT_CORE: 1, unix.RLIMIT_NOFILE: 4096, unix.RLIMIT_FSIZE: 1 << 30,
		unix.RLIMIT_MEMLOCK: 64 << 10, unix.RLIMIT_MSGQUEUE: 0,
	}
}

// A helper runs each operation in a goroutine; they end with the process.
type helper struct {
	ops  sandbox.Ops
	view *sandbox.View

	mu      sync.Mutex
	cancels map[uint64]context.CancelFunc
}

func (h *helper) serve(r helperRequest) {
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
		reply := helperReply{ID: r.ID}
		out, err := h.ops.Run(ctx, h.view, r.Op, r.Args)
		if err != nil {
			reply.Err = err.Error()
		} else {
			reply.Out = out
		}
		if confine.Send(fdSocket, reply) != nil {
			os.Exit(0)
		}
	}()
}

func (h *helper) forget(id uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cancels[id]()
	delete(h.cancels, id)
}
