package config_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/config"
	"rookery/protocol"
)

func TestFindModel(t *testing.T) {
	const models = "models:\n  - {name: hosted, base_url: https://h.example/v1, model: big, api_key_env: H_KEY}\n  - {name: local, base_url: http://127.0.0.1:1/v1}\n"
	for name, c := range map[string]struct {
		environ []string
		ask     string
		want    config.Model // name, base URL, id and key are compared
		err     error
	}{
		"entry":              {[]string{"H_KEY=k"}, "hosted", config.Model{Name: "hosted", BaseURL: "https://h.example/v1", ID: "big", APIKey: "k"}, nil},
		"entry, no key set":  {nil, "hosted", config.Model{}, config.ErrNoKey},
		"entry without key":  {[]string{"OPENAI_API_KEY=other"}, "local", config.Model{Name: "local", BaseURL: "http://127.0.0.1:1/v1", ID: "local"}, nil},
		"from environment":   {[]string{"OPENAI_API_KEY=k", "ROOKERY_MODEL=gpt"}, "", config.Model{Name: "gpt", BaseURL: "https://api.openai.com/v1", ID: "gpt", APIKey: "k"}, nil},
		"endpoint, no key":   {[]string{"OPENAI_BASE_URL=http://127.0.0.1:2/v1"}, "m", config.Model{Name: "m", BaseURL: "http://127.0.0.1:2/v1", ID: "m"}, nil},
		"nothing configured": {nil, "gpt", config.Model{}, config.ErrNoModel},
		"none chosen":        {[]string{"OPENAI_API_KEY=k"}, "", config.Model{}, config.ErrNoModel},
		"demo":               {nil, "demo", config.Model{Name: "demo", ID: "demo"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := load(t, place{user: models, environ: c.environ}).FindModel(c.ask)
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.want, config.Model{Name: m.Name, BaseURL: m.BaseURL, ID: m.ID, APIKey: m.APIKey})
		})
	}
}

func TestPolicy_PoolThenToolsThenDefault(t *testing.T) {
	c := load(t, place{user: `
tools:
  permissions: {fetch: r, exec_command: r}
  idempotent: {fetch: true, write_file: false}
pools:
  lab:
    tools:
      exec_command: {idempotent: true}
      read_file: {permission: rw}
`})
	ro, rw := protocol.ReadOnly, protocol.ReadWrite
	for key, want := range map[[2]string]config.Policy{
		{"default", "read_file"}:    {Permission: ro, Idempotent: true},
		{"default", "edit_file"}:    {Permission: rw},
		{"default", "unheard_of"}:   {Permission: rw},
		{"default", "write_file"}:   {Permission: rw},
		{"default", "fetch"}:        {Permission: ro, Idempotent: true},
		{"default", "exec_command"}: {Permission: ro},
		{"lab", "exec_command"}:     {Permission: rw, Idempotent: true},
		{"lab", "read_file"}:        {Permission: rw},
		{"lab", "fetch"}:            {Permission: ro, Idempotent: true},
	} {
		require.Equal(t, want, c.Policy(key[0], key[1]), key)
	}
}
