package archtest_test

import (
	"bytes"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/archtest"
)

const (
	root   = "../.."
	module = "rookery/"
)

func packages(t *testing.T) []archtest.Package {
	t.Helper()
	ps, err := archtest.Load(root)
	require.NoError(t, err)
	require.Greater(t, len(ps), 4, "the tree was not found")
	return ps
}

// match finds an entry for a path: its own, else that of a pattern.
func match[V any](table map[string]V, p string) (V, bool) {
	if v, ok := table[p]; ok {
		return v, true
	}
	v, ok := table[path.Dir(p)+"/*"]
	return v, ok
}

func listed(list []string, p string) bool {
	return slices.Contains(list, p) || slices.Contains(list, path.Dir(p)+"/*")
}

// problems of a tree, one line each; none when it keeps the rules.
func importProblems(ps []archtest.Package) []string {
	var out []string
	for _, p := range ps {
		rule, ok := match(archtest.Table(), p.Path)
		if !ok {
			out = append(out, p.Path+" is not in the table of packages: an addition is a change of the design")
			continue
		}
		for imp, file := range p.Imports {
			ours, ok := strings.CutPrefix(imp, module)
			switch {
			case !ok:
			case strings.HasPrefix(ours, "cmd/"):
				out = append(out, file+" imports a command, "+ours)
			case helper(ours) && !helper(p.Path) && !strings.HasPrefix(p.Path, "test/") && !strings.HasPrefix(p.Path, "bench"):
				out = append(out, file+" imports a helper of tests, "+ours)
			case !rule.Any && !slices.Contains(rule.Imports, ours):
				out = append(out, file+" imports "+ours+", which the table does not allow "+p.Path)
			}
		}
		for imp, file := range p.TestImports {
			if strings.HasPrefix(imp, module+"cmd/") {
				out = append(out, file+" imports a command, "+imp)
			}
		}
		out = append(out, moduleProblems(p)...)
	}
	slices.Sort(out)
	return out
}

func moduleProblems(p archtest.Package) []string {
	var out []string
	for prefix, where := range archtest.Modules() {
		for imp, file := range p.Imports {
			if under(imp, prefix) && !listed(where, p.Path) {
				out = append(out, file+" imports "+imp+"; only "+strings.Join(where, ", ")+" may")
			}
		}
		for imp, file := range p.TestImports {
			if under(imp, prefix) && !listed(where, p.Path) && !slices.Contains(where, p.Path+"_test") {
				out = append(out, file+" imports "+imp+"; only "+strings.Join(where, ", ")+" may")
			}
		}
	}
	for imp, file := range p.Imports {
		if (under(imp, "github.com/stretchr/testify") || imp == "testing") && !helper(p.Path) {
			out = append(out, file+" imports "+imp+", which would reach a binary")
		}
	}
	return out
}

func under(imp, prefix string) bool { return imp == prefix || strings.HasPrefix(imp, prefix+"/") }

// helper reports a package that is made for tests.
func helper(p string) bool { return strings.HasSuffix(p, "test") && p != "internal/archtest" }

func TestImports_PointDownwards(t *testing.T) {
	require.Empty(t, importProblems(packages(t)))
}

// The rules themselves are tested on trees that break them.
func TestImports_BrokenTreesAreSeen(t *testing.T) {
	for name, c := range map[string]struct {
		path           string
		imports, tests []string
		want           string
	}{
		"not in the table":   {"internal/util", nil, nil, "internal/util is not in the table"},
		"upwards":            {"protocol", []string{"rookery/internal/bus"}, nil, "imports internal/bus, which the table does not allow protocol"},
		"adapters":           {"internal/llm", []string{"rookery/internal/bus"}, nil, "which the table does not allow internal/llm"},
		"command":            {"internal/host", []string{"rookery/cmd/cli"}, nil, "imports a command"},
		"command in a test":  {"internal/host", nil, []string{"rookery/cmd/cli"}, "imports a command"},
		"helper":             {"cmd/cli", []string{"rookery/internal/bus/bustest"}, nil, "imports a helper of tests"},
		"nats outside":       {"client", []string{"github.com/nats-io/nats.go"}, nil, "imports github.com/nats-io/nats.go; only"},
		"nats below":         {"internal/session", nil, []string{"github.com/nats-io/nats.go/jetstream"}, "imports github.com/nats-io/nats.go/jetstream; only"},
		"server outside":     {"internal/bus", []string{"github.com/nats-io/nats-server/v2/server"}, nil, "nats-server/v2/server; only internal/bus/natsd"},
		"testify in program": {"internal/tool", []string{"github.com/stretchr/testify/require"}, nil, "would reach a binary"},
	} {
		t.Run(name, func(t *testing.T) {
			p := archtest.Package{Path: c.path, Imports: map[string]string{}, TestImports: map[string]string{}}
			for _, i := range c.imports {
				p.Imports[i] = "a.go"
			}
			for _, i := range c.tests {
				p.TestImports[i] = "a_test.go"
			}
			got := importProblems([]archtest.Package{p})
			require.Len(t, got, 1)
			require.Contains(t, got[0], c.want)
		})
	}
}

func TestPackages_SayWhatTheyAreAndPromise(t *testing.T) {
	for _, p := range packages(t) {
		switch p.Name {
		case "": // tests only
		case "main":
			require.NotEmpty(t, p.Doc, "%s has no comment that says what the command does", p.Path)
		default:
			require.True(t, strings.HasPrefix(p.Doc, "Package "+p.Name+" "), "%s has no package comment", p.Path)
			require.Contains(t, p.Doc, "# Invariants", "the package comment of %s promises nothing", p.Path)
		}
	}
}

// The server would add 10 MB to a worker, whatever the way it comes in.
func TestToolworker_DoesNotLinkTheServer(t *testing.T) {
	if _, err := os.Stat(filepath.Join(root, "cmd", "toolworker")); os.IsNotExist(err) {
		return
	}
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/toolworker")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	require.Contains(t, string(out), module+"protocol")
	require.NotContains(t, string(out), "nats-server")
}
