package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
)

// A Package is a folder of Go files as the rules see it.
type Package struct {
	// Path is its folder in the tree, "." for the root.
	Path string
	// Name is the package's name; empty for a folder of tests only.
	Name string
	// Imports are those of the program's files, TestImports those of its tests;
	// each names the file, so that a fault can be found.
	Imports, TestImports map[string]string
	// Doc is the package comment.
	Doc string
}

// Load reads every package under root but the ones of other modules. Build
// constraints do not count: a rule holds on every system.
func Load(root string) ([]Package, error) {
	byPath := map[string]*Package{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skip(rel, d.Name())
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		dir := filepath.ToSlash(filepath.Dir(rel))
		if byPath[dir] == nil {
			byPath[dir] = &Package{Path: dir, Imports: map[string]string{}, TestImports: map[string]string{}}
		}
		return byPath[dir].add(path, rel)
	})
	if err != nil {
		return nil, fmt.Errorf("read the packages under %s: %w", root, err)
	}
	var out []Package
	for _, p := range byPath {
		out = append(out, *p)
	}
	return out, nil
}

// skip leaves out what holds none of our code.
func skip(rel, name string) error {
	switch {
	case rel == ".":
		return nil
	case strings.HasPrefix(name, "."), name == "testdata", rel == "tools", rel == "bin":
		return filepath.SkipDir
	}
	return nil
}

func (p *Package) add(path, rel string) error {
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly|parser.ParseComments)
	if err != nil {
		return err
	}
	into := p.Imports
	if strings.HasSuffix(rel, "_test.go") {
		into = p.TestImports
	} else {
		p.Name = f.Name.Name
		p.Doc += docOf(f)
	}
	for _, spec := range f.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return fmt.Errorf("%s: %w", rel, err)
		}
		into[name] = rel
	}
	return nil
}

func docOf(f *ast.File) string {
	if f.Doc == nil {
		return ""
	}
	return f.Doc.Text()
}
