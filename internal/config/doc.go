// Package config turns files, environment and flags into plain values.
//
//	defaults ─► system_config.yaml ─► config.yaml ─► .rookery/config.yaml ─► environment ─► flags ─► Config
//	                (the agent)         (the user)       (the workspace)
//
// Every later layer wins over the earlier ones, key by key, and each value keeps
// the place it came from. Nothing here opens a connection or starts anything.
//
// # Invariants
//
//   - a file that can't be taken whole is an error: no key is ever passed over
//   - every fault names its place (file:line:col, variable or flag), its key and what to do
//   - a workspace's file sets max_turns, compaction, model and a subset of tools, nothing else
//   - no secret is stored in a Config: an API key is read when a Model is asked for
package config
