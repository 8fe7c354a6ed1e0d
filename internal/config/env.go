package config

import (
	"errors"
	"reflect"
	"slices"
	"strings"
)

// foreign lists variables of others that set a key of ours. ROOKERY_ and the
// key's own name wins over them.
//
//nolint:gochecknoglobals // a table of constants
var foreign = map[string]string{
	"NATS_URL":        "server",
	"NATS_CREDS":      "creds",
	"NATS_CONTEXT":    "context",
	"OPENAI_BASE_URL": "base_url",
}

// ours lists ROOKERY_ variables that are no settings.
//
//nolint:gochecknoglobals // a table of constants
var ours = []string{"ROOKERY_CONFIG", "ROOKERY_CALL_ID", "ROOKERY_CRASH", "ROOKERY_EXIT_IDLE", "ROOKERY_STREAMS"}

func environment(environ []string) map[string]string {
	env := make(map[string]string, len(environ))
	for _, kv := range environ {
		if k, v, ok := strings.Cut(kv, "="); ok {
			env[k] = v
		}
	}
	return env
}

// variable is ROOKERY_ and the key in capitals, dots as underscores.
func variable(key string) string {
	return "ROOKERY_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// readEnv reads the variables. An empty one sets nothing. One of ours that names
// no key is a warning: it may belong to another version.
func (c *Config) readEnv(env map[string]string) error {
	byKey := map[string]string{}
	for name, key := range foreign {
		if env[name] != "" {
			byKey[key] = name
		}
	}
	known := slices.Clone(ours)
	keys(reflect.ValueOf(c).Elem(), "", func(key string, _ boundField) {
		name := variable(key)
		known = append(known, name)
		if env[name] != "" {
			byKey[key] = name
		}
	})
	var faults []error
	for _, key := range sorted(byKey) {
		name := byKey[key]
		faults = append(faults, c.setText(key, env[name], Origin{Layer: LayerEnvironment, Name: name}))
	}
	if env["NO_COLOR"] != "" && byKey["color"] == "" {
		faults = append(faults, c.setText("color", "never", Origin{Layer: LayerEnvironment, Name: "NO_COLOR"}))
	}
	for _, name := range sorted(env) {
		if strings.HasPrefix(name, "ROOKERY_") && !slices.Contains(known, name) {
			c.Warnings = append(c.Warnings, "environment "+name+" sets nothing"+suggest(name, known))
		}
	}
	return errors.Join(faults...)
}

func (c *Config) readFlags(flags map[string]string) error {
	var faults []error
	for _, key := range sorted(flags) {
		name := strings.NewReplacer("_", "-", ".", "-").Replace(key)
		faults = append(faults, c.setText(key, flags[key], Origin{Layer: LayerFlag, Name: name}))
	}
	return errors.Join(faults...)
}

func (c *Config) setText(key, text string, o Origin) error {
	f, ok := find(reflect.ValueOf(c).Elem(), key)
	if !ok {
		return &SettingError{Place: o.String(), Key: key, Problem: "is not a setting"}
	}
	if p := setText(f.value, text, f.rules); p != "" {
		return &SettingError{Place: o.String(), Key: key, Problem: p}
	}
	c.origins[key] = o
	return nil
}

func sorted(m map[string]string) []string {
	ks := make([]string, 0, len(m))
	for k := range m {
		ks = append(ks, k)
	}
	slices.Sort(ks)
	return ks
}
