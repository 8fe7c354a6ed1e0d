package tool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/git-pkgs/gitignore"

	"rookery/internal/sandbox"
)

// Bounds of a walk.
const (
	maxVisited = 200_000 // entries looked at
	maxIgnore  = 256 << 10
)

// A walk visits a tree breadth first, in order of names, without what git
// ignores and without .git. Symbolic links are visited, not followed.
type walk struct {
	tree  sandbox.Tree
	start string // in the tree
	glob  string // of files; empty is all, ! in front negates
	kind  string // a second one that must match
	depth int    // 0 is any
	all   bool   // also what is ignored

	ignore  gitignore.Matcher
	visited int
	partial bool // more than maxVisited entries
}

// errEnough ends a walk early, from its visitor.
var errEnough = errors.New("enough")

func newWalk(v *sandbox.View, dir, glob string) (*walk, error) {
	if dir == "" {
		dir = "."
	}
	tree, rel, err := v.Find("", dir)
	if err != nil {
		return nil, err
	}
	if glob != "" && !doublestar.ValidatePattern(glob) {
		return nil, fmt.Errorf("glob %q is not valid", glob)
	}
	if _, err := tree.Root.Stat(rel); err != nil {
		return nil, pathError(dir, err)
	}
	return &walk{tree: tree, start: rel, glob: glob}, nil
}

// run calls visit for each entry, with its path in the tree.
func (w *walk) run(ctx context.Context, visit func(rel string, e fs.DirEntry) error) error {
	w.addIgnores(".")
	for i, part := range parents(w.start) {
		if i > 0 {
			w.addIgnores(part)
		}
	}
	level := []string{w.start}
	for depth := 1; len(level) > 0 && (w.depth == 0 || depth <= w.depth); depth++ {
		var next []string
		for _, dir := range level {
			dirs, err := w.dir(ctx, dir, visit)
			if errors.Is(err, errEnough) {
				return nil
			}
			if err != nil {
				return err
			}
			next = append(next, dirs...)
		}
		level = next
	}
	return nil
}

// dir visits one directory and returns those below it.
func (w *walk) dir(ctx context.Context, dir string, visit func(string, fs.DirEntry) error) ([]string, error) {
	entries, err := w.read(ctx, dir)
	if err != nil {
		return nil, err
	}
	if dir != w.start {
		w.addIgnores(dir)
	}
	var dirs []string
	for _, e := range entries {
		rel := path.Join(dir, e.Name())
		if !w.wanted(rel, e) {
			continue
		}
		if e.IsDir() {
			dirs = append(dirs, rel)
		}
		if w.glob+w.kind != "" && (e.IsDir() || !w.matches(w.glob, rel) || !w.matches(w.kind, rel)) {
			continue
		}
		if err := visit(rel, e); err != nil {
			return nil, err
		}
	}
	return dirs, nil
}

func (w *walk) wanted(rel string, e fs.DirEntry) bool {
	if e.IsDir() && e.Name() == ".git" {
		return false
	}
	return w.all || !w.ignore.MatchPath(rel, e.IsDir())
}

// matches compares as ripgrep does: a glob without a slash with the name, another
// with the path below the start.
func (w *walk) matches(glob, rel string) bool {
	if glob == "" {
		return true
	}
	if others, ok := strings.CutPrefix(glob, "!"); ok {
		return !w.matches(others, rel)
	}
	name := path.Base(rel)
	if strings.Contains(glob, "/") {
		name = strings.TrimPrefix(strings.TrimPrefix(rel, w.start), "/")
		if w.start == "." {
			name = rel
		}
	}
	return doublestar.MatchUnvalidated(strings.TrimPrefix(glob, "/"), name)
}

// read lists a directory in order of names. A directory that can't be read is
// passed over, except the first.
func (w *walk) read(ctx context.Context, dir string) ([]fs.DirEntry, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	f, err := w.tree.Root.OpenFile(dir, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if dir == w.start {
			return nil, pathError(dir, err)
		}
		return nil, nil
	}
	defer func() { _ = f.Close() }()
	var all []fs.DirEntry
	for {
		if w.visited >= maxVisited {
			w.partial = true
			break
		}
		some, err := f.ReadDir(min(1024, maxVisited-w.visited))
		all = append(all, some...)
		w.visited += len(some)
		if err != nil {
			break // io.EOF, or what could be read of it
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	slices.SortFunc(all, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return all, nil
}

// addIgnores reads a directory's .gitignore.
func (w *walk) addIgnores(dir string) {
	scope := dir
	names := []string{path.Join(dir, ".gitignore")}
	if dir == "." {
		scope, names = "", []string{".git/info/exclude", ".gitignore"}
	}
	for _, name := range names {
		f, _, err := openRegular(w.tree, name, name)
		if err != nil {
			continue // none, or none that counts
		}
		if b, err := io.ReadAll(io.LimitReader(f, maxIgnore)); err == nil {
			w.ignore.AddPatterns(b, scope)
		}
		_ = f.Close()
	}
}

// parents returns ".", a, a/b for a/b.
func parents(rel string) []string {
	list := []string{"."}
	if rel == "." {
		return list
	}
	for i, c := range rel {
		if c == '/' {
			list = append(list, rel[:i])
		}
	}
	return append(list, rel)
}
