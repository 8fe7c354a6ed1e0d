package archtest_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)
	return string(b)
}

// What the README tells a newcomer to run is what a change must pass.
func TestReadme_SecondCommandIsWhatCIRuns(t *testing.T) {
	_, rest, ok := strings.Cut(read(t, "README.md"), "```\ngo run ./cmd/cli run ")
	require.True(t, ok, "the README's first command is gone")
	block, _, _ := strings.Cut(rest, "```")
	lines := strings.Split(strings.TrimSpace(block), "\n")
	require.Len(t, lines, 2)
	require.Contains(t, strings.Split(read(t, ".ci/run"), "\n"), lines[1])
}

func TestDocs_LinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`)
	var files []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		files = append(files, found...)
	}
	require.Greater(t, len(files), 5)
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(m[1], "://") {
				_, err := os.Stat(filepath.Join(filepath.Dir(f), m[1]))
				require.NoError(t, err, "a link in %s", f)
			}
		}
	}
}

// Every target has its line in the list, and what the documents name exists.
func TestMake_TargetsAreListed(t *testing.T) {
	makefile := read(t, "Makefile")
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z0-9-]+):.*## `).FindAllStringSubmatch(makefile, -1) {
		listed[m[1]] = true
	}
	phony := regexp.MustCompile(`(?m)^\.PHONY: (.*)$`).FindStringSubmatch(makefile)
	require.NotNil(t, phony)
	for target := range strings.FieldsSeq(phony[1]) {
		require.True(t, listed[target], "make %s has no line in the list", target)
	}
	for _, doc := range []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md"} {
		for _, m := range regexp.MustCompile("(?m)(?:^|`)make ([a-z-]+)").FindAllStringSubmatch(read(t, doc), -1) {
			require.True(t, listed[m[1]], "%s names make %s", doc, m[1])
		}
	}
}
