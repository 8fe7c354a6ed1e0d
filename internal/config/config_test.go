package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/config"
)

// A place holds the files of one case: user, system and project text, "" = none.
type place struct {
	user, system, project string
	environ               []string
	flags                 map[string]string
}

func (p place) sources(t *testing.T) config.Sources {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "system_config.yaml"), p.system)
	write(t, filepath.Join(dir, "config.yaml"), p.user)
	write(t, filepath.Join(dir, "ws", ".rookery", "config.yaml"), p.project)
	return config.Sources{
		File:      filepath.Join(dir, "config.yaml"),
		Workspace: filepath.Join(dir, "ws"),
		Environ:   append([]string{}, p.environ...),
		Flags:     p.flags,
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func load(t *testing.T, p place) *config.Config {
	t.Helper()
	c, err := config.Load(p.sources(t))
	require.NoError(t, err)
	return c
}

func TestLoad_NothingSetGivesTheLoopsConstants(t *testing.T) {
	c := load(t, place{})
	require.Equal(t, 100, c.MaxTurns)
	require.Equal(t, config.Retry{Reconnects: 2, Backoff: 250 * time.Millisecond, RetryAfterCap: 30 * time.Second}, c.Retry)
	require.EqualValues(t, 128000, c.Compaction.MaxContextLength)
	require.Equal(t, config.Off, c.Compaction.MaxSessionTurns)
	require.Equal(t, "summarize", c.Compaction.Mode)
	require.Equal(t, 120*time.Second, c.Tools.Timeout)
	require.Equal(t, 16000, c.Tools.MaxOutputLength)
	require.Equal(t, 120*time.Second, c.Request.IdleTimeout)
	require.Equal(t, 600*time.Second, c.Request.ProgressTimeout)
	require.Equal(t, 10*time.Minute, c.Tools.QueueTimeout)
	require.Equal(t, time.Minute, c.Tools.PinnedQueueTimeout)
	require.Equal(t, 2*time.Minute, c.Tools.UnreachableGrace)
	for _, s := range c.Settings() {
		require.Equal(t, "default", s.Origin.String(), s.Key)
	}
}

func TestLoad_LaterLayersWinKeyByKey(t *testing.T) {
	full := place{
		system:  "max_turns: 1\ncompaction:\n  mode: discard\n  max_session_turns: 7\nretry: {reconnects: 9}\n",
		user:    "max_turns: 2\nmodel: u\n",
		project: "max_turns: 3\ncompaction:\n  mode: 'off'\n",
		environ: []string{"ROOKERY_MAX_TURNS=4", "ROOKERY_MODEL=e"},
		flags:   map[string]string{"max_turns": "5"},
	}
	steps := []struct {
		drop   func(*place)
		turns  int
		origin string
	}{
		{func(*place) {}, 5, "flag --max-turns"},
		{func(p *place) { p.flags = nil }, 4, "environment ROOKERY_MAX_TURNS"},
		{func(p *place) { p.environ = p.environ[1:] }, 3, ".rookery/config.yaml:1"},
		{func(p *place) { p.project = "" }, 2, "/config.yaml:1"},
		{func(p *place) { p.user = "" }, 1, "/system_config.yaml:1"},
		{func(p *place) { p.system = "" }, 100, "default"},
	}
	for i, s := range steps {
		s.drop(&full)
		c := load(t, full)
		require.Equal(t, s.turns, c.MaxTurns)
		require.True(t, strings.HasSuffix(c.Origin("max_turns").String(), s.origin), c.Origin("max_turns"))
		if i == 0 {
			require.Equal(t, "e", c.Model)
			require.Equal(t, "off", c.Compaction.Mode)
			require.Equal(t, 7, c.Compaction.MaxSessionTurns)
			require.Equal(t, 9, c.Retry.Reconnects)
			require.Equal(t, 250*time.Millisecond, c.Retry.Backoff)
			require.Equal(t, config.LayerProject, c.Origin("compaction.mode").Layer)
			require.Equal(t, config.LayerProject, c.Origin("compaction").Layer)
		}
	}
}

func TestLoad_EveryKindOfValue(t *testing.T) {
	c := load(t, place{user: `
# everything that differs from a number
server: nats://a:4222, nats://b:4222
approve: ask
timeout: 90m
json_log: true
worker:
  allow: [/srv/a, /srv/b]
  labels: {gpu: "yes"}
  slots: 4
pools:
  heavy:
    tools:
      exec_command: {permission: r, idempotent: true}
models:
  - name: local
    base_url: http://127.0.0.1:11434/v1
    model: qwen
    context_window: 32768
    stream_usage: false
    temperature: 0
    thinking_body: {high: {think: true}}
    replay_reasoning: never
    extra_headers: {X-Team: a}
    extra_body: {options: {num_ctx: 4096}, list: [1, two]}
    idle_timeout: 10m
    prices: {cache_write: 1, output: 2.5}
  - name: hosted
system_prompt: |
  You count words.
tools:
  timeouts: {exec_command: 10m, other: off}
  permissions: {other: r}
`, environ: []string{"ROOKERY_WORKER_LABELS=disk=fast", "ROOKERY_WORKER_SLOTS=8"}})
	require.Equal(t, []string{"nats://a:4222", "nats://b:4222"}, c.Server)
	require.Equal(t, 90*time.Minute, c.Timeout)
	require.True(t, c.JSONLog)
	require.Equal(t, []string{"/srv/a", "/srv/b"}, c.Worker.Allow)
	require.Equal(t, map[string]string{"gpu": "yes", "disk": "fast"}, c.Worker.Labels)
	require.Equal(t, 8, c.Worker.Slots)
	require.Equal(t, "You count words.\n", c.SystemPrompt)
	require.Equal(t, map[string]time.Duration{"exec_command": 10 * time.Minute, "other": config.Off}, c.Tools.Timeouts)

	m, err := c.FindModel("local")
	require.NoError(t, err)
	require.Equal(t, "qwen", m.ID)
	require.False(t, *m.StreamUsage)
	require.Nil(t, m.ParallelToolCalls)
	require.Zero(t, *m.Temperature)
	require.Equal(t, map[string]map[string]any{"high": {"think": true}}, m.ThinkingBody)
	require.Equal(t, 10*time.Minute, m.IdleTimeout)
	require.Equal(t, c.Request.ProgressTimeout, m.ProgressTimeout)
	require.Equal(t, config.Prices{CacheWrite: 1, Output: 2.5}, m.Prices)
	require.Equal(t, "a", m.ExtraHeaders["X-Team"])
	require.Equal(t, []any{uint64(1), "two"}, m.ExtraBody["list"])
	require.Equal(t, "/config.yaml:16", suffix(c.Origin("models"), 16))
}

func suffix(o config.Origin, n int) string {
	s := o.String()
	return s[max(0, len(s)-n+1):]
}

func TestLoad_ZeroAndNegativeSwitchALimitOff(t *testing.T) {
	for _, v := range []string{"0", "-1", "off"} {
		c := load(t, place{system: "max_turns: " + v + "\ntools:\n  timeout: " + v + "\n  max_output_length: " + v + "\ncompaction:\n  max_context_length: " + v + "\n"})
		require.Equal(t, config.Off, c.MaxTurns, v)
		require.EqualValues(t, config.Off, c.Tools.Timeout, v)
		require.Equal(t, config.Off, c.Tools.MaxOutputLength, v)
		require.EqualValues(t, config.Off, c.Compaction.MaxContextLength, v)
	}
}

func TestLoad_FaultsNamePlaceKeyAndRemedy(t *testing.T) {
	for name, c := range map[string]struct {
		place
		want string // CONFIG, SYSTEM and PROJECT stand for the files
	}{
		"unknown key":         {place{user: "model: a\nmax_turn: 3\n"}, "CONFIG:2:1: max_turn: is not a key here; did you mean max_turns?"},
		"unknown nested":      {place{system: "compaction:\n  modes: discard\n"}, "SYSTEM:2:3: compaction.modes: is not a key here; did you mean mode?"},
		"unknown far off":     {place{system: "retry:\n  colour: red\n"}, "SYSTEM:2:3: retry.colour: is not a key here; known are reconnects, backoff, retry_after_cap"},
		"unknown in list":     {place{user: "models:\n  - name: a\n    url: http://x\n"}, "CONFIG:3:5: models[0].url: is not a key here"},
		"text for number":     {place{user: "max_turns: many\n"}, `CONFIG:1:12: max_turns: is a text; it must be a whole number`},
		"fraction for number": {place{user: "max_turns: 1.5\n"}, `CONFIG:1:12: max_turns: is a number; it must be a whole number`},
		"number for text":     {place{user: "model: 5\n"}, `CONFIG:1:8: model: is a whole number; put it in quotes to make it a text`},
		"number for bool":     {place{user: "json_log: 1\n"}, `CONFIG:1:11: json_log: is a whole number; it must be a boolean`},
		"list for text":       {place{user: "model: [a]\n"}, `model: is a list; it must be a text`},
		"text for section":    {place{user: "retry: often\n"}, `CONFIG:1:8: retry: must hold keys, one a line, as "reconnects: …, backoff: …`},
		"text for models":     {place{user: "models: gpt\n"}, `CONFIG:1:9: models: must be a list`},
		"duration unit":       {place{user: "timeout: 90\n"}, `CONFIG:1:10: timeout: is a whole number; write a duration with its unit, as 90s or 5m`},
		"no duration":         {place{user: "timeout: soon\n"}, `CONFIG:1:10: timeout: "soon" is not a duration; write one with its unit, as 90s or 5m, or off`},
		"never off":           {place{user: "retry: {backoff: 0s}\n"}, `retry.backoff: 0s is too short; it can't be switched off`},
		"one of":              {place{user: "approve: always\n"}, `CONFIG:1:10: approve: "always" is not one of allow-all, deny-all, read-only, ask`},
		"map value":           {place{user: "tools:\n  permissions:\n    a: x\n"}, `CONFIG:3:8: tools.permissions.a: "x" is not one of r, rw`},
		"map key":             {place{user: "pools:\n  a.b: {}\n"}, `CONFIG:2:3: pools.a.b: "a.b" is not an id`},
		"key in file":         {place{user: "models:\n  - {name: a, api_key_env: sk-123}\n"}, `models[0].api_key_env: is not a variable's name; write the name of the variable that holds the key, never the key`},
		"url":                 {place{user: "base_url: 127.0.0.1/v1\n"}, `CONFIG:1:11: base_url: "127.0.0.1/v1" is not an http or https URL`},
		"same model twice":    {place{user: "models:\n  - name: a\n  - name: a\n"}, `CONFIG:3: models[1].name: "a" is the name of an earlier model, too`},
		"model without name":  {place{user: "models:\n  - model: a\n"}, `CONFIG:2: models[0].name: is missing`},
		"demo is taken":       {place{user: "models:\n  - name: demo\n"}, `CONFIG:2: models[0].name: demo is built in`},
		"same key twice":      {place{user: "model: a\nmodel: b\n"}, `CONFIG:2:1: is not YAML:`},
		"no yaml":             {place{user: "model: a\n  b: [c\n"}, `is not YAML:`},
		"two documents":       {place{user: "model: a\n---\nmodel: b\n"}, `CONFIG: holds more than one document; write one`},
		"alias":               {place{user: "model: &a b\nprefix: *a\n"}, `anchors, aliases and tags are not read here`},
		"user key in system":  {place{system: "model: a\n"}, `SYSTEM:1:1: model: is not a setting of the agent; set it in config.yaml beside this file`},
		"too large":           {place{user: strings.Repeat("# comment\n", 30000)}, `CONFIG: has 300000 bytes; at most 262144 are read`},
		"variable":            {place{environ: []string{"ROOKERY_MAX_TURNS=x"}}, `environment ROOKERY_MAX_TURNS: max_turns: "x" is not a whole number`},
		"foreign variable":    {place{environ: []string{"OPENAI_BASE_URL=x"}}, `environment OPENAI_BASE_URL: base_url: "x" is not an http or https URL`},
		"variable of a list":  {place{environ: []string{"ROOKERY_MODELS=x"}}, `environment ROOKERY_MODELS: models: can only be set in a file`},
		"flag":                {place{flags: map[string]string{"max_turns": "x"}}, `flag --max-turns: max_turns: "x" is not a whole number`},
		"flag without key":    {place{flags: map[string]string{"turns": "1"}}, `flag --turns: turns: is not a setting`},
	} {
		t.Run(name, func(t *testing.T) {
			src := c.sources(t)
			_, err := config.Load(src)
			require.Error(t, err)
			dir := filepath.Dir(src.File)
			got := strings.NewReplacer(
				filepath.Join(dir, "ws/.rookery/config.yaml"), "PROJECT",
				filepath.Join(dir, "system_config.yaml"), "SYSTEM", src.File, "CONFIG").Replace(err.Error())
			require.Contains(t, got, c.want)
		})
	}
}

func TestLoad_TellsAllFaultsAtOnce(t *testing.T) {
	_, err := config.Load(place{user: "a1: 1\nmax_turns: x\n", environ: []string{"ROOKERY_COLOR=red"}}.sources(t))
	require.Len(t, strings.Split(err.Error(), "\n"), 3)
	var f *config.SettingError
	require.ErrorAs(t, err, &f)
	require.Equal(t, "a1", f.Key)
}

func TestLoad_AUserFileThatWasNamedMustExist(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.yaml")
	for name, src := range map[string]config.Sources{
		"flag":        {File: missing, Environ: []string{}},
		"environment": {Environ: []string{"ROOKERY_CONFIG=" + missing}},
	} {
		_, err := config.Load(src)
		require.ErrorContains(t, err, missing+": can't be read: no such file", name)
	}
}

func TestLoad_WarnsOfVariablesThatSetNothing(t *testing.T) {
	c := load(t, place{environ: []string{"ROOKERY_MAX_TURN=3", "ROOKERY_CALL_ID=s/1-0", "NO_COLOR=1"}})
	require.Equal(t, []string{"environment ROOKERY_MAX_TURN sets nothing; did you mean ROOKERY_MAX_TURNS?"}, c.Warnings)
	require.Equal(t, "never", c.Color)
	require.Equal(t, "environment NO_COLOR", c.Origin("color").String())
}
