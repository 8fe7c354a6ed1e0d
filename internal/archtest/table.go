package archtest

// A Rule says what a package may import of ours.
type Rule struct {
	Imports []string
	// Any is for what joins everything: commands, benchmarks, end-to-end tests.
	Any bool
}

// Table returns the rule of every package, by its path in the tree. A pattern
// that ends in /* is for each folder below it.
func Table() map[string]Rule {
	only := func(paths ...string) Rule { return Rule{Imports: paths} }
	return map[string]Rule{
		"protocol": only(),
		"client":   only("internal/bus", "protocol"),

		"internal/engine":              only("protocol"),
		"internal/engine/enginetest":   only("internal/engine", "internal/trace", "internal/resume", "protocol"),
		"internal/trace":               only("protocol"),
		"internal/bus":                 only("protocol"),
		"internal/bus/natsd":           only(),
		"internal/bus/bustest":         only("internal/bus", "internal/bus/natsd", "protocol"),
		"internal/crash":               only("protocol"),
		"internal/resume":              only("internal/engine", "internal/trace"),
		"internal/session":             only("internal/engine", "internal/trace", "internal/resume", "internal/bus", "internal/crash", "protocol"),
		"internal/llm":                 only("internal/engine", "protocol"),
		"internal/llm/llmtest":         only("internal/llm", "internal/engine", "protocol"),
		"internal/sandbox":             only("protocol"),
		"internal/sandbox/confine":     only(),
		"internal/sandbox/fileop":      only("internal/sandbox", "internal/sandbox/confine"),
		"internal/sandbox/native":      only("internal/sandbox", "internal/sandbox/confine", "internal/sandbox/fileop"),
		"internal/sandbox/landlock":    only("internal/sandbox", "internal/sandbox/confine", "internal/sandbox/fileop"),
		"internal/sandbox/backend":     only("internal/sandbox", "internal/sandbox/native", "internal/sandbox/landlock"),
		"internal/sandbox/sandboxtest": only("internal/sandbox", "internal/sandbox/confine", "protocol"),
		"internal/tool":                only("internal/sandbox", "protocol"),
		"internal/worker":              only("internal/bus", "internal/tool", "internal/sandbox", "internal/crash", "protocol"),
		"internal/config":              only("protocol"),
		"internal/host": only("internal/session", "internal/worker", "internal/llm", "internal/bus", "internal/bus/natsd",
			"internal/config", "internal/engine", "internal/trace", "internal/tool", "internal/sandbox", "internal/sandbox/backend",
			"protocol"),
		"internal/tui":      only("client", "protocol"),
		"internal/web":      only("client", "protocol"),
		"internal/archtest": only(),

		"cmd/orchestrator": only("internal/host", "internal/bus", "internal/config", "protocol"),
		"cmd/toolworker": only("internal/worker", "internal/bus", "internal/tool", "internal/sandbox", "internal/sandbox/backend",
			"internal/config", "protocol"),
		"cmd/cli": {Any: true},
		"bench":   {Any: true},
		"bench/*": {Any: true},
		"test/*":  {Any: true},
	}
}

// Modules returns where a module of others may be imported, by the start of its
// path; a module that is not listed may be imported anywhere. Files of tests are
// listed as their package and _test.
func Modules() map[string][]string {
	return map[string][]string{
		"github.com/nats-io/nats.go":        {"internal/bus", "internal/bus_test", "internal/bus/bustest", "bench", "bench/*", "test/*"},
		"github.com/synadia-io/orbit.go":    {"internal/bus", "internal/bus_test"},
		"github.com/nats-io/nats-server":    {"internal/bus/natsd", "internal/bus/natsd_test", "internal/bus/bustest"},
		"github.com/sashabaranov/go-openai": {"internal/llm", "internal/llm_test"},
		"github.com/spf13/cobra":            {"cmd/*"},
		"github.com/goccy/go-yaml":          {"internal/config", "internal/tool"},
		"github.com/adrg/xdg":               {"internal/config"},
	}
}
