package config

import (
	"errors"
	"fmt"
	"os"
	"time"

	"rookery/protocol"
)

// Off is the value of a limit that is switched off. A file or variable may write
// off, 0 or any negative number for it.
const Off = -1

// A Config holds every setting. The tag yaml names the key; a dot joins the keys
// of nested structs. Scope agent marks what system_config.yaml may set, project
// what a workspace's file may set.
type Config struct {
	// Model is the name of an entry of Models, demo, or a model id that the
	// endpoint at BaseURL knows. Empty: none was chosen.
	Model string `yaml:"model" scope:"project"`
	// BaseURL is the endpoint of models that have no entry of their own.
	BaseURL string `yaml:"base_url" check:"url"`
	// APIKeyEnv names the variable with its key.
	APIKeyEnv string `yaml:"api_key_env" check:"variable"`

	// Server lists the broker's URLs. Server, Creds and Context empty: this
	// machine's own broker.
	Server  []string `yaml:"server"`
	Creds   string   `yaml:"creds"`
	Context string   `yaml:"context"`
	Prefix  string   `yaml:"prefix" check:"id"`
	Store   Store    `yaml:"store"`

	// Node is an orchestrator's id; empty = one from its host's name.
	Node string `yaml:"node" check:"id"`
	// Pool serves the sessions that name none.
	Pool  string          `yaml:"pool" check:"id"`
	Pools map[string]Pool `yaml:"pools" keys:"id"`

	Worker Worker `yaml:"worker"`

	// Approve is a policy; empty = ask on a terminal, deny-all without one.
	Approve string `yaml:"approve" oneof:"allow-all deny-all read-only ask"`
	Sandbox string `yaml:"sandbox" oneof:"native landlock none"`
	// Timeout bounds a run on the command line. Default off.
	Timeout  time.Duration `yaml:"timeout" off:"yes"`
	LogLevel string        `yaml:"log_level" oneof:"debug info warn error"`
	JSONLog  bool          `yaml:"json_log"`
	Color    string        `yaml:"color" oneof:"auto always never"`

	Models []Model `yaml:"models"`

	Agent `yaml:",inline"`

	// Warnings says what was passed over, for people.
	Warnings []string `yaml:"-"`

	origins  map[string]Origin
	getenv   func(string) string
	userFile string
}

// An Agent holds the settings of the turn loop.
type Agent struct {
	// SystemPrompt is the agent's task; System adds the meaning of the markers.
	SystemPrompt string `yaml:"system_prompt" scope:"agent"`
	Thinking     string `yaml:"thinking" scope:"agent" oneof:"none low medium high xhigh"`
	MaxTurns     int    `yaml:"max_turns" scope:"agent project" off:"yes"`
	// Title says whether sessions get one from the model.
	Title      bool       `yaml:"title" scope:"agent"`
	Compaction Compaction `yaml:"compaction" scope:"agent project"`
	Retry      Retry      `yaml:"retry" scope:"agent"`
	Request    Request    `yaml:"request" scope:"agent"`
	Tools      Tools      `yaml:"tools" scope:"agent"`
	Session    Session    `yaml:"session" scope:"agent"`
}

// Compaction says when and how a context is compacted.
type Compaction struct {
	// Mode off switches it off, by hand, too.
	Mode             string `yaml:"mode" oneof:"summarize discard off"`
	MaxContextLength int64  `yaml:"max_context_length" off:"yes"`
	MaxSessionTurns  int    `yaml:"max_session_turns" off:"yes"`
	Prompt           string `yaml:"prompt"`
}

// Retry says how often a turn's request is sent again, and when.
type Retry struct {
	Reconnects int `yaml:"reconnects" off:"yes"`
	// Backoff is the wait before the first; the n-th waits n times as long.
	Backoff       time.Duration `yaml:"backoff" min:"1"`
	RetryAfterCap time.Duration `yaml:"retry_after_cap" min:"1"`
}

// Request bounds one request of the model API.
type Request struct {
	// IdleTimeout is the longest silence, ProgressTimeout the longest time with
	// keep-alives only.
	IdleTimeout     time.Duration `yaml:"idle_timeout" off:"yes"`
	ProgressTimeout time.Duration `yaml:"progress_timeout" off:"yes"`
	// Abandon is how long a cancelled stream may take.
	Abandon time.Duration `yaml:"abandon" min:"1"`
}

// Tools says which tools there are and what they may do.
type Tools struct {
	// Enabled lists the tools that are offered; empty = all.
	Enabled         []string      `yaml:"enabled" scope:"project" check:"tool"`
	Timeout         time.Duration `yaml:"timeout" off:"yes"`
	MaxOutputLength int           `yaml:"max_output_length" off:"yes"`
	// Timeouts holds the tools that differ from Timeout.
	Timeouts map[string]time.Duration `yaml:"timeouts" off:"yes" keys:"tool"`
	// Permissions and Idempotent hold the tools that differ from the built-in
	// ones' defaults, in every pool; see Policy.
	Permissions map[string]protocol.Permission `yaml:"permissions" oneof:"r rw" keys:"tool"`
	Idempotent  map[string]bool                `yaml:"idempotent" keys:"tool"`
	// Grace is how long a cancelled tool may take.
	Grace time.Duration `yaml:"grace" min:"1"`
	// QueueTimeout is the longest wait for a worker to take a call,
	// PinnedQueueTimeout for one that only a certain worker may take.
	QueueTimeout       time.Duration `yaml:"queue_timeout" min:"1"`
	PinnedQueueTimeout time.Duration `yaml:"pinned_queue_timeout" min:"1"`
	// UnreachableGrace is how long a call waits for a worker that is gone,
	// after the call's own deadline.
	UnreachableGrace time.Duration `yaml:"unreachable_grace" min:"1"`
	// ApprovalTimeout bounds a person's decision; then it is deny.
	ApprovalTimeout time.Duration `yaml:"approval_timeout" off:"yes"`
}

