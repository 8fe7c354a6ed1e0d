package native

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// groupPlaces finds the directory of this process's group for each controller.
func groupPlaces(root string) (places map[string]string, v2 bool, err error) {
	mounts, err := os.ReadFile(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil {
		return nil, false, fmt.Errorf("look for control groups: %w", err)
	}
	self, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return nil, false, fmt.Errorf("look for control groups: %w", err)
	}
	places = map[string]string{}
	for line := range strings.Lines(string(mounts)) {
		front, back, ok := strings.Cut(line, " - ")
		f, b := strings.Fields(front), strings.Fields(back)
		if !ok || len(f) < 5 || len(b) < 3 {
			continue
		}
		switch b[0] {
		case "cgroup":
			for c := range strings.SplitSeq(b[2], ",") {
				if c == "cpu" || slices.Contains(needed(), c) {
					places[c] = place(root, f[3], f[4], pathOf(string(self), c))
				}
			}
		case "cgroup2":
			if base, ok := place2(root, f[3], f[4], pathOf(string(self), "")); ok {
				return map[string]string{"memory": base, "pids": base, "cpu": base}, true, nil
			}
		}
	}
	for _, c := range needed() {
		if places[c] == "" {
			return nil, false, fmt.Errorf("control groups: no usable controller %s", c)
		}
	}
	return places, false, nil
}

// pathOf is this process's group of a controller; without a name, of version 2.
func pathOf(self, controller string) string {
	for line := range strings.Lines(self) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && (f[1] == controller || controller != "" && slices.Contains(strings.Split(f[1], ","), controller)) {
			return f[2]
		}
	}
	return "/"
}

func place(root, mountRoot, mountPoint, group string) string {
	rel, err := filepath.Rel(mountRoot, group)
	if err != nil || !filepath.IsLocal(rel) {
		rel = "."
	}
	return filepath.Join(root, mountPoint, rel)
}

// place2 returns the group below which this process may make others: its own, if
// no process of somebody else is in it, or root's, for root.
func place2(root, mountRoot, mountPoint, group string) (string, bool) {
	own := place(root, mountRoot, mountPoint, group)
	candidates := []string{own}
	if os.Geteuid() == 0 {
		candidates = append(candidates, filepath.Join(root, mountPoint))
	}
	for _, dir := range candidates {
		has, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
		missing := slices.ContainsFunc(needed(), func(c string) bool { return !slices.Contains(strings.Fields(string(has)), c) })
		if missing || unix.Access(dir, unix.W_OK) != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, "cgroup.type")); err != nil || onlyUs(dir) {
			return dir, true // the root has no type, and may hold processes
		}
	}
	return "", false
}

func onlyUs(dir string) bool {
	procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return false
	}
	for p := range strings.FieldsSeq(string(procs)) {
		if p != strconv.Itoa(os.Getpid()) {
			return false
		}
	}
	return true
}
