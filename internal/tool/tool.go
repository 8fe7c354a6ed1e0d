package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"rookery/internal/sandbox"
	"rookery/protocol"
)

// The defaults of a call (L053, L054).
const (
	DefaultTimeout   = 120 * time.Second
	DefaultMaxOutput = 16000
	// hardMaxOutput keeps a result under protocol.MaxBody, however it is escaped.
	hardMaxOutput = 120_000
)

// Causes with which the caller of Execute cancels a call.
var (
	// ErrInterrupted is the user's abort.
	ErrInterrupted = errors.New("interrupted by the user")
	// ErrStopped is the worker's end.
	ErrStopped = errors.New("the worker is stopping")
)

// A timeoutError is the cause of a context whose call took too long.
type timeoutError struct{ limit time.Duration }

func (e timeoutError) Error() string { return protocol.NoteTimeout(e.limit.Milliseconds()) }

// A Tool is something the model can call. It is safe for concurrent use.
type Tool interface {
	// Spec describes the tool; it does not change.
	Spec() protocol.Tool
	// Run works on one call whose arguments match the schema. What it writes to w
	// is the output, as it comes; writes do not fail. It returns soon after ctx is
	// done, with context.Cause(ctx). Another error is a failure that the model
	// is told: its text says what to do about it.
	Run(ctx context.Context, c *Call, w io.Writer) (Report, error)
}

// A Call is one run of a tool.
type Call struct {
	// Key is the same over all attempts of a call: ROOKERY_CALL_ID.
	Key       string
	Arguments json.RawMessage
	MaxOutput int // characters of output that will be kept
	// Session is what the session's calls share; nil for tools without workspace.
	Session *Session
}

// A Report is what a tool tells beside its output.
type Report struct {
	// Notes end the output, each on its own line, outside the cap.
	Notes  []string
	Images []string // data URLs
	// Failed reports that the call did not do what it should, though it ran.
	Failed bool
	Reason sandbox.Reason
	Usage  sandbox.Usage
}

// A Registry holds the tools of a worker.
type Registry struct {
	tools map[string]entry
	specs []protocol.Tool
}

type entry struct {
	Tool
	schema schema
	spec   protocol.Tool
}

// NewRegistry compiles the schemas of the tools; its error joins all faults.
func NewRegistry(tools ...Tool) (*Registry, error) {
	r := &Registry{tools: map[string]entry{}}
	var errs []error
	for _, t := range tools {
		spec := t.Spec()
		s, err := compile(spec.Name, spec.Parameters)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if _, ok := r.tools[spec.Name]; ok || spec.Name == "" {
			errs = append(errs, fmt.Errorf("tool name %q is empty or taken", spec.Name))
			continue
		}
		r.tools[spec.Name] = entry{Tool: t, schema: s, spec: spec}
		r.specs = append(r.specs, spec)
	}
	return r, errors.Join(errs...)
}

// Standard returns the built-in tools, and those of a file where one is named.
func Standard(file string) (*Registry, error) {
	tools := Builtin()
	if file != "" {
		more, err := LoadFile(file)
		if err != nil {
			return nil, err
		}
		tools = append(tools, more...)
	}
	return NewRegistry(tools...)
}

// Specs describes the tools in the order they were given.
func (r *Registry) Specs() []protocol.Tool { return r.specs }

// Has reports whether there is a tool of that name.
func (r *Registry) Has(name string) bool {
	_, ok := r.tools[name]
	return ok
}

// Sandbox reports whether calls of the named tool need a session of their own: it
// runs commands, but not in a workspace.
func (r *Registry) Sandbox(name string) bool {
	e := r.tools[name]
	_, custom := e.Tool.(customTool)
	return custom && !e.spec.Workspace
}

// Workspace reports whether calls of the named tool need a session.
func (r *Registry) Workspace(name string) bool { return r.tools[name].spec.Workspace }
