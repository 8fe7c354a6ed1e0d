package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// MaxOp bounds the arguments and the answer of a file operation, in bytes.
const MaxOp = 2 << 20

// ErrOutside reports a path that is in none of the view's trees.
var ErrOutside = errors.New("path is outside the workspace")

// An Op is a file operation. It works on the view alone, looks at ctx when it
// takes long, and bounds what it reads and answers.
type Op func(ctx context.Context, v *View, args json.RawMessage) (any, error)

// Ops are the operations a backend can be asked for, by name.
type Ops map[string]Op

// Run runs an operation with its arguments and encodes the answer. Backends call
// it, in process or in their helper. A panic of the operation is an error.
func (ops Ops) Run(ctx context.Context, v *View, name string, args json.RawMessage) (out json.RawMessage, err error) {
	op, ok := ops[name]
	if !ok {
		return nil, fmt.Errorf("%w %q", ErrNoOp, name)
	}
	defer func() {
		if p := recover(); p != nil {
			out, err = nil, fmt.Errorf("file operation %s broke: %v", name, p)
		}
	}()
	answer, err := op(ctx, v, args)
	if err != nil {
		return nil, err
	}
	out, err = json.Marshal(answer)
	if err != nil {
		return nil, fmt.Errorf("encode answer of %s: %w", name, err)
	}
	if len(out) > MaxOp {
		return nil, fmt.Errorf("answer of %s is too large: %d bytes", name, len(out))
	}
	return out, nil
}

// A Tree is a directory tree that file operations may touch.
type Tree struct {
	// Path is where the session's commands see it.
	Path string
	Root *os.Root
}

// A View is what file operations of a session see.
type View struct {
	Workspace, Scratch Tree
	// Write is held over a read-modify-write of a file.
	Write sync.Mutex
}

// Find returns the tree that holds path and the path in it. A relative path is
// taken from dir, which is itself relative to the workspace or absolute. Symbolic
// links are not looked at: the tree's Root confines them.
func (v *View) Find(dir, path string) (Tree, string, error) {
	if strings.ContainsRune(path, 0) || strings.ContainsRune(dir, 0) {
		return Tree{}, "", fmt.Errorf("path %q contains a NUL byte", path)
	}
	full := path
	if !filepath.IsAbs(full) {
		full = filepath.Join(dir, path)
	}
	if !filepath.IsAbs(full) {
		full = filepath.Join(v.Workspace.Path, full)
	}
	for _, t := range []Tree{v.Workspace, v.Scratch} {
		if t.Root == nil {
			continue
		}
		if rel, err := filepath.Rel(t.Path, full); err == nil && filepath.IsLocal(rel) {
			return t, rel, nil
		}
	}
	return Tree{}, "", fmt.Errorf("%w: %s is not in %s", ErrOutside, path, v.Workspace.Path)
}

// Dir returns where the session's commands see the directory dir, which must be in
// a tree; a relative one is in the workspace.
func (v *View) Dir(dir string) (string, error) {
	tree, rel, err := v.Find("", dir)
	if err != nil {
		return "", err
	}
	info, err := tree.Root.Stat(rel)
	if err != nil {
		return "", fmt.Errorf("working directory %s: %w", dir, err)
	}
	if !info.IsDir() {
		return "", fmt.Errorf("working directory %s is not a directory", dir)
	}
	return filepath.Join(tree.Path, rel), nil
}

// SameDir reports an error unless root is dir, opened earlier; nil is any.
func SameDir(root *os.Root, dir *os.File) error {
	if dir == nil {
		return nil
	}
	want, err := dir.Stat()
	if err != nil {
		return fmt.Errorf("look at the opened workspace: %w", err)
	}
	got, err := root.Stat(".")
	if err != nil {
		return fmt.Errorf("look at the workspace: %w", err)
	}
	if !os.SameFile(want, got) {
		return fmt.Errorf("workspace %s was replaced by another directory", root.Name())
	}
	return nil
}

// Close closes both trees.
func (v *View) Close() error {
	var errs []error
	for _, t := range []Tree{v.Workspace, v.Scratch} {
		if t.Root != nil {
			errs = append(errs, t.Root.Close())
		}
	}
	return errors.Join(errs...)
}
