package config

import (
	"fmt"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"rookery/protocol"
)

// setText reads text into v, as a variable or a flag spells it, and returns what
// is wrong with it, or "".
func setText(v reflect.Value, text string, r rules) string {
	switch {
	case v.Type() == reflect.TypeFor[time.Duration]():
		return setDuration(v, text, r)
	case v.Kind() == reflect.String:
		if p := r.problem(text); p != "" {
			return p
		}
		v.SetString(text)
	case v.Kind() == reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Sprintf("%q is not true or false", text)
		}
		v.SetBool(b)
	case v.CanInt():
		return setInt(v, text, r)
	case v.CanFloat():
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || f != f || f < 0 {
			return fmt.Sprintf("%q is not a number of at least 0", text)
		}
		v.SetFloat(f)
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.String:
		return setList(v, text, r)
	case v.Kind() == reflect.Map && v.Type().Key().Kind() == reflect.String && scalarKind(v.Type().Elem()):
		return setMap(v, text, r)
	default:
		return "can only be set in a file"
	}
	return ""
}

func scalarKind(t reflect.Type) bool {
	return t.Kind() != reflect.Struct && t.Kind() != reflect.Interface && t.Kind() != reflect.Map
}

func setDuration(v reflect.Value, text string, r rules) string {
	if r.off && (text == "off" || text == "-1") {
		v.SetInt(Off)
		return ""
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil && r.off:
		return fmt.Sprintf("%q is not a duration; write one with its unit, as 90s or 5m, or off", text)
	case err != nil:
		return fmt.Sprintf("%q is not a duration; write one with its unit, as 90s or 5m", text)
	case d <= 0 && !r.off:
		return fmt.Sprintf("%s is too short; it can't be switched off", text)
	case d <= 0:
		d = Off
	}
	v.SetInt(int64(d))
	return ""
}

func setInt(v reflect.Value, text string, r rules) string {
	if r.off && text == "off" {
		v.SetInt(Off)
		return ""
	}
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil || v.OverflowInt(n):
		return fmt.Sprintf("%q is not a whole number", text)
	case r.off && n <= 0:
		n = Off
	case !r.off && n < r.min:
		return fmt.Sprintf("%d is too small; at least %d", n, r.min)
	}
	v.SetInt(n)
	return ""
}

// setList reads a,b,c.
func setList(v reflect.Value, text string, r rules) string {
	out := reflect.MakeSlice(v.Type(), 0, 4)
	for word := range strings.SplitSeq(text, ",") {
		word = strings.TrimSpace(word)
		if word == "" {
			continue
		}
		if p := r.problem(word); p != "" {
			return p
		}
		out = reflect.Append(out, reflect.ValueOf(word).Convert(v.Type().Elem()))
	}
	v.Set(out)
	return ""
}

// setMap reads k=v,k=v and lays it over what is there.
func setMap(v reflect.Value, text string, r rules) string {
	out := reflect.MakeMap(v.Type())
	for _, k := range v.MapKeys() {
		out.SetMapIndex(k, v.MapIndex(k))
	}
	for pair := range strings.SplitSeq(text, ",") {
		name, val, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok {
			return fmt.Sprintf("%q is not NAME=VALUE", pair)
		}
		if p := checks[r.keys].problem(name); p != "" {
			return p
		}
		e := reflect.New(v.Type().Elem()).Elem()
		if p := setText(e, val, r); p != "" {
			return p
		}
		out.SetMapIndex(reflect.ValueOf(name), e)
	}
	v.Set(out)
	return ""
}

// rules are what the tags of a field ask of its value; those of a list or map
// hold for each element.
type rules struct {
	oneof       []string
	check, keys string
	off         bool
	min         int64
}

func (r rules) problem(s string) string {
	if len(r.oneof) > 0 {
		if slices.Contains(r.oneof, s) {
			return ""
		}
		return fmt.Sprintf("%q is not one of %s", s, strings.Join(r.oneof, ", "))
	}
	if s == "" {
		return "" // empty is the default, where there is one
	}
	return checks[r.check].problem(s)
}

type check func(string) string

func (c check) problem(s string) string {
	if c == nil {
		return ""
	}
	return c(s)
}

//nolint:gochecknoglobals // a table of constants
var (
	toolShape = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	varShape  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

	checks = map[string]check{
		"id": func(s string) string {
			if _, err := protocol.ParseID(s); err != nil {
				return err.Error()
			}
			return ""
		},
		"tool": func(s string) string {
			if !toolShape.MatchString(s) {
				return fmt.Sprintf("%.80q is not a tool's name: 1 to 64 letters, digits, _ or -", s)
			}
			return ""
		},
		"variable": func(s string) string {
			if !varShape.MatchString(s) {
				return "is not a variable's name; write the name of the variable that holds the key, never the key"
			}
			return ""
		},
		"url": func(s string) string {
			u, err := url.Parse(s)
			if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
				return fmt.Sprintf("%.200q is not an http or https URL, as http://127.0.0.1:11434/v1", s)
			}
			return ""
		},
	}
)
