package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"rookery/internal/sandbox"
	"rookery/protocol"
)

// Names of the file operations.
const (
	opRead   = "read_file"
	opWrite  = "write_file"
	opEdit   = "edit_file"
	opList   = "list_files"
	opSearch = "search_files"
	opSpill  = "spill"
	opText   = "text"
)

// Builtin returns the built-in tools.
func Builtin() []Tool {
	return []Tool{
		execCommand{},
		inputCommand{},
		killCommand{},
		fileTool{readSpec()},
		fileTool{writeSpec()},
		fileTool{editSpec()},
		fileTool{listSpec()},
		fileTool{searchSpec()},
		imageTool{},
	}
}

// Ops returns the file operations behind the built-in tools, for the backend.
func Ops() sandbox.Ops {
	return sandbox.Ops{
		opRead: op(readFile), opWrite: op(writeFile), opEdit: op(editFile), opList: op(listFiles), opSearch: op(searchFiles),
		opSpill: spillOp, opText: op(readText), opImage: imageOp,
	}
}

// A fileTool is the operation of its name, run in the session's view.
type fileTool struct{ spec protocol.Tool }

// opArgs are a tool's arguments and how many characters of the answer are of use.
type opArgs struct {
	Args json.RawMessage `json:"args"`
	Max  int             `json:"max"`
}

// Spec implements Tool.
func (t fileTool) Spec() protocol.Tool { return t.spec }

// Run implements Tool.
func (t fileTool) Run(ctx context.Context, c *Call, w io.Writer) (Report, error) {
	raw, err := c.Session.Do(ctx, t.spec.Name, protocol.Encode(opArgs{c.Arguments, c.MaxOutput}))
	if err != nil {
		return Report{}, err
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return Report{}, fmt.Errorf("read the answer of %s: %w", t.spec.Name, err)
	}
	_, err = io.WriteString(w, text)
	return Report{}, err
}

// op makes an operation of a function over typed arguments; limit is how many
// characters of its answer are of use.
func op[A any](f func(ctx context.Context, v *sandbox.View, args A, limit int) (string, error)) sandbox.Op {
	return func(ctx context.Context, v *sandbox.View, raw json.RawMessage) (any, error) {
		var in opArgs
		if err := json.Unmarshal(raw, &in); err != nil {
			return nil, fmt.Errorf("read the request: %w", err)
		}
		var args A
		if err := json.Unmarshal(in.Args, &args); err != nil {
			return nil, fmt.Errorf("read the arguments: %w", err)
		}
		return f(ctx, v, args, in.Max)
	}
}

func spec(name, description, schema string) protocol.Tool {
	return protocol.Tool{
		ToolSpec:  protocol.ToolSpec{Name: name, Description: description, Parameters: compact(schema)},
		Workspace: true,
	}
}

func compact(schema string) json.RawMessage {
	lines := strings.Split(schema, "\n")
	for i, l := range lines {
		lines[i] = strings.TrimSpace(l)
	}
	return json.RawMessage(strings.Join(lines, ""))
}

// openRegular opens a file for reading and never waits: what is no regular file
// is refused, before and after it was opened.
func openRegular(t sandbox.Tree, rel, name string) (*os.File, fs.FileInfo, error) {
	info, err := t.Root.Stat(rel)
	if err != nil {
		return nil, nil, pathError(name, err)
	}
	if err := regular(name, info); err != nil {
		return nil, nil, err
	}
	f, err := t.Root.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, pathError(name, err)
	}
	if info, err = f.Stat(); err == nil {
		err = regular(name, info)
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, pathError(name, err)
	}
	return f, info, nil
}

func regular(name string, info fs.FileInfo) error {
	switch m := info.Mode(); {
	case m.IsRegular():
		return nil
	case m.IsDir():
		return fmt.Errorf("%s is a directory", name)
	case m&fs.ModeNamedPipe != 0:
		return fmt.Errorf("%s is a named pipe, not a regular file", name)
	case m&fs.ModeDevice != 0:
		return fmt.Errorf("%s is a device, not a regular file", name)
	case m&fs.ModeSocket != 0:
		return fmt.Errorf("%s is a socket, not a regular file", name)
	default:
		return fmt.Errorf("%s is not a regular file", name)
	}
}

// pathError says in the model's words what the system said of a path.
func pathError(name string, err error) error {
	var pe *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s does not exist", name)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: permission denied", name)
	case errors.As(err, &pe) && strings.Contains(pe.Err.Error(), "escapes"):
		return fmt.Errorf("%s leads outside the workspace (by a symbolic link)", name)
	case errors.As(err, &pe):
		return fmt.Errorf("%s: %w", name, pe.Err)
	default:
		return err
	}
}

// readAll reads a regular file of at most limit bytes.
func readAll(t sandbox.Tree, rel, name string, limit int64) ([]byte, error) {
	f, _, err := openRegular(t, rel, name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, pathError(name, err)
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, limit)
	}
	return b, nil
}

const spillDir = "output"

type spillArgs struct {
	Name   string `json:"name"`
	Data   []byte `json:"data,omitempty"`
	Remove bool   `json:"remove,omitempty"`
}

// spillOp appends to, or removes, a file of full output in the scratch directory.
func spillOp(_ context.Context, v *sandbox.View, raw json.RawMessage) (any, error) {
	var a spillArgs
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	name := path.Join(spillDir, path.Base(a.Name))
	if a.Remove {
		return nil, v.Scratch.Root.Remove(name)
	}
	if err := v.Scratch.Root.MkdirAll(spillDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the output directory: %w", err)
	}
	f, err := v.Scratch.Root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	_, err = f.Write(a.Data)
	return nil, errors.Join(err, f.Close())
}

// maxText is the largest file that ReadText returns.
const maxText = 256 << 10

// ReadText returns the text of a file of the workspace as it is, at most 256 KiB;
// no file is no text.
func (s *Session) ReadText(ctx context.Context, path string) (string, error) {
	raw, err := s.Do(ctx, opText, protocol.Encode(opArgs{Args: protocol.Encode(textArgs{path})}))
	if err != nil {
		return "", err
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return "", fmt.Errorf("read the text of %s: %w", path, err)
	}
	return text, nil
}

type textArgs struct {
	Path string `json:"path"`
}

func readText(_ context.Context, v *sandbox.View, a textArgs, _ int) (string, error) {
	tree, rel, err := v.Find("", a.Path)
	if err != nil {
		return "", err
	}
	if _, err := tree.Root.Stat(rel); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	b, err := readAll(tree, rel, a.Path, maxText)
	return protocol.Clean(string(b)), err
}
