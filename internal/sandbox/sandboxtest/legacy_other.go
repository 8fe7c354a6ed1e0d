//go:build !amd64

package sandboxtest

func legacyModes() map[string]uintptr { return nil }

func legacyCalls() map[string]uintptr { return nil }
