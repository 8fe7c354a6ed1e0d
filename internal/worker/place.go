package worker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"rookery/protocol"
)

// errGone reports a workspace that was made and is not there any more.
var errGone = errors.New("workspace is gone")

// places decides which directories may be workspaces.
type places struct {
	host  string
	fresh string   // holds the workspaces that the worker makes
	allow []string // real paths
	deny  []string // directories that no workspace may hold or lie in
	home  string
}

func newPlaces(cfg Config, root string) (*places, error) {
	p := &places{host: cfg.Host, fresh: filepath.Join(root, "ws"), home: cfg.Home, deny: []string{root}}
	for _, d := range cfg.Deny {
		if d != "" {
			p.deny = append(p.deny, d)
		}
	}
	var errs []error
	for _, a := range cfg.Allow {
		found, err := realPath(a)
		if err != nil {
			errs = append(errs, fmt.Errorf("allowed directory: %w", err))
		}
		p.allow = append(p.allow, found)
	}
	return p, errors.Join(errs...)
}

// open opens a session's workspace; without a path it is one of the worker's own,
// made where it is missing. The returned directory and path name the same place.
func (p *places) open(sid protocol.ID, ref protocol.WorkspaceRef) (dir *os.File, path string, err error) {
	if ref.Host != "" && ref.Host != p.host {
		return nil, "", fmt.Errorf("the workspace is on host %s, this worker on %s", ref.Host, p.host)
	}
	if own := p.own(sid); ref.Path == "" || ref.Path == own {
		dir, err := p.openOwn(own, ref.Made)
		return dir, own, err
	}
	if ref.Made {
		return nil, "", fmt.Errorf("%w: %s was made by worker %s and is not here", errGone, ref.Path, ref.Worker)
	}
	if !filepath.IsAbs(ref.Path) {
		return nil, "", fmt.Errorf("workspace %s is not an absolute path", ref.Path)
	}
	found, err := filepath.EvalSymlinks(ref.Path)
	if err != nil {
		return nil, "", fmt.Errorf("workspace: %w", err)
	}
	dir, err = p.allowed(ref.Path, found)
	if err != nil {
		return nil, "", err
	}
	if err := p.check(dir, found); err != nil {
		_ = dir.Close()
		return nil, "", err
	}
	return dir, found, nil
}

// own is the workspace that the worker makes for a session.
func (p *places) own(sid protocol.ID) string { return filepath.Join(p.fresh, string(sid)) }

// openOwn makes a session's own workspace; one that was made before must be there.
func (p *places) openOwn(own string, made bool) (*os.File, error) {
	if _, err := os.Lstat(own); made && errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s, which this worker made, was removed", errGone, own)
	}
	if !made {
		if err := os.Mkdir(own, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("make the workspace: %w", err)
		}
	}
	return openDir(own)
}

// openDir opens a directory that is not a link.
func openDir(path string) (*os.File, error) {
	info, err := os.Lstat(path)
	if err == nil && !info.IsDir() {
		err = errors.New("not a directory")
	}
	if err != nil {
		return nil, fmt.Errorf("workspace %s: %w", path, err)
	}
	return os.Open(path)
}

// allowed opens found below the allowed directory that holds it: no link in between
// leads out of that, whatever changes meanwhile.
func (p *places) allowed(asked, found string) (*os.File, error) {
	for _, a := range p.allow {
		rel, err := filepath.Rel(a, found)
		if err != nil || !filepath.IsLocal(rel) {
			continue
		}
		root, err := os.OpenRoot(a)
		if err != nil {
			return nil, fmt.Errorf("allowed directory: %w", err)
		}
		defer func() { _ = root.Close() }()
		f, err := root.Open(rel)
		if err != nil {
			return nil, fmt.Errorf("workspace %s: %w", asked, err)
		}
		info, err := f.Stat()
		if err == nil && !info.IsDir() {
			err = errors.New("not a directory")
		}
		if err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("workspace %s: %w", asked, err)
		}
		return f, nil
	}
	if len(p.allow) == 0 {
		return nil, fmt.Errorf("workspace %s: this worker allows no named workspaces (--allow DIR)", asked)
	}
	return nil, fmt.Errorf("workspace %s is under none of this worker's allowed directories", asked)
}

// check looks at the opened directory itself, and compares directories, not names.
func (p *places) check(dir *os.File, found string) error {
	here, err := dir.Stat()
	if err != nil {
		return fmt.Errorf("look at the workspace: %w", err)
	}
	if now, err := os.Stat(found); err != nil || !os.SameFile(here, now) {
		return fmt.Errorf("workspace %s changed while it was opened", found)
	}
	if p.home != "" && inTree(here, p.home) {
		return fmt.Errorf("workspace %s is or holds the home directory %s: name a directory in it", found, p.home)
	}
	for _, d := range p.deny {
		if info, err := os.Stat(d); err == nil && inTree(info, found) {
			return fmt.Errorf("workspace %s lies in %s, which belongs to rookery", found, d)
		}
		if inTree(here, d) {
			return fmt.Errorf("workspace %s holds %s, which belongs to rookery", found, d)
		}
	}
	return nil
}

// inTree reports whether dir is path or one of its parents.
func inTree(dir os.FileInfo, path string) bool {
	if found, err := filepath.EvalSymlinks(path); err == nil {
		path = found
	}
	for ; ; path = filepath.Dir(path) {
		if info, err := os.Stat(path); err == nil && os.SameFile(info, dir) {
			return true
		}
		if path == filepath.Dir(path) {
			return false
		}
	}
}
