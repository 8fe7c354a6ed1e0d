package llm

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"rookery/internal/engine"
)

// Values of Flags.ReplayReasoning.
const (
	ReplayNever  = "never"
	ReplayField  = "field"
	ReplayAlways = "always"
)

// Values of Flags.IDRule.
const (
	IDAny    = "any"
	IDAlnum9 = "alnum9"
)

// A Config describes one model behind one endpoint.
type Config struct {
	// BaseURL is the API's root, such as https://api.openai.com/v1. Required.
	BaseURL string
	// APIKey may be empty: local servers want none.
	APIKey string
	// Model is the provider's name of the model. Required.
	Model string
	// Provider names the endpoint in what a trace keeps of it; default its host.
	Provider string
	Flags
	// Transport is shared by clients of the same endpoint. Default: an own one
	// (see NewTransport).
	Transport *http.Transport
	Logger    *slog.Logger // nil discards
}

// Flags are the peculiarities of a model. The zero value of each is its default.
type Flags struct {
	// StreamUsage asks for usage in the stream. Default true; an endpoint that
	// refuses it is asked once more without.
	StreamUsage *bool `json:"stream_usage,omitempty"`
	// MaxTokensField is max_tokens (default) or max_completion_tokens; when the
	// endpoint refuses one the other is used from then on.
	MaxTokensField string `json:"max_tokens_field,omitempty"`
	// ReplayReasoning says whether thinking goes back to the provider: never, in
	// the field it came in (default), or always, then in reasoning_content if it
	// came without a field.
	ReplayReasoning string `json:"replay_reasoning,omitempty"`
	// ThinkTags reads a <think> block at the start of the text as thinking. Default true.
	ThinkTags *bool `json:"think_tags,omitempty"`
	// IDRule is any (default), or alnum9 for providers that want call ids of nine
	// letters and digits.
	IDRule string `json:"id_rule,omitempty"`
	// ParallelToolCalls is sent when it is set and there are tools.
	ParallelToolCalls *bool `json:"parallel_tool_calls,omitempty"`
	// Temperature is sent when it is set, also 0.
	Temperature *float64 `json:"temperature,omitempty"`
	// ThinkingBody replaces reasoning_effort: the members that a level adds to the
	// request. A level that is absent adds nothing.
	ThinkingBody map[string]map[string]any `json:"thinking_body,omitempty"`
	// ExtraHeaders and ExtraBody go into every request; ExtraBody wins over what
	// rookery sends, but for model, messages, tools and stream.
	ExtraHeaders map[string]string `json:"extra_headers,omitempty"`
	ExtraBody    map[string]any    `json:"extra_body,omitempty"`
	// ContextWindow is the model's context in tokens; 0 is unknown.
	ContextWindow int `json:"context_window,omitempty"`
	// Idle is the longest wait for a byte. Default 120 s; negative = none.
	Idle time.Duration `json:"idle,omitempty"`
	// NoProgress is the longest wait for data, over all waits since the last;
	// comments and pings do not count as data. Default 600 s; negative = none.
	NoProgress time.Duration `json:"no_progress,omitempty"`
	// FinishGrace is how long usage is waited for when the answer is finished.
	// Default 5 s.
	FinishGrace time.Duration `json:"finish_grace,omitempty"`
	// Azure makes URL and authentication those of Azure OpenAI; APIVersion is its
	// api-version.
	Azure      bool   `json:"azure,omitempty"`
	APIVersion string `json:"api_version,omitempty"`
	// Proxy honours HTTP_PROXY and its kin; never for loopback. Default off.
	Proxy bool `json:"proxy,omitempty"`
}

// A Client asks one model of one endpoint. It is safe for concurrent use.
type Client struct {
	cfg    Config
	http   *http.Client
	log    *slog.Logger
	prefix *prefixes
	tools  toolList

	mu      sync.Mutex
	refused map[string]bool // features this endpoint does not take
	ratio   float64         // tokens an endpoint counts for one that we estimate
}

var _ engine.Model = (*Client)(nil)

// New checks the configuration; its error joins all faults.
func New(cfg Config) (*Client, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("model %q: %w", cfg.Model, err)
	}
	cfg = cfg.withDefaults()
	return &Client{
		cfg: cfg,
		http: &http.Client{
			Transport:     cfg.Transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		log:     cfg.Logger,
		prefix:  newPrefixes(),
		refused: map[string]bool{},
		ratio:   1,
	}, nil
}

// Provider names the endpoint, for session_meta.
func (c *Client) Provider() string { return c.cfg.Provider }

// ModelID is the provider's name of the model, for session_meta.
func (c *Client) ModelID() string { return c.cfg.Model }

// ContextWindow is the model's context in tokens; 0 is unknown.
func (c *Client) ContextWindow() int { return c.cfg.ContextWindow }

// CloseIdle closes the connections that no request uses.
func (c *Client) CloseIdle() { c.http.CloseIdleConnections() }

// NewTransport returns a transport fit for many long streams to one host.
func NewTransport(proxy bool) *http.Transport {
	t := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:   true,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
		MaxIdleConns:        1024,
		MaxIdleConnsPerHost: 1024,
		IdleConnTimeout:     90 * time.Second,
		// A proxy that compresses a stream also holds it back.
		DisableCompression: true,
	}
	if proxy {
		t.Proxy = http.ProxyFromEnvironment
	}
	return t
}

func (c Config) validate() error {
	var errs []error
	if c.Model == "" {
		errs = append(errs, errors.New("no model name"))
	}
	switch u, err := url.Parse(c.BaseURL); {
	case err != nil:
		errs = append(errs, fmt.Errorf("base URL: %w", err))
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		errs = append(errs, fmt.Errorf("base URL %q is not http(s)://HOST/PATH", c.BaseURL))
	}
	errs = append(errs,
		oneOf("max_tokens_field", c.MaxTokensField, "max_tokens", "max_completion_tokens"),
		oneOf("replay_reasoning", c.ReplayReasoning, ReplayNever, ReplayField, ReplayAlways),
		oneOf("id_rule", c.IDRule, IDAny, IDAlnum9))
	if c.Azure && c.APIVersion == "" {
		errs = append(errs, errors.New("azure needs api_version"))
	}
	for name, v := range c.ExtraHeaders {
		if strings.ContainsAny(name, " :\r\n\x00") || name == "" || strings.ContainsAny(v, "\r\n\x00") {
			errs = append(errs, fmt.Errorf("extra header %q is not valid", name))
		}
	}
	return errors.Join(append(errs, c.checkExtras())...)
}

func oneOf(key, v string, allowed ...string) error {
	if v == "" || slices.Contains(allowed, v) {
		return nil
	}
	return fmt.Errorf("%s is %q: want one of %s", key, v, strings.Join(allowed, ", "))
}

func (c Config) withDefaults() Config {
	if c.Provider == "" {
		if u, err := url.Parse(c.BaseURL); err == nil {
			c.Provider = u.Hostname()
		}
	}
	if c.MaxTokensField == "" {
		c.MaxTokensField = "max_tokens"
	}
	if c.ReplayReasoning == "" {
		c.ReplayReasoning = ReplayField
	}
	c.Idle = limit(c.Idle, 120*time.Second)
	c.NoProgress = limit(c.NoProgress, 600*time.Second)
	c.FinishGrace = limit(c.FinishGrace, 5*time.Second)
	if c.Transport == nil {
		c.Transport = NewTransport(c.Proxy)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// limit returns d, the default for 0, and 0 (no limit) for a negative d.
func limit(d, def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return max(d, 0)
}

func on(b *bool) bool { return b == nil || *b }
