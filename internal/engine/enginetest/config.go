package enginetest

import (
	"fmt"
	"strconv"
	"time"

	"rookery/internal/engine"
)

//nolint:gochecknoglobals // a set of constants
var levels = map[string]bool{"none": true, "low": true, "medium": true, "high": true, "xhigh": true}

// A Config is what the config statements of a script add up to.
type Config struct {
	// Approve is allow-all, deny-all, read-only, ask or none; empty = none.
	Approve string
	// Settings are the engine's, with switched-off limits as negative numbers.
	Settings engine.Settings
	// ToolTimeout bounds a call; 0 is the default of 120 s, negative none.
	ToolTimeout time.Duration
	// MaxOutput caps an output in characters; 0 is the default of 16000, negative none.
	MaxOutput int
}

// Set applies one KEY=VALUE; its error says what is wrong with it.
func (c *Config) Set(s Setting) error {
	switch s.Key {
	case "approve":
		switch s.Value {
		case "allow-all", "deny-all", "read-only", "ask", "none":
			c.Approve = s.Value
			return nil
		}
		return fmt.Errorf("approve is allow-all, deny-all, read-only, ask or none, not %q", s.Value)
	case "mode":
		c.Settings.Mode = s.Value
	case "compaction_prompt":
		c.Settings.CompactionPrompt = s.Value
	case "thinking":
		if !levels[s.Value] {
			return fmt.Errorf("thinking is none, low, medium, high or xhigh, not %q", s.Value)
		}
		c.Settings.Thinking = s.Value
	case "context_factory":
		if s.Value != "off" && s.Value != "on" {
			return fmt.Errorf("context_factory is on or off, not %q", s.Value)
		}
		c.Settings.NoCompaction = s.Value == "off"
	case "tool_timeout":
		return c.timeout(s.Value)
	default:
		return c.number(s)
	}
	return nil
}

func (c *Config) number(s Setting) error {
	into := map[string]func(int){
		"max_turns":          func(n int) { c.Settings.MaxTurns = n },
		"max_context_length": func(n int) { c.Settings.MaxContext = int64(n) },
		"max_session_turns":  func(n int) { c.Settings.MaxSessionTurns = n },
		"retries":            func(n int) { c.Settings.Reconnects = n },
		"max_output_length":  func(n int) { c.MaxOutput = n },
	}[s.Key]
	if into == nil {
		return fmt.Errorf("unknown config key %q", s.Key)
	}
	n, err := strconv.Atoi(s.Value)
	if err != nil {
		return fmt.Errorf("%s is a number, not %q", s.Key, s.Value)
	}
	if n <= 0 {
		n = -1 // off; a zero would be the default
	}
	into(n)
	return nil
}

// timeout takes a duration, or plain milliseconds.
func (c *Config) timeout(value string) error {
	d, err := time.ParseDuration(value)
	if err != nil {
		ms, aerr := strconv.Atoi(value)
		if aerr != nil {
			return fmt.Errorf("tool_timeout is a duration such as 200ms, not %q", value)
		}
		d = time.Duration(ms) * time.Millisecond
	}
	if d <= 0 {
		d = -1
	}
	c.ToolTimeout = d
	return nil
}
