package host

import (
	"context"
	"log/slog"
	"os"
	"strings"

	"rookery/internal/bus"
	"rookery/internal/config"
	"rookery/internal/engine"
	"rookery/internal/llm"
	"rookery/internal/session"
	"rookery/internal/tool"
	"rookery/protocol"
)

// sessionConfig is what an orchestrator needs, from the configuration.
func sessionConfig(b *bus.Bus, cfg *config.Config, private bool, ms *models, log *slog.Logger) session.Config {
	node := protocol.ID(cfg.Node)
	if node == "" || private { // several runs may share a configuration
		node = newNode()
	}
	return session.Config{
		Titler: titler(cfg),
		Bus:    b, Node: node, Models: ms.find, System: cfg.System, Settings: settings(cfg),
		Policy: func(pool, tool string) session.Policy {
			p := cfg.Policy(pool, tool)
			return session.Policy{Permission: p.Permission, Idempotent: p.Idempotent, Timeout: cfg.Tools.Timeouts[tool]}
		},
		Builtin: builtin(),
		Enabled: cfg.Tools.Enabled, ToolTimeout: cfg.Tools.Timeout, MaxOutput: cfg.Tools.MaxOutputLength,
		ApprovalTimeout: max(0, cfg.Tools.ApprovalTimeout),
		Pool:            cfg.Pool, Private: private,
		QueueTimeout: cfg.Tools.QueueTimeout, PinnedTimeout: cfg.Tools.PinnedQueueTimeout,
		UnreachableGrace: cfg.Tools.UnreachableGrace,
		IdleAfter:        cfg.Session.IdleAfter, WriteTimeout: cfg.Session.TraceTimeout,
		Logger: log,
	}
}

// builtin describes the tools whose names are reserved.
func builtin() []protocol.Tool {
	var specs []protocol.Tool
	for _, t := range tool.Builtin() {
		specs = append(specs, t.Spec())
	}
	return specs
}

// newNode makes an orchestrator's id from its host's name.
func newNode() protocol.ID {
	name, err := os.Hostname()
	if err != nil {
		name = "orchestrator"
	}
	return idFrom(name) + "-" + protocol.ID(protocol.Token(4))
}

// idFrom makes the beginning of an id of a name: at most 24 characters.
func idFrom(name string) protocol.ID {
	name, _, _ = strings.Cut(name, ".")
	id := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '-'
	}, name)
	if id = id[:min(len(id), 24)]; id == "" {
		id = "host"
	}
	return protocol.ID(id)
}

// titler asks the session's model for titles where the configuration wants that. The
// demo model has none to give.
func titler(cfg *config.Config) session.Titler {
	if !cfg.Title {
		return nil
	}
	return func(ctx context.Context, m session.Model, task []protocol.Message) (string, engine.Outcome, bool) {
		if m.Name == config.Demo {
			return "", engine.Outcome{}, false
		}
		return llm.Title(ctx, m.Model, task)
	}
}
