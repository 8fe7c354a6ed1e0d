package tool

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"rookery/internal/sandbox"
	"rookery/protocol"
)

const defaultEntries = 500

func listSpec() protocol.Tool {
	return spec(opList, "List files and directories of the workspace, sorted, without what git ignores. Directories end with a slash. "+
		"When there are more than fit, upper levels are shown first.", `{
		"type": "object",
		"properties": {
			"path": {"type": "string", "description": "Directory; default the workspace"},
			"glob": {"type": "string", "description": "Only files that match, e.g. *.go or cmd/**/*.go"},
			"depth": {"type": "integer", "minimum": 1, "description": "Levels to go down; default all"},
			"limit": {"type": "integer", "minimum": 1, "maximum": 5000, "description": "Entries at most; default 500"},
			"ignored": {"type": "boolean", "description": "Also list what git ignores"}
		},
		"additionalProperties": false
	}`)
}

type listArgs struct {
	Path    string `json:"path"`
	Glob    string `json:"glob"`
	Depth   int    `json:"depth"`
	Limit   int    `json:"limit"`
	Ignored bool   `json:"ignored"`
}

func listFiles(ctx context.Context, v *sandbox.View, a listArgs, limit int) (string, error) {
	w, err := newWalk(v, a.Path, a.Glob)
	if err != nil {
		return "", err
	}
	w.depth, w.all = a.Depth, a.Ignored
	if a.Limit <= 0 {
		a.Limit = defaultEntries
	}
	var found []string
	more, room := false, limit-100
	err = w.run(ctx, func(rel string, e fs.DirEntry) error {
		line := protocol.Clean(w.describe(rel, e))
		if room -= len(line) + 1; len(found) >= a.Limit || room < 0 && len(found) > 0 {
			more = true
			return errEnough
		}
		found = append(found, line)
		return nil
	})
	if err != nil {
		return "", err
	}
	slices.Sort(found)
	return listing(found, more || w.partial), nil
}

func listing(found []string, more bool) string {
	switch {
	case len(found) == 0:
		return "[nothing found]"
	case more:
		found = append(found, fmt.Sprintf("[first %d entries: narrow by path, glob or depth]", len(found)))
	}
	return strings.Join(found, "\n")
}

// describe writes an entry on one line, whatever its name is.
func (w *walk) describe(rel string, e fs.DirEntry) string {
	name := oneLine(rel)
	switch {
	case e.IsDir():
		return name + "/"
	case e.Type()&fs.ModeSymlink != 0:
		link, err := w.tree.Root.Readlink(rel)
		if err != nil {
			return name + " -> ?"
		}
		return name + " -> " + oneLine(link)
	case !e.Type().IsRegular():
		return name + " [" + kindOf(e.Type()) + "]"
	}
	return name
}

func kindOf(m fs.FileMode) string {
	switch {
	case m&fs.ModeNamedPipe != 0:
		return "named pipe"
	case m&fs.ModeSocket != 0:
		return "socket"
	default:
		return "device"
	}
}

func oneLine(name string) string {
	return strings.NewReplacer("\n", `\n`, "\r", `\r`).Replace(name)
}
