package host

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"rookery/internal/worker"
)

// maxRoots bounds how many workers of one user share a machine.
const maxRoots = 256

// newWorker makes a worker on the first root below dir that no other process uses:
// 1, 2, …, so that the ids, journals and workspaces of earlier ones are found
// again.
func newWorker(dir string, c worker.Config) (*worker.Worker, error) {
	for n := 1; n <= maxRoots; n++ {
		c.Root = filepath.Join(dir, strconv.Itoa(n))
		w, err := worker.New(c)
		if !errors.Is(err, worker.ErrInUse) {
			return w, err
		}
	}
	return nil, fmt.Errorf("all %d worker roots in %s are in use", maxRoots, dir)
}
