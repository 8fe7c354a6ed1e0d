package config

import (
	"fmt"
	"reflect"
	"strings"
	"time"
)

// A Layer is a kind of place that a value comes from; a later one wins.
type Layer int

// The layers.
const (
	LayerDefault Layer = iota
	LayerSystem
	LayerUser
	LayerProject
	LayerEnvironment
	LayerFlag
)

// An Origin says where a value came from.
type Origin struct {
	Layer Layer
	// Name is the file, variable or flag; Line the file's line.
	Name string
	Line int
}

// String is for people: "default", "FILE:LINE", "environment NAME", "flag --name".
func (o Origin) String() string {
	switch o.Layer {
	case LayerDefault:
		return "default"
	case LayerEnvironment:
		return "environment " + o.Name
	case LayerFlag:
		return "flag --" + o.Name
	case LayerSystem, LayerUser, LayerProject:
	}
	return fmt.Sprintf("%s:%d", o.Name, o.Line)
}

// Origin says where the value of a key came from. A list, map or section came
// from where any of its entries was set last.
func (c *Config) Origin(key string) Origin {
	best := c.origins[key]
	for k, o := range c.origins {
		if (strings.HasPrefix(k, key+".") || strings.HasPrefix(k, key+"[")) && o.Layer > best.Layer {
			best = o
		}
	}
	return best
}

// A Setting is one line of a listing of settings.
type Setting struct {
	Key, Value string
	Origin     Origin
}

// Settings lists every setting in the order of Config. Long texts are cut to
// their first line.
func (c *Config) Settings() []Setting {
	var out []Setting
	keys(reflect.ValueOf(c).Elem(), "", func(key string, f boundField) {
		out = append(out, Setting{Key: key, Value: show(f), Origin: c.Origin(key)})
	})
	return out
}

func show(f boundField) string {
	if ms, ok := reflect.TypeAssert[[]Model](f.value); ok {
		names := make([]string, len(ms))
		for i, m := range ms {
			names[i] = m.Name
		}
		return strings.Join(names, ", ")
	}
	if f.rules.off && f.value.CanInt() && f.value.Int() == Off {
		return "off"
	}
	switch x := f.value.Interface().(type) {
	case string:
		return firstLine(x)
	case []string:
		return strings.Join(x, ", ")
	case time.Duration:
		return x.String()
	}
	if f.value.Kind() == reflect.Map {
		if f.value.Len() == 0 {
			return ""
		}
		return strings.TrimPrefix(fmt.Sprint(f.value.Interface()), "map")
	}
	return fmt.Sprint(f.value.Interface())
}

func firstLine(s string) string {
	line, _, more := strings.Cut(s, "\n")
	if r := []rune(line); len(r) > 60 {
		line, more = string(r[:60]), true
	}
	if more {
		line += " …"
	}
	return line
}
