package config_test

import (
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The README's files are read as they stand there.
func TestReadme_ExamplesLoad(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	require.Len(t, blocks, 2)
	c := load(t, place{user: blocks[0][1], system: blocks[1][1], environ: []string{"EXAMPLE_KEY=k"}})
	for _, name := range []string{"", "hosted"} {
		_, err := c.FindModel(name)
		require.NoError(t, err)
	}
	require.Equal(t, 10*time.Minute, c.Tools.Timeouts["exec_command"])
}
