package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// A decoder lays one file over a Config. It goes on after a fault, so that all of
// a file's faults are told at once.
type decoder struct {
	file    file
	origins map[string]Origin
	// allowed is tools.enabled of the layers below; a project may only narrow it.
	allowed []string
	faults  []error
}

func (d *decoder) fault(at ast.Node, key, format string, args ...any) {
	place := d.file.path
	if at != nil && at.GetToken() != nil {
		p := at.GetToken().Position
		place = fmt.Sprintf("%s:%d:%d", place, p.Line, p.Column)
	}
	d.faults = append(d.faults, &SettingError{Place: place, Key: key, Problem: fmt.Sprintf(format, args...)})
}

func (d *decoder) config(root ast.Node, c *Config) {
	d.value(root, reflect.ValueOf(c).Elem(), "", rules{})
	if d.file.layer == LayerProject && len(d.allowed) > 0 {
		for i, t := range c.Tools.Enabled {
			if !slices.Contains(d.allowed, t) {
				d.faults = append(d.faults, &SettingError{
					Place: d.origins[fmt.Sprintf("tools.enabled[%d]", i)].String(), Key: "tools.enabled",
					Problem: fmt.Sprintf("%s is not among the tools that %s enables; a project file may only leave tools out", t, d.file.user),
				})
			}
		}
	}
}

// value reads node into v.
func (d *decoder) value(node ast.Node, v reflect.Value, key string, r rules) {
	switch n := node.(type) {
	case *ast.NullNode:
		return // a key without a value sets nothing
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		d.fault(node, key, "anchors, aliases and tags are not read here; write the value out")
		return
	case *ast.MappingValueNode:
		node = &ast.MappingNode{BaseNode: n.BaseNode, Start: n.Start, Values: []*ast.MappingValueNode{n}}
	}
	switch {
	case v.Kind() == reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		d.value(node, p.Elem(), key, r)
		v.Set(p)
	case v.Type() == reflect.TypeFor[map[string]any]():
		d.free(node, v, key)
	case v.Kind() == reflect.Struct:
		d.structure(node, v, key)
	case v.Kind() == reflect.Map:
		d.mapping(node, v, key, r)
	case v.Kind() == reflect.Slice:
		d.list(node, v, key, r)
	default:
		d.scalar(node, v, key, r)
	}
}

func (d *decoder) structure(node ast.Node, v reflect.Value, key string) {
	m, ok := node.(*ast.MappingNode)
	if !ok {
		d.fault(node, key, "must hold keys, one a line, as %q", strings.Join(head(names(v.Type()), 3), ": …, ")+": …")
		return
	}
	for _, pair := range m.Values {
		name := pair.Key.GetToken().Value
		sub := join(key, name)
		f, ok := field(v, name)
		switch {
		case !ok:
			d.fault(pair.Key, sub, "is not a key here%s", suggest(name, names(v.Type())))
		case !d.permits(pair.Key, sub):
		default:
			d.value(pair.Value, f.value, sub, f.rules)
		}
	}
}

// permits checks that this file may set the key; inside an allowed section every
// key is.
func (d *decoder) permits(at ast.Node, key string) bool {
	s := scopeOf(key)
	switch {
	case d.file.layer == LayerProject && !s.project:
		d.fault(at, key, "can't be set by a project file; set it in %s", d.file.user)
		return false
	case d.file.layer == LayerSystem && !s.agent:
		d.fault(at, key, "is not a setting of the agent; set it in config.yaml beside this file")
		return false
	}
	return true
}

func (d *decoder) mapping(node ast.Node, v reflect.Value, key string, r rules) {
	m, ok := node.(*ast.MappingNode)
	if !ok {
		d.fault(node, key, "must hold keys, one a line")
		return
	}
	if v.IsNil() {
		v.Set(reflect.MakeMap(v.Type()))
	}
	for _, pair := range m.Values {
		name := pair.Key.GetToken().Value
		sub := join(key, name)
		if p := checks[r.keys].problem(name); p != "" {
			d.fault(pair.Key, sub, "%s", p)
			continue
		}
		e := reflect.New(v.Type().Elem()).Elem()
		d.value(pair.Value, e, sub, r)
		v.SetMapIndex(reflect.ValueOf(name), e)
	}
}

// list reads a sequence, or one scalar as a list of the words between its commas.
func (d *decoder) list(node ast.Node, v reflect.Value, key string, r rules) {
	seq, ok := node.(*ast.SequenceNode)
	if !ok {
		s, isText := node.(*ast.StringNode)
		if !isText || v.Type().Elem().Kind() != reflect.String {
			d.fault(node, key, "must be a list, as [a, b]")
			return
		}
		if p := setText(v, s.Value, r); p != "" {
			d.fault(node, key, "%s", p)
		}
		d.mark(node, key)
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), 0, len(seq.Values)))
	for i, n := range seq.Values {
		e := reflect.New(v.Type().Elem()).Elem()
		d.value(n, e, fmt.Sprintf("%s[%d]", key, i), r)
		v.Set(reflect.Append(v, e))
	}
	d.mark(node, key)
}

func (d *decoder) free(node ast.Node, v reflect.Value, key string) {
	if err := yaml.NodeToValue(node, v.Addr().Interface()); err != nil {
		d.fault(node, key, "must hold keys and values")
	}
}

func (d *decoder) scalar(node ast.Node, v reflect.Value, key string, r rules) {
	text, kind := scalarText(node)
	if p := mismatch(v, text, kind); p != "" {
		d.fault(node, key, "%s", p)
		return
	}
	if p := setText(v, text, r); p != "" {
		d.fault(node, key, "%s", p)
		return
	}
	d.mark(node, key)
}

func (d *decoder) mark(node ast.Node, key string) {
	d.origins[key] = Origin{Layer: d.file.layer, Name: d.file.path, Line: node.GetToken().Position.Line}
}

// scalarText returns the text of a scalar and what YAML takes it for.
func scalarText(node ast.Node) (text, kind string) {
	switch n := node.(type) {
	case *ast.StringNode:
		return n.Value, "a text"
	case *ast.LiteralNode:
		return n.Value.Value, "a text"
	case *ast.BoolNode:
		return fmt.Sprint(n.Value), "a boolean"
	case *ast.IntegerNode:
		return fmt.Sprint(n.Value), "a whole number"
	case *ast.FloatNode:
		return fmt.Sprint(n.Value), "a number"
	case *ast.SequenceNode:
		return "", "a list"
	case *ast.MappingNode:
		return "", "a section with keys"
	}
	return "", "no plain value"
}

// mismatch says why a scalar of that kind can't be a value of v's type; off is
// read for every limit.
func mismatch(v reflect.Value, text, kind string) string {
	want := "a text"
	switch {
	case v.Type() == reflect.TypeFor[time.Duration]():
		if kind == "a text" || text == "0" || text == "-1" {
			return ""
		}
		return fmt.Sprintf("is %s; write a duration with its unit, as 90s or 5m", kind)
	case v.Kind() == reflect.Bool:
		want = "a boolean"
	case v.CanInt():
		if text == "off" && kind == "a text" {
			return ""
		}
		want = "a whole number"
	case v.CanFloat():
		if kind == "a whole number" {
			return ""
		}
		want = "a number"
	}
	switch {
	case kind == want:
		return ""
	case want == "a text" && text != "":
		return fmt.Sprintf("is %s; put it in quotes to make it a text", kind)
	}
	return fmt.Sprintf("is %s; it must be %s", kind, want)
}
