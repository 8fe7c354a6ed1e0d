package config

import (
	"embed"
	"strings"
)

//go:embed prompts/*.md
var prompts embed.FS

// prompt returns one of the texts that are built in.
func prompt(name string) string {
	b, err := prompts.ReadFile("prompts/" + name + ".md")
	if err != nil {
		panic("config: " + err.Error()) // the file is part of the program
	}
	return strings.TrimSpace(string(b))
}

// System returns the system prompt that the model gets: SystemPrompt, the
// meaning of the loop's markers, and then the workspace's instructions (its
// AGENTS.md), if any. The markers are explained whatever SystemPrompt says.
func (c *Config) System(instructions string) string {
	parts := []string{strings.TrimSpace(c.SystemPrompt), prompt("markers")}
	if s := strings.TrimSpace(instructions); s != "" {
		parts = append(parts, "# Instructions of this workspace (AGENTS.md)\n\n"+s)
	}
	return strings.TrimSpace(strings.Join(parts, "\n\n"))
}