// Session bounds what an orchestrator keeps of a session.
type Session struct {
	// IdleAfter is when an idle session's state is dropped; its next command
	// opens it again.
	IdleAfter time.Duration `yaml:"idle_after" min:"1"`
	// TraceTimeout is how long a trace write is tried.
	TraceTimeout time.Duration `yaml:"trace_timeout" min:"1"`
}

// Store says how a broker of our own keeps its data.
type Store struct {
	// Dir is where; empty = Paths.Store.
	Dir string `yaml:"dir"`
	// Durability strict syncs each write, fast once a second.
	Durability string `yaml:"durability" oneof:"fast strict"`
	// Size is the most it may use, in bytes; 0 = the broker's default.
	Size     int64 `yaml:"size" min:"0"`
	Replicas int   `yaml:"replicas" min:"1"`
}

// A Pool says what the tools of its workers may do.
type Pool struct {
	Tools map[string]Policy `yaml:"tools" keys:"tool"`
}

// Worker holds the settings of a worker on this machine.
type Worker struct {
	// Root is where it keeps its id, journal and workspaces; empty = beside the store.
	Root string `yaml:"root"`
	// Allow lists directories under which workspaces may be named.
	Allow  []string          `yaml:"allow"`
	Pools  []string          `yaml:"pools" check:"id"`
	Labels map[string]string `yaml:"labels"`
	// Slots is how many calls run at once; 0 = the worker's default.
	Slots int `yaml:"slots" min:"0"`
	// ToolsFile describes tools of one's own; empty = none.
	ToolsFile string `yaml:"tools_file"`
	// Grace is how long running calls may take when it stops.
	Grace time.Duration `yaml:"grace" min:"1"`
	// SoftLimits accepts limits on memory and processes that are watched, not
	// enforced, where this system has no control groups to enforce them.
	SoftLimits bool `yaml:"soft_limits"`
}

func defaults() *Config {
	return &Config{
		BaseURL:   "https://api.openai.com/v1",
		APIKeyEnv: "OPENAI_API_KEY",
		Prefix:    "rk",
		Pool:      "default",
		Store:     Store{Durability: "fast", Replicas: 1},
		Worker:    Worker{Pools: []string{"default"}, Grace: 30 * time.Second},
		Sandbox:   "native",
		Timeout:   Off,
		LogLevel:  "info",
		Color:     "auto",
		Agent: Agent{
			SystemPrompt: prompt("system"),
			MaxTurns:     100,
			Title:        true,
			Compaction: Compaction{
				Mode: "summarize", MaxContextLength: 128_000, MaxSessionTurns: Off,
				Prompt: prompt("compaction"),
			},
			Retry:   Retry{Reconnects: 2, Backoff: 250 * time.Millisecond, RetryAfterCap: 30 * time.Second},
			Request: Request{IdleTimeout: 2 * time.Minute, ProgressTimeout: 10 * time.Minute, Abandon: 2 * time.Second},
			Tools: Tools{
				Timeout: 2 * time.Minute, MaxOutputLength: 16_000, Grace: 3 * time.Second,
				QueueTimeout: 10 * time.Minute, PinnedQueueTimeout: time.Minute,
				UnreachableGrace: 2 * time.Minute, ApprovalTimeout: Off,
			},
			Session: Session{IdleAfter: 10 * time.Minute, TraceTimeout: 30 * time.Second},
		},
	}
}

// Sources says where settings come from.
type Sources struct {
	// File is the user file, from --config; empty = ROOKERY_CONFIG, else
	// Paths.User, which need not exist. system_config.yaml lies beside it.
	File string
	// Workspace is the directory whose .rookery/config.yaml is read; empty = none.
	Workspace string
	// Environ is the environment; nil = the process's.
	Environ []string
	// Flags holds the flags that were given, by key: {"max_turns": "3"}.
	Flags map[string]string
}

// Load reads all layers. Its error joins a *SettingError for each thing that is wrong.
func Load(src Sources) (*Config, error) {
	c := defaults()
	c.origins = map[string]Origin{}
	if src.Environ == nil {
		src.Environ = os.Environ()
	}
	env := environment(src.Environ)
	c.getenv = func(name string) string { return env[name] }

	var faults []error
	for _, f := range layers(src, env) {
		if f.layer == LayerUser {
			c.userFile = f.path
		}
		faults = append(faults, c.readFile(f))
	}
	faults = append(faults, c.readEnv(env), c.readFlags(src.Flags), c.checkModels())
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return c, nil
}

// UserFile is the user file that Load looked for.
func (c *Config) UserFile() string { return c.userFile }

// A SettingError is one thing that is wrong in a file, a variable or a flag.
type SettingError struct {
	// Place is file:line:col, "environment NAME" or "flag --name".
	Place string
	// Key is the setting; empty when the file can't be read at all.
	Key string
	// Problem says what is wrong and what to do.
	Problem string
}

func (f *SettingError) Error() string {
	if f.Key == "" {
		return fmt.Sprintf("%s: %s", f.Place, f.Problem)
	}
	return fmt.Sprintf("%s: %s: %s", f.Place, f.Key, f.Problem)
}
