package tool

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// A tracer looks for a schema that leads to itself without going into the value: the
// library would follow it until the stack is full, which nothing can recover from.
type tracer struct {
	root any
	open map[string]bool // places on the way here
	done map[string]bool
}

// loops reports such a schema, and references that it can't follow.
func loops(text json.RawMessage) error {
	w := tracer{open: map[string]bool{}, done: map[string]bool{}}
	if err := json.Unmarshal(text, &w.root); err != nil {
		return err
	}
	return w.all(w.root, "")
}

// all starts at every place of a document.
func (w *tracer) all(v any, at string) error {
	if err := w.enter(v, at); err != nil {
		return err
	}
	switch v := v.(type) {
	case map[string]any:
		for k, child := range v {
			if err := w.all(child, at+"/"+escape(k)); err != nil {
				return err
			}
		}
	case []any:
		for i, child := range v {
			if err := w.all(child, at+"/"+strconv.Itoa(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// enter follows what is checked against the same value as the schema at a place.
func (w *tracer) enter(v any, at string) error {
	s, ok := v.(map[string]any)
	if !ok || w.done[at] {
		return nil
	}
	if w.open[at] {
		return fmt.Errorf("the schema at #%s refers to itself for the same value", at)
	}
	w.open[at] = true
	for _, k := range []string{"allOf", "anyOf", "oneOf"} {
		list, _ := s[k].([]any)
		for i, child := range list {
			if err := w.enter(child, at+"/"+k+"/"+strconv.Itoa(i)); err != nil {
				return err
			}
		}
	}
	for _, k := range []string{"not", "if", "then", "else"} {
		if err := w.enter(s[k], at+"/"+k); err != nil {
			return err
		}
	}
	named, _ := s["dependentSchemas"].(map[string]any)
	for k, child := range named {
		if err := w.enter(child, at+"/dependentSchemas/"+escape(k)); err != nil {
			return err
		}
	}
	for _, k := range []string{"$ref", "$dynamicRef"} {
		if ref, ok := s[k].(string); ok {
			if err := w.follow(ref); err != nil {
				return err
			}
		}
	}
	delete(w.open, at)
	w.done[at] = true
	return nil
}

func (w *tracer) follow(ref string) error {
	pointer, local := strings.CutPrefix(ref, "#")
	pointer, err := url.PathUnescape(pointer)
	if err != nil || !local || pointer != "" && pointer[0] != '/' {
		return fmt.Errorf("reference %q: only # and #/… are followed", ref)
	}
	v := w.root
	for _, step := range strings.Split(pointer, "/")[1:] {
		step = strings.NewReplacer("~1", "/", "~0", "~").Replace(step)
		switch at := v.(type) {
		case map[string]any:
			v = at[step]
		case []any:
			if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(at) {
				v = at[i]
			}
		}
	}
	return w.enter(v, pointer)
}

func escape(step string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(step) }
