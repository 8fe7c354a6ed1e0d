package tool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"rookery/protocol"
)

// A toolsFile is what a file of custom tools holds.
type toolsFile struct {
	Tools []customSpec `yaml:"tools"`
}

type customSpec struct {
	Name        string         `yaml:"name"`
	Description string         `yaml:"description"`
	Parameters  map[string]any `yaml:"parameters"`
	Argv        []string       `yaml:"argv"`
	Timeout     string         `yaml:"timeout"`
	MaxOutput   int            `yaml:"max_output_length"`
	Workspace   *bool          `yaml:"workspace"`
}

// LoadFile reads custom tools: commands that get a call's arguments as JSON on their
// standard input. Its error joins all faults, each as file:line:column.
func LoadFile(name string) ([]Tool, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the tools file: %w", err)
	}
	f, err := parser.ParseBytes(b, 0)
	if err != nil {
		return nil, yamlFault(name, err)
	}
	var content toolsFile
	if err := yaml.NewDecoder(bytes.NewReader(b), yaml.Strict()).Decode(&content); err != nil && !errors.Is(err, io.EOF) {
		return nil, yamlFault(name, err)
	}
	c := checker{file: name, ast: f, seen: map[string]bool{}}
	var tools []Tool
	for i, s := range content.Tools {
		tools = append(tools, c.tool(fmt.Sprintf("$.tools[%d]", i), s))
	}
	if len(content.Tools) == 0 {
		c.fault("$", "holds no tools")
	}
	if err := errors.Join(c.faults...); err != nil {
		return nil, err
	}
	return tools, nil
}

func yamlFault(name string, err error) error {
	var y yaml.Error
	if errors.As(err, &y) && y.GetToken() != nil {
		p := y.GetToken().Position
		return fmt.Errorf("%s:%d:%d: %s", name, p.Line, p.Column, y.GetMessage())
	}
	return fmt.Errorf("%s: %w", name, err)
}

// A checker goes through a file and gathers what is wrong.
type checker struct {
	file   string
	ast    *ast.File
	seen   map[string]bool
	faults []error
}

// fault notes what is wrong at a path of the file, or at the nearest place above it.
func (c *checker) fault(path, format string, args ...any) {
	place := c.file
	for p := path; ; p = p[:strings.LastIndexAny(p, ".[")] {
		if at := c.node(p); at != nil {
			place = fmt.Sprintf("%s:%d:%d", place, at.GetToken().Position.Line, at.GetToken().Position.Column)
			break
		}
		if !strings.ContainsAny(p, ".[") {
			break
		}
	}
	c.faults = append(c.faults, fmt.Errorf("%s: %s", place, fmt.Sprintf(format, args...)))
}

func (c *checker) node(path string) ast.Node {
	p, err := yaml.PathString(path)
	if err != nil {
		return nil
	}
	n, err := p.FilterFile(c.ast)
	if err != nil {
		return nil
	}
	return n
}

func (c *checker) tool(at string, s customSpec) Tool {
	c.name(at+".name", s.Name)
	if strings.TrimSpace(s.Description) == "" {
		c.fault(at+".description", "%s: no description: the model chooses by it", s.Name)
	}
	c.argv(at+".argv", s)
	t := customTool{argv: s.Argv, spec: protocol.Tool{
		ToolSpec:  protocol.ToolSpec{Name: s.Name, Description: s.Description, Parameters: c.schema(at+".parameters", s)},
		MaxOutput: s.MaxOutput, Workspace: s.Workspace == nil || *s.Workspace,
	}}
	if s.MaxOutput < 0 {
		c.fault(at+".max_output_length", "%s: max_output_length is negative", s.Name)
	}
	if s.Timeout != "" {
		d, err := time.ParseDuration(s.Timeout)
		if err != nil || d < time.Millisecond {
			c.fault(at+".timeout", "%s: timeout %q is no duration, as 30s or 5m", s.Name, s.Timeout)
		}
		t.spec.TimeoutMS = d.Milliseconds()
	}
	return t
}

func (c *checker) name(at, name string) {
	switch {
	case !regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`).MatchString(name):
		c.fault(at, "tool name %q is not 1 to 64 of a-z A-Z 0-9 _ -", name)
	case slices.Contains(Reserved(), name):
		c.fault(at, "tool name %s is that of a built-in tool: choose another one", name)
	case c.seen[name]:
		c.fault(at, "tool name %s is taken by another tool of this file", name)
	}
	c.seen[name] = true
}

// argv refuses a program that would be looked up in the workspace: what is there is
// the model's.
func (c *checker) argv(at string, s customSpec) {
	switch {
	case len(s.Argv) == 0 || s.Argv[0] == "":
		c.fault(at, "%s: no argv: name the program and its arguments", s.Name)
	case strings.Contains(s.Argv[0], "/") && !filepath.IsAbs(s.Argv[0]):
		c.fault(at+"[0]", "%s: program %s is neither absolute nor a name to look up in PATH", s.Name, s.Argv[0])
	case slices.ContainsFunc(s.Argv, func(a string) bool { return strings.ContainsRune(a, 0) }):
		c.fault(at, "%s: argv contains a NUL byte", s.Name)
	}
}

func (c *checker) schema(at string, s customSpec) json.RawMessage {
	if s.Parameters == nil {
		return json.RawMessage(`{"type":"object"}`)
	}
	raw, err := json.Marshal(s.Parameters)
	if err == nil {
		_, err = compile(s.Name, raw)
	}
	if err == nil && s.Parameters["type"] != "object" {
		err = errors.New(`arguments are an object: write "type: object"`)
	}
	if err != nil {
		c.fault(at, "%s: parameters: %v", s.Name, err)
	}
	return raw
}

// Reserved lists the names that only built-in tools may have.
func Reserved() []string {
	var names []string
	for _, t := range Builtin() {
		names = append(names, t.Spec().Name)
	}
	return names
}
