package tool_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/tool"
	"rookery/protocol"
)

// load writes a tools file and reads it.
func load(t *testing.T, text string) ([]tool.Tool, error) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "tools.yaml")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	tools, err := tool.LoadFile(name)
	if err != nil {
		err = faults{strings.ReplaceAll(err.Error(), name, "F")}
	}
	return tools, err
}

type faults struct{ text string }

func (f faults) Error() string { return f.text }

const custom = `
tools:
  - name: count
    description: Counts.
    parameters:
      type: object
      properties:
        text: {type: string}
        n: {type: integer}
      required: [text]
      additionalProperties: false
    argv: [sh, -c, 'cat; echo " $ROOKERY_CALL_ID $PWD"; echo noise >&2']
    timeout: 90s
    max_output_length: 4000
  - name: fail
    description: Fails.
    argv: [sh, -c, 'echo half; echo why >&2; exit 3']
    workspace: false
  - name: deaf
    description: Does not read its input.
    argv: [sh, -c, 'exec 0<&-; seq 3']
  - name: hang
    description: Hangs.
    argv: [sleep, '1000']
    timeout: 100ms
  - name: nosuch
    description: Is not there.
    argv: [/nosuch/program]
`

func TestCustom_Spec(t *testing.T) {
	tools, err := load(t, custom)
	require.NoError(t, err)
	require.Len(t, tools, 5)
	require.Equal(t, protocol.Tool{
		ToolSpec: protocol.ToolSpec{
			Name: "count", Description: "Counts.",
			Parameters: []byte(`{"additionalProperties":false,"properties":{"n":{"type":"integer"},"text":{"type":"string"}},"required":["text"],"type":"object"}`),
		},
		TimeoutMS: 90_000, MaxOutput: 4000, Workspace: true,
	}, tools[0].Spec())
	require.False(t, tools[1].Spec().Workspace)
	require.JSONEq(t, `{"type":"object"}`, string(tools[1].Spec().Parameters))
	r, err := tool.NewRegistry(append(tool.Builtin(), tools...)...)
	require.NoError(t, err)
	require.True(t, r.Sandbox("fail"))
	require.False(t, r.Sandbox("count"))
	require.False(t, r.Sandbox("exec_command"))
}

func TestCustom_Runs(t *testing.T) {
	tools, err := load(t, custom)
	require.NoError(t, err)
	b := setup(t, tools...)
	require.Equal(t, `{"n":2,"text":"a\"b€"} s/1-0 `+b.dir+"\n", b.ok("count", object{"text": "a\"b€", "n": 2}))
	require.Contains(t, b.fails("count", object{"n": 1}), "missing: text")
	require.Equal(t, "half\nwhy\n[exit code: 3]", b.fails("fail", object{}))
	require.Equal(t, "1\n2\n3\n", b.ok("deaf", object{"text": strings.Repeat("x", 300_000)}))
	require.Equal(t, "[tool timeout: exceeded 100ms]", b.fails("hang", object{}))
	require.Contains(t, b.fails("nosuch", object{}), "nosuch was not run: ")
}

func TestCustom_MuchErrorOutputIsCut(t *testing.T) {
	tools, err := load(t, `
tools:
  - {name: noisy, description: x, argv: [sh, -c, 'seq 300000 >&2; exit 1']}
`)
	require.NoError(t, err)
	out := setup(t, tools...).fails("noisy", object{})
	require.Less(t, len(out), 5000)
	require.True(t, strings.HasPrefix(out, "1\n2\n3\n"), out)
	require.Contains(t, out, "bytes left out]")
	require.True(t, strings.HasSuffix(out, "\n300000\n[exit code: 1]"), out)
}

