package config

import (
	"errors"
	"fmt"
	"time"
)

// Demo is the name of the built-in model that needs no endpoint.
const Demo = "demo"

// Reasons why a model can't be had.
var (
	// ErrNoModel reports that none was chosen, or that its name is not configured.
	ErrNoModel = errors.New("model is not configured")
	// ErrNoKey reports that the variable with the endpoint's key is not set.
	ErrNoKey = errors.New("API key is not set")
)

// A Model is an endpoint and how to speak to it. The zero value of a flag is what
// suits most endpoints.
type Model struct {
	Name    string `yaml:"name"`
	BaseURL string `yaml:"base_url" check:"url"`
	// ID is what the endpoint calls it; empty = Name.
	ID string `yaml:"model"`
	// APIKeyEnv names the variable with the key; empty = no key is sent.
	APIKeyEnv string `yaml:"api_key_env" check:"variable"`
	// ContextWindow is its size in tokens; 0 = unknown.
	ContextWindow int `yaml:"context_window" min:"0"`
	// MaxTokens caps an answer; 0 = the endpoint's default.
	MaxTokens int    `yaml:"max_tokens" min:"0"`
	Thinking  string `yaml:"thinking" oneof:"none low medium high xhigh"`

	// Provider names the endpoint in traces; empty = its host.
	Provider string `yaml:"provider"`
	// StreamUsage asks for usage in the stream. nil = yes, and no after a refusal.
	StreamUsage *bool `yaml:"stream_usage"`
	// MaxTokensField is the name under which MaxTokens is sent; empty = max_tokens.
	MaxTokensField string `yaml:"max_tokens_field" oneof:"max_tokens max_completion_tokens"`
	// ReplayReasoning says whether thinking goes back in later requests; empty =
	// field, in the field it came in.
	ReplayReasoning string `yaml:"replay_reasoning" oneof:"never field always"`
	// ThinkTags reads a <think> block at the start of a text as thinking. nil = yes.
	ThinkTags *bool `yaml:"think_tags"`
	// IDRule alnum9 makes call ids of nine letters and digits; empty = any.
	IDRule            string   `yaml:"id_rule" oneof:"any alnum9"`
	ParallelToolCalls *bool    `yaml:"parallel_tool_calls"`
	Temperature       *float64 `yaml:"temperature"`
	// ThinkingBody holds what each thinking level adds to a request, in place of
	// reasoning_effort.
	ThinkingBody map[string]map[string]any `yaml:"thinking_body"`
	ExtraHeaders map[string]string         `yaml:"extra_headers"`
	ExtraBody    map[string]any            `yaml:"extra_body"`
	// Azure makes URL and authentication those of Azure OpenAI.
	Azure      bool   `yaml:"azure"`
	APIVersion string `yaml:"api_version"`
	// Proxy honours HTTP_PROXY and its kin.
	Proxy bool `yaml:"proxy"`
	// IdleTimeout and ProgressTimeout differ from those of Request; 0 = the same.
	IdleTimeout     time.Duration `yaml:"idle_timeout" off:"yes"`
	ProgressTimeout time.Duration `yaml:"progress_timeout" off:"yes"`
	// FinishGrace is how long usage is waited for behind an answer; 0 = 5 s.
	FinishGrace time.Duration `yaml:"finish_grace" off:"yes"`
	Prices      Prices        `yaml:"prices"`

	// APIKey comes from the environment, when the model is asked for.
	APIKey string `yaml:"-" json:"-"`
}

// Prices are in money for a million tokens.
type Prices struct {
	CacheRead  float64 `yaml:"cache_read"`
	CacheWrite float64 `yaml:"cache_write"`
	Output     float64 `yaml:"output"`
}

// FindModel returns the model of that name, "" being the configured one, with its
// key. A name without an entry is a model id at BaseURL, if that endpoint or its
// key was configured. Errors: ErrNoModel, ErrNoKey.
func (c *Config) FindModel(name string) (Model, error) {
	if name == "" {
		name = c.Model
	}
	switch name {
	case "":
		return Model{}, fmt.Errorf("%w: choose one with -m, ROOKERY_MODEL or model in %s; -m %s needs no key", ErrNoModel, c.userFile, Demo)
	case Demo:
		return Model{Name: Demo, ID: Demo}, nil
	}
	for _, m := range c.Models {
		if m.Name == name {
			return c.withKey(c.filled(m))
		}
	}
	m := c.filled(Model{Name: name, BaseURL: c.BaseURL, APIKeyEnv: c.APIKeyEnv})
	key := c.getenv(m.APIKeyEnv)
	switch configured := c.Origin("base_url").Layer != LayerDefault; {
	case key == "" && !configured:
		return Model{}, fmt.Errorf("%w: %q has no entry in %s, and neither %s nor OPENAI_BASE_URL is set; -m %s needs no key",
			ErrNoModel, name, c.userFile, m.APIKeyEnv, Demo)
	case key == "": // an endpoint of one's own often has no key
		return m, nil
	}
	m.APIKey = key
	return m, nil
}

func (c *Config) withKey(m Model) (Model, error) {
	if m.APIKeyEnv == "" {
		return m, nil
	}
	if m.APIKey = c.getenv(m.APIKeyEnv); m.APIKey == "" {
		return Model{}, fmt.Errorf("%w: model %s takes it from the variable %s", ErrNoKey, m.Name, m.APIKeyEnv)
	}
	return m, nil
}

func (c *Config) filled(m Model) Model {
	if m.ID == "" {
		m.ID = m.Name
	}
	if m.BaseURL == "" {
		m.BaseURL = c.BaseURL
	}
	if m.IdleTimeout == 0 {
		m.IdleTimeout = c.Request.IdleTimeout
	}
	if m.ProgressTimeout == 0 {
		m.ProgressTimeout = c.Request.ProgressTimeout
	}
	if m.Thinking == "" {
		m.Thinking = c.Thinking
	}
	return m
}

func (c *Config) checkModels() error {
	var faults []error
	seen := map[string]bool{Demo: true}
	for i, m := range c.Models {
		key := fmt.Sprintf("models[%d].name", i)
		o, ok := c.origins[key]
		if !ok {
			o = c.Origin("models")
		}
		switch {
		case m.Name == "":
			faults = append(faults, &SettingError{Place: o.String(), Key: key, Problem: "is missing; every model needs a name"})
		case m.Name == Demo:
			faults = append(faults, &SettingError{Place: o.String(), Key: key, Problem: Demo + " is built in; choose another name"})
		case seen[m.Name]:
			faults = append(faults, &SettingError{Place: o.String(), Key: key, Problem: fmt.Sprintf("%q is the name of an earlier model, too", m.Name)})
		}
		seen[m.Name] = true
	}
	return errors.Join(faults...)
}
