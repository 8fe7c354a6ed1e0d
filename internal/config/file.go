package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// maxFile bounds a configuration file, in bytes.
const maxFile = 256 << 10

type file struct {
	layer Layer
	path  string
	// must reports that a missing file is a fault.
	must bool
	// user is the file that a fault in a project file names.
	user string
}

// layers lists the files from the weakest to the strongest.
func layers(src Sources, env map[string]string) []file {
	user, must := src.File, true
	if user == "" {
		user = env["ROOKERY_CONFIG"]
	}
	if user == "" {
		user, must = FindPaths().User, false
	}
	fs := []file{
		{layer: LayerSystem, path: filepath.Join(filepath.Dir(user), "system_config.yaml")},
		{layer: LayerUser, path: user, must: must},
	}
	if src.Workspace != "" {
		project := filepath.Join(src.Workspace, ".rookery", "config.yaml")
		if !same(project, user) {
			fs = append(fs, file{layer: LayerProject, path: project, user: user})
		}
	}
	return fs
}

func same(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

func (c *Config) readFile(f file) error {
	text, err := readSmall(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !f.must:
		return nil
	case err != nil:
		return &SettingError{Place: f.path, Problem: err.Error()}
	}
	root, err := parse(text)
	if err != nil {
		return syntaxFault(f.path, err)
	}
	d := decoder{file: f, origins: c.origins, allowed: c.Tools.Enabled}
	if root != nil {
		d.config(root, c)
	}
	return errors.Join(d.faults...)
}

// readSmall reads a regular file of a sane size: a workspace may hold a pipe, a
// device or a huge file under any name.
func readSmall(path string) ([]byte, error) {
	info, err := os.Stat(path)
	var pathErr *fs.PathError
	switch {
	case errors.As(err, &pathErr):
		return nil, fmt.Errorf("can't be read: %w", pathErr.Err)
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a regular file")
	case info.Size() > maxFile:
		return nil, fmt.Errorf("has %d bytes; at most %d are read", info.Size(), maxFile)
	}
	b, err := os.ReadFile(path)
	if errors.As(err, &pathErr) {
		return nil, fmt.Errorf("can't be read: %w", pathErr.Err)
	}
	return b, err
}

// parse returns the one document's body, nil for an empty file. The parser is
// known to panic on some broken input; that is a syntax error like any other.
func parse(text []byte) (root ast.Node, err error) {
	defer func() {
		if p := recover(); p != nil {
			root, err = nil, errors.New("is not readable as YAML")
		}
	}()
	f, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, err
	}
	for _, doc := range f.Docs {
		switch {
		case doc.Body == nil:
		case root != nil:
			return nil, errors.New("holds more than one document; write one")
		default:
			root = doc.Body
		}
	}
	return root, nil
}

func syntaxFault(path string, err error) error {
	var at yaml.Error
	if errors.As(err, &at) && at.GetToken() != nil {
		pos := at.GetToken().Position
		return &SettingError{Place: fmt.Sprintf("%s:%d:%d", path, pos.Line, pos.Column), Problem: "is not YAML: " + at.GetMessage()}
	}
	return &SettingError{Place: path, Problem: err.Error()}
}
