package bus_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/bus"
	"rookery/protocol"
)

// sections reads subjects.md: what stands under each heading of a subject.
func sections(t *testing.T) map[string]string {
	t.Helper()
	doc, err := os.ReadFile("../../subjects.md")
	require.NoError(t, err)
	all := map[string]string{}
	for part := range strings.SplitSeq(string(doc), "\n### `") {
		name, rest, ok := strings.Cut(part, "`\n")
		if ok && strings.HasPrefix(name, "rk.") || strings.HasPrefix(name, "$KV.") {
			rest, _, _ = strings.Cut(rest, "\n## ")
			all[name] = rest
		}
	}
	return all
}

func TestCatalog_AndSubjectsMDSayTheSame(t *testing.T) {
	doc := sections(t)
	for _, s := range bus.Catalog() {
		t.Run(s.Name, func(t *testing.T) {
			text, ok := doc[s.Name]
			require.True(t, ok, "subjects.md has no section of it")
			kind := strings.TrimSpace(s.Kind + " " + s.Stream)
			row := fmt.Sprintf("\n| %s | %s | %s | %s | %s | %s |\n", kind, s.From, s.To, s.Order, s.Delivery, s.Restart)
			require.Contains(t, text, row)
			var examples []string
			for i, block := range strings.Split(text, "```") {
				if i%2 == 1 {
					examples = append(examples, strings.TrimSpace(strings.TrimPrefix(block, "json\n")))
				}
			}
			var types []any
			for _, v := range []any{s.Payload, s.Reply} {
				if v != nil {
					types = append(types, v)
				}
			}
			require.Len(t, examples, len(types))
			for i, example := range examples {
				requireExample(t, types[i], example)
			}
		})
		delete(doc, s.Name)
	}
	require.Empty(t, doc, "not in the catalog")
}

// requireExample demands that an example has no field that its type has not, and
// nothing that the type would write otherwise.
func requireExample(t *testing.T, zero any, example string) {
	t.Helper()
	if _, ok := zero.([]protocol.Message); ok {
		ms, err := protocol.DecodeLines([]byte(example))
		require.NoError(t, err)
		require.NotEmpty(t, ms)
		for _, m := range ms {
			require.NotEqual(t, "Unknown", reflect.TypeOf(m.Payload).Name())
			require.Equal(t, string(m.Encode()), string(m.With(m.Payload).Encode()))
		}
		return
	}
	v := reflect.New(reflect.TypeOf(zero))
	dec := json.NewDecoder(bytes.NewReader([]byte(example)))
	dec.DisallowUnknownFields()
	require.NoError(t, dec.Decode(v.Interface()), example)
	require.Equal(t, example, string(protocol.Encode(v.Elem().Interface())))
}

func TestCatalog_NamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range bus.Catalog() {
		require.False(t, seen[s.Name], s.Name)
		seen[s.Name] = true
		require.NotEmpty(t, s.Order+s.Delivery+s.Restart+s.From+s.To)
	}
}
