package native

import "rookery/internal/sandbox"

// Groups is a hierarchy of control groups, for tests on a made-up tree.
type Groups struct{ h *hierarchy }

func FindGroups(root, name string) (Groups, error) {
	h, err := findGroups(root, name)
	return Groups{h}, err
}

func GroupPlaces(root string) (map[string]string, bool, error) { return groupPlaces(root) }

// Call makes the groups of a session and a call, and returns the latter's
// directories by controller.
func (g Groups) Call(limits sandbox.Limits) (map[string]string, bool, error) {
	s, err := g.h.session("s", limits)
	if err != nil {
		return nil, false, err
	}
	c, err := s.call("1", limits)
	if err != nil {
		return nil, false, err
	}
	files, err := c.files()
	for _, f := range files {
		_ = f.Close()
	}
	return c.dirs, c.oom(), err
}

func ExplainGroups(err error) error { return explainGroups(err) }

// Explain explains a step that failed with an error of the system.
func Explain(stage string, err error) error { return explain(failed(stage, err)) }

func CountDisk(dirs ...string) (int64, bool) { return count(dirs...) }
