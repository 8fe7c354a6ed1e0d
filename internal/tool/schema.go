package tool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

// A schema checks arguments; the zero value accepts any object.
type schema struct{ compiled *jsonschema.Schema }

// compile reads a tool's JSON Schema. References to other documents are refused.
func compile(tool string, parameters json.RawMessage) (schema, error) {
	if len(parameters) == 0 {
		return schema{}, nil
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(parameters))
	if err != nil {
		return schema{}, fmt.Errorf("read schema of tool %s: %w", tool, err)
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(jsonschema.SchemeURLLoader{})
	const url = "tool:///parameters"
	if err := c.AddResource(url, doc); err != nil {
		return schema{}, fmt.Errorf("add schema of tool %s: %w", tool, err)
	}
	s, err := c.Compile(url)
	if err != nil {
		return schema{}, fmt.Errorf("compile schema of tool %s: %w", tool, err)
	}
	return schema{s}, nil
}

// check reports what is wrong with arguments, for the model: which one, and why.
func (s schema) check(arguments string) error {
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(arguments))
	if err != nil {
		return fmt.Errorf("they are not JSON: %w", err)
	}
	if _, ok := v.(map[string]any); !ok {
		return errors.New("they are not a JSON object")
	}
	if s.compiled == nil {
		return nil
	}
	err = s.compiled.Validate(v)
	if invalid, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
		return errors.New(strings.Join(faults(invalid, nil), "; "))
	}
	return err
}

// faults lists the leaves of a validation error.
func faults(e *jsonschema.ValidationError, list []string) []string {
	for _, c := range e.Causes {
		list = faults(c, list)
	}
	if len(e.Causes) > 0 || len(list) >= 10 {
		return list
	}
	at := strings.Join(e.InstanceLocation, ".")
	switch k := e.ErrorKind.(type) {
	case *kind.Required:
		return append(list, "missing: "+strings.Join(k.Missing, ", "))
	case *kind.AdditionalProperties:
		return append(list, "not known: "+strings.Join(k.Properties, ", "))
	default:
		why := k.LocalizedString(message.NewPrinter(language.English))
		if at == "" {
			return append(list, why)
		}
		return append(list, at+": "+why)
	}
}