func TestCustom_FaultsNameTheirPlace(t *testing.T) {
	for text, want := range map[string]string{
		"tools: [":              "F:1:8: ",
		"":                      "holds no tools",
		"tools: []":             "holds no tools",
		"tool: []":              "F:1:1: unknown field \"tool\"",
		"tools:\n  - nam: x":    "F:2:5: unknown field \"nam\"",
		"tools:\n  - name: [x]": "F:2:11: ",
		"tools:\n  - {name: a b, description: x, argv: [x]}":                                                                                         `F:2:12: tool name "a b" is not 1 to 64 of`,
		"tools:\n  - {name: read_image, description: x, argv: [x]}":                                                                                  "F:2:12: tool name read_image is that of a built-in tool",
		"tools:\n  - {name: exec_command, description: x, argv: [x]}":                                                                                "is that of a built-in tool",
		"tools:\n  - {name: a, description: x, argv: [x]}\n  - {name: a, description: x, argv: [x]}":                                                 "F:3:12: tool name a is taken",
		"tools:\n  - {name: a, argv: [x]}":                                                                                                           "a: no description",
		"tools:\n  - {name: a, description: x}":                                                                                                      "a: no argv",
		"tools:\n  - {name: a, description: x, argv: [./x]}":                                                                                         "F:2:38: a: program ./x is neither absolute nor a name",
		"tools:\n  - {name: a, description: x, argv: [x], timeout: soon}":                                                                            `F:2:51: a: timeout "soon" is no duration`,
		"tools:\n  - {name: a, description: x, argv: [x], timeout: -5s}":                                                                             `timeout "-5s" is no duration`,
		"tools:\n  - {name: a, description: x, argv: [x], max_output_length: -1}":                                                                    "max_output_length is negative",
		"tools:\n  - {name: a, description: x, argv: [x], parameters: {type: string}}":                                                               `write "type: object"`,
		"tools:\n  - {name: a, description: x, argv: [x], parameters: {type: object, required: 7}}":                                                  "parameters: compile schema of tool a",
		"tools:\n  - {name: a, description: x, argv: [x], parameters: {type: object, properties: {b: {items: {type: objekt}}}}}":                     `type: enum: objekt does not equal any of: [array`,
		"tools:\n  - {name: a, description: x, argv: [x], parameters: {type: object, $schema: 'http://json-schema.org/draft-04/schema#'}}":           "$schema: enum: ",
		"tools:\n  - {name: a, description: x, argv: [x], parameters: {type: object, $ref: '#'}}":                                                    "refers to itself",
		"tools:\n  - {name: a, description: x, argv: [x], parameters: {type: object, allOf: [{$ref: '#/$defs/b'}], $defs: {b: {not: {$ref: '#'}}}}}": "refers to itself",
		"tools:\n  - {name: a, description: x, argv: [x], parameters: {type: object, properties: {x: {$ref: '#b'}}, $defs: {b: {$anchor: b}}}}":      "only # and #/… are followed",
		"tools:\n  - {name: a, description: x, argv: [x], parameters: {type: object, $ref: 'http://127.0.0.1/x'}}":                                   "parameters: ",
		"tools:\n  - {name: a, description: x, argv: [x], parameters: {type: object, properties: {x: {$ref: 'file:///etc/hosts'}}}}":                 "parameters: ",
	} {
		tools, err := load(t, text)
		require.ErrorContains(t, err, want, text)
		require.Empty(t, tools)
	}
	_, err := load(t, "tools:\n  - {name: a b, description: x, argv: []}\n  - {name: c, argv: [x]}")
	require.Len(t, strings.Split(err.Error(), "\n"), 3, "all faults at once: %v", err)
	_, err = tool.LoadFile(filepath.Join(t.TempDir(), "nosuch"))
	require.ErrorContains(t, err, "read the tools file")
}

// A schema may refer to itself for what is inside the value.
func TestCustom_SchemaOfATree(t *testing.T) {
	tools, err := load(t, `
tools:
  - {name: tree, description: x, argv: [cat], parameters: {type: object, required: [name], properties: {name: {type: string}, in: {type: array, items: {$ref: '#'}}}}}
`)
	require.NoError(t, err)
	b := setup(t, tools...)
	require.Contains(t, b.ok("tree", object{"name": "a", "in": []object{{"name": "b"}}}), `"b"`)
	require.Contains(t, b.fails("tree", object{"name": "a", "in": []object{{"name": 7}}}), "has type")
}
