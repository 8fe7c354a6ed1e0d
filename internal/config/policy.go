package config

import "rookery/protocol"

// A Policy says what a tool may do, and whether a call whose fate is unknown may
// simply be made again.
type Policy struct {
	Permission protocol.Permission `yaml:"permission" oneof:"r rw"`
	Idempotent bool                `yaml:"idempotent"`
}

// builtin holds what is not the default of an unknown tool: rw, not idempotent.
//
//nolint:gochecknoglobals // a table of constants
var builtin = map[string]Policy{
	"read_file":    {protocol.ReadOnly, true},
	"list_files":   {protocol.ReadOnly, true},
	"search_files": {protocol.ReadOnly, true},
	"read_image":   {protocol.ReadOnly, true},
	"write_file":   {protocol.ReadWrite, true}, // the same bytes to the same place
}

// Policy returns what a tool of a pool may do: the pool's own entry, else
// tools.permissions and tools.idempotent, else the default. What a worker says
// of itself does not count.
func (c *Config) Policy(pool, tool string) Policy {
	if p, ok := c.Pools[pool].Tools[tool]; ok {
		if p.Permission == "" {
			p.Permission = protocol.ReadWrite
		}
		return p
	}
	p, ok := builtin[tool]
	if !ok {
		p.Permission = protocol.ReadWrite
	}
	if perm, ok := c.Tools.Permissions[tool]; ok {
		p.Permission = perm
	}
	if i, ok := c.Tools.Idempotent[tool]; ok {
		p.Idempotent = i
	}
	return p
}
