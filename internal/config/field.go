package config

import (
	"reflect"
	"strconv"
	"strings"
)

type boundField struct {
	value reflect.Value
	rules rules
}

// fields yields the keys of a struct type in order, those of inlined ones included.
func fields(t reflect.Type, yield func(name string, f reflect.StructField)) {
	for f := range t.Fields() {
		name, opts, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case opts == "inline":
			fields(f.Type, yield)
		case name != "" && name != "-":
			yield(name, f)
		}
	}
}

func names(t reflect.Type) []string {
	var out []string
	fields(t, func(name string, _ reflect.StructField) { out = append(out, name) })
	return out
}

func field(v reflect.Value, name string) (boundField, bool) {
	var found *reflect.StructField
	fields(v.Type(), func(n string, f reflect.StructField) {
		if n == name {
			found = &f
		}
	})
	if found == nil {
		return boundField{}, false
	}
	return boundField{v.FieldByName(found.Name), rulesOf(*found)}, true
}

func rulesOf(f reflect.StructField) rules {
	r := rules{check: f.Tag.Get("check"), keys: f.Tag.Get("keys"), off: f.Tag.Get("off") != ""}
	r.oneof = strings.Fields(f.Tag.Get("oneof"))
	r.min, _ = strconv.ParseInt(f.Tag.Get("min"), 10, 64)
	return r
}

// find returns the field of a dotted key that is not inside a list or map.
func find(v reflect.Value, key string) (boundField, bool) {
	name, rest, deeper := strings.Cut(key, ".")
	f, ok := field(v, name)
	if !ok || !deeper {
		return f, ok
	}
	if f.value.Kind() != reflect.Struct {
		return boundField{}, false
	}
	return find(f.value, rest)
}

type scope struct{ agent, project bool }

// scopeOf says which files may set a key: the tags on the way to it decide. A
// section that holds a key for projects may be opened by them.
func scopeOf(key string) scope {
	var s scope
	t := reflect.TypeFor[Config]()
	for name := range strings.SplitSeq(key, ".") {
		name, _, _ = strings.Cut(name, "[")
		if t.Kind() != reflect.Struct {
			break
		}
		next := t
		fields(t, func(n string, f reflect.StructField) {
			if n != name {
				return
			}
			tag := f.Tag.Get("scope")
			s.agent = s.agent || strings.Contains(tag, "agent")
			s.project = s.project || strings.Contains(tag, "project")
			next = f.Type
		})
		t = next
	}
	if !s.project && t.Kind() == reflect.Struct && t != reflect.TypeFor[Config]() {
		s.project = opens(t)
	}
	return s
}

func opens(t reflect.Type) bool {
	found := false
	fields(t, func(_ string, f reflect.StructField) {
		found = found || strings.Contains(f.Tag.Get("scope"), "project")
	})
	return found
}

// keys yields every key that is one value: what an environment variable can set.
func keys(v reflect.Value, prefix string, yield func(key string, f boundField)) {
	fields(v.Type(), func(name string, sf reflect.StructField) {
		key, fv := join(prefix, name), v.FieldByName(sf.Name)
		if fv.Kind() == reflect.Struct {
			keys(fv, key, yield)
			return
		}
		yield(key, boundField{fv, rulesOf(sf)})
	})
}

func join(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
}

func head(s []string, n int) []string { return s[:min(n, len(s))] }

// suggest names the key that was probably meant.
func suggest(name string, known []string) string {
	best, at := "", 3
	for _, k := range known {
		if d := distance(name, k); d < at {
			best, at = k, d
		}
	}
	if best != "" {
		return "; did you mean " + best + "?"
	}
	return "; known are " + strings.Join(known, ", ")
}

// distance counts the single-letter changes from a to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diag
			if a[i] != b[j] {
				cost = 1 + min(diag, row[j], row[j+1])
			}
			diag, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
