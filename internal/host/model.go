package host

import (
	"fmt"
	"log/slog"
	"net/http"
	"sync"

	"rookery/internal/config"
	"rookery/internal/engine"
	"rookery/internal/llm"
	"rookery/internal/session"
)

// An endpoint is what models share connections by.
type endpoint struct {
	baseURL string
	proxy   bool
}

// models makes the configured models when they are first asked for. It is safe
// for concurrent use.
type models struct {
	cfg *config.Config
	log *slog.Logger

	mu         sync.Mutex // sessions ask from their own goroutines
	made       map[string]session.Model
	transports map[endpoint]*http.Transport
}

func newModels(cfg *config.Config, log *slog.Logger) *models {
	return &models{cfg: cfg, log: log, made: map[string]session.Model{}, transports: map[endpoint]*http.Transport{}}
}

// find is session.Config.Models.
func (m *models) find(name string) (session.Model, error) {
	if name == "" {
		name = m.cfg.Model
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if made, ok := m.made[name]; ok {
		return made, nil
	}
	c, err := m.cfg.FindModel(name)
	if err != nil {
		return session.Model{}, err
	}
	made, err := m.make(c)
	if err != nil {
		return session.Model{}, fmt.Errorf("%w: %w", config.ErrNoModel, err)
	}
	m.made[name] = made
	return made, nil
}

func (m *models) make(c config.Model) (session.Model, error) {
	out := session.Model{
		Name: c.Name, ID: c.ID, Provider: llm.DemoName,
		ContextWindow: c.ContextWindow, MaxTokens: c.MaxTokens, Thinking: c.Thinking,
	}
	if c.Name == config.Demo {
		out.Model = llm.Demo()
		return out, nil
	}
	client, err := llm.New(llm.Config{
		BaseURL: c.BaseURL, APIKey: c.APIKey, Model: c.ID,
		Flags: flags(c), Transport: m.transport(endpoint{c.BaseURL, c.Proxy}), Logger: m.log,
	})
	if err != nil {
		return session.Model{}, err
	}
	out.Model, out.Provider = client, client.Provider()
	return out, nil
}

func (m *models) transport(e endpoint) *http.Transport {
	t, ok := m.transports[e]
	if !ok {
		t = llm.NewTransport(e.proxy)
		m.transports[e] = t
	}
	return t
}

// close gives the connections to the endpoints up.
func (m *models) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.transports {
		t.CloseIdleConnections()
	}
}

func flags(c config.Model) llm.Flags {
	return llm.Flags{
		StreamUsage: c.StreamUsage, MaxTokensField: c.MaxTokensField, ReplayReasoning: c.ReplayReasoning,
		ThinkTags: c.ThinkTags, IDRule: c.IDRule, ParallelToolCalls: c.ParallelToolCalls,
		Temperature: c.Temperature, ThinkingBody: c.ThinkingBody,
		ExtraHeaders: c.ExtraHeaders, ExtraBody: c.ExtraBody, ContextWindow: c.ContextWindow,
		Idle: c.IdleTimeout, NoProgress: c.ProgressTimeout, FinishGrace: c.FinishGrace,
		Azure: c.Azure, APIVersion: c.APIVersion, Proxy: c.Proxy,
	}
}

// settings are the constants of the loop.
func settings(cfg *config.Config) engine.Settings {
	return engine.Settings{
		MaxTurns:   cfg.MaxTurns,
		Reconnects: cfg.Retry.Reconnects, Backoff: cfg.Retry.Backoff, RetryAfterCap: cfg.Retry.RetryAfterCap,
		MaxContext: cfg.Compaction.MaxContextLength, MaxSessionTurns: cfg.Compaction.MaxSessionTurns,
		Mode: cfg.Compaction.Mode, CompactionPrompt: cfg.Compaction.Prompt, NoCompaction: cfg.Compaction.Mode == "off",
		Thinking: cfg.Thinking, Grace: cfg.Tools.Grace, Abandon: cfg.Request.Abandon,
	}
}
