package tool

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// A schema checks arguments; the zero value accepts any object.
type schema struct{ resolved *jsonschema.Resolved }

// keywords is what a schema must look like where the library would take a slip for a
// keyword that it does not know, or would notice it only when arguments come.
const keywords = `{
	"$defs": {
		"type": {"enum": ["array", "boolean", "integer", "null", "number", "object", "string"]},
		"schemas": {"type": "array", "items": {"$ref": "#"}},
		"named": {"type": "object", "additionalProperties": {"$ref": "#"}}
	},
	"type": ["object", "boolean"],
	"properties": {
		"$schema": {"enum": ["https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#", "http://json-schema.org/draft-07/schema"]},
		"type": {"if": {"type": "array"}, "then": {"items": {"$ref": "#/$defs/type"}}, "else": {"$ref": "#/$defs/type"}},
		"properties": {"$ref": "#/$defs/named"}, "patternProperties": {"$ref": "#/$defs/named"}, "dependentSchemas": {"$ref": "#/$defs/named"},
		"$defs": {"$ref": "#/$defs/named"}, "definitions": {"$ref": "#/$defs/named"},
		"allOf": {"$ref": "#/$defs/schemas"}, "anyOf": {"$ref": "#/$defs/schemas"}, "oneOf": {"$ref": "#/$defs/schemas"}, "prefixItems": {"$ref": "#/$defs/schemas"},
		"items": {"if": {"type": "array"}, "then": {"$ref": "#/$defs/schemas"}, "else": {"$ref": "#"}}, "additionalProperties": {"$ref": "#"}, "propertyNames": {"$ref": "#"},
		"contains": {"$ref": "#"}, "not": {"$ref": "#"}, "if": {"$ref": "#"}, "then": {"$ref": "#"}, "else": {"$ref": "#"}
	}
}`

// compile reads a tool's JSON Schema, of draft 2020-12 or 7. References to other
// documents are refused.
func compile(tool string, parameters json.RawMessage) (schema, error) {
	if len(parameters) == 0 {
		return schema{}, nil
	}
	s, err := resolve(parameters)
	if err != nil {
		return schema{}, fmt.Errorf("compile schema of tool %s: %w", tool, err)
	}
	form, err := resolve(json.RawMessage(keywords))
	if err == nil {
		err = form.check(string(parameters))
	}
	if err == nil {
		err = loops(parameters)
	}
	if err != nil {
		return schema{}, fmt.Errorf("compile schema of tool %s: %w", tool, err)
	}
	return s, nil
}

func resolve(text json.RawMessage) (schema, error) {
	var s jsonschema.Schema
	if err := json.Unmarshal(text, &s); err != nil {
		return schema{}, err
	}
	resolved, err := s.Resolve(nil)
	return schema{resolved}, err
}

// check reports what is wrong with arguments, for the model: which one, and why.
func (s schema) check(arguments string) error {
	var v any
	if err := json.Unmarshal([]byte(arguments), &v); err != nil {
		return fmt.Errorf("they are not JSON: %w", err)
	}
	given, ok := v.(map[string]any)
	if !ok {
		return errors.New("they are not a JSON object")
	}
	if s.resolved == nil {
		return nil
	}
	err := s.resolved.Validate(v)
	if err == nil {
		return nil
	}
	if names := s.names(given); len(names) > 0 {
		return errors.New(strings.Join(names, "; "))
	}
	return errors.New(explain(err.Error()))
}

// names tells which arguments are missing and which not known.
func (s schema) names(given map[string]any) (faults []string) {
	root := s.resolved.Schema()
	var missing, unknown []string
	for _, name := range root.Required {
		if _, ok := given[name]; !ok {
			missing = append(missing, name)
		}
	}
	if more := root.AdditionalProperties; more != nil && more.Not != nil && reflect.ValueOf(*more.Not).IsZero() && len(root.PatternProperties) == 0 {
		for name := range given {
			if root.Properties[name] == nil {
				unknown = append(unknown, name)
			}
		}
		slices.Sort(unknown)
	}
	if len(missing) > 0 {
		faults = append(faults, "missing: "+strings.Join(missing, ", "))
	}
	if len(unknown) > 0 {
		faults = append(faults, "not known: "+strings.Join(unknown, ", "))
	}
	return faults
}

var (
	wholeRatio   = regexp.MustCompile(`\b(\d+)/1\b`)
	wholeDecimal = regexp.MustCompile(`\b(\d+)\.0{6}\b`)
	unnamed      = regexp.MustCompile(`\[?(<anonymous schema> ?)+\]?`)
)

// explain turns the library's message, which leads down the schema to what failed,
// into the argument's name and why.
func explain(message string) string {
	where := ""
	for {
		rest, ok := strings.CutPrefix(message, "validating ")
		place, why, more := strings.Cut(rest, ": ")
		if !ok || !more {
			break
		}
		message = why
		if name := argument(place); name != "" {
			where = name
		}
	}
	message = wholeDecimal.ReplaceAllString(wholeRatio.ReplaceAllString(message, "$1"), "$1")
	message = strings.NewReplacer(":\n", ": ", "\n", "; ").Replace(unnamed.ReplaceAllString(message, "the schemas"))
	const most = 400
	if runes := []rune(message); len(runes) > most {
		message = string(runes[:most]) + "…"
	}
	return where + message
}

// argument is the name, as a prefix, of what a place in a schema is about.
func argument(place string) string {
	var name strings.Builder
	steps := strings.Split(place, "/")
	for i, step := range steps {
		switch {
		case i > 0 && steps[i-1] == "properties":
			if name.Len() > 0 {
				name.WriteByte('.')
			}
			name.WriteString(strings.NewReplacer("~1", "/", "~0", "~").Replace(step))
		case step == "items" || step == "prefixItems":
			name.WriteString("[]")
		}
	}
	if name.Len() == 0 {
		return ""
	}
	return name.String() + ": "
}
