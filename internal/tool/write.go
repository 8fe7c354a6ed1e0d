package tool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"rookery/internal/sandbox"
	"rookery/protocol"
)

func writeSpec() protocol.Tool {
	return spec(opWrite, "Write a whole file of the workspace, new or replaced; missing directories are made. To change a part of a file use edit_file.", `{
		"type": "object",
		"properties": {
			"path": {"type": "string", "minLength": 1, "description": "File, relative to the workspace or absolute in it"},
			"content": {"type": "string", "description": "All of the file's text"}
		},
		"required": ["path", "content"],
		"additionalProperties": false
	}`)
}

type writeArgs struct {
	Path    string `json:"path"`
	Content string `json:"content"`
}

func writeFile(_ context.Context, v *sandbox.View, a writeArgs, _ int) (string, error) {
	tree, rel, err := v.Find("", a.Path)
	if err != nil {
		return "", err
	}
	v.Write.Lock()
	defer v.Write.Unlock()
	made, err := replace(tree, rel, a.Path, []byte(a.Content))
	if err != nil {
		return "", err
	}
	verb := "replaced"
	if made {
		verb = "made"
	}
	return fmt.Sprintf("%s %s (%d bytes)", verb, a.Path, len(a.Content)), nil
}

// replace puts data in place of a file at once: a reader sees all of the old or
// all of the new. Mode and owner are kept, a symbolic link stays one. It tells
// whether the file is new.
func replace(t sandbox.Tree, rel, name string, data []byte) (made bool, err error) {
	rel, err = follow(t, rel, name)
	if err != nil {
		return false, err
	}
	old, err := t.Root.Lstat(rel)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		made = true
		if err := t.Root.MkdirAll(filepath.Dir(rel), 0o755); err != nil {
			return false, pathError(filepath.Dir(name), err)
		}
	case err != nil:
		return false, pathError(name, err)
	default:
		if err := regular(name, old); err != nil {
			return false, err
		}
	}
	tmp := filepath.Join(filepath.Dir(rel), ".rookery-"+protocol.Token(6))
	if err := writeTemp(t.Root, tmp, data, old); err != nil {
		_ = t.Root.Remove(tmp)
		return false, pathError(name, err)
	}
	if err := t.Root.Rename(tmp, rel); err != nil {
		_ = t.Root.Remove(tmp)
		return false, pathError(name, err)
	}
	return made, nil
}

func writeTemp(root *os.Root, tmp string, data []byte, old fs.FileInfo) error {
	mode := fs.FileMode(0o666) // the umask decides
	if old != nil {
		mode = 0o600
	}
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if old != nil && err == nil {
		if st, ok := old.Sys().(*syscall.Stat_t); ok {
			_ = f.Chown(int(st.Uid), int(st.Gid)) // only root may give files away
		}
		err = f.Chmod(old.Mode().Perm())
	}
	return errors.Join(err, f.Close())
}

// follow resolves the last component of rel where it is a symbolic link, so that
// the file it leads to is written. The tree's Root confines each step.
func follow(t sandbox.Tree, rel, name string) (string, error) {
	for range 16 {
		info, err := t.Root.Lstat(rel)
		if errors.Is(err, fs.ErrNotExist) {
			return rel, nil
		}
		if err != nil {
			return "", pathError(name, err)
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			return rel, nil
		}
		link, err := t.Root.Readlink(rel)
		if err != nil {
			return "", pathError(name, err)
		}
		if rel = filepath.Join(filepath.Dir(rel), link); filepath.IsAbs(link) || !filepath.IsLocal(rel) {
			return "", fmt.Errorf("%s leads outside the workspace (by a symbolic link)", name)
		}
	}
	return "", fmt.Errorf("%s is a loop of symbolic links", name)
}
