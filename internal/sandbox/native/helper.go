package native

import (
	"os"

	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"

	"rookery/internal/sandbox"
	"rookery/internal/sandbox/confine"
	"rookery/internal/sandbox/fileop"
)

// runHelper serves the file operations of a session, in its view and with its
// rights, until the worker or the holder ends.
func runHelper(ops sandbox.Ops) {
	view, failure := confineHelper()
	if failure != nil {
		fileop.Serve(fdSocket, nil, nil, failure)
		return
	}
	fileop.Serve(fdSocket, ops, view, nil)
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
