package archtest_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each transition of docs/states.md names a test that exists, with its case.
func TestStates_EachTransitionNamesATest(t *testing.T) {
	sources := testSources(t)
	name := regexp.MustCompile("`([a-z0-9]+)\\.(Test\\w+)(?:/([^`]+))?`")
	rows := 0
	for line := range strings.SplitSeq(read(t, "docs/states.md"), "\n") {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| ---") || strings.HasSuffix(line, "| test |") {
			continue
		}
		rows++
		found := name.FindAllStringSubmatch(line, -1)
		require.NotEmpty(t, found, "no test is named: %s", line)
		for _, m := range found {
			require.True(t, exists(sources[m[1]], m[2], m[3]), "no test %s.%s %s: %s", m[1], m[2], m[3], line)
		}
	}
	require.Greater(t, rows, 50)
}

// exists reports a file that has the test and, where one is named, its case.
func exists(files []string, test, name string) bool {
	for _, text := range files {
		if strings.Contains(text, "func "+test+"(") && (name == "" || strings.Contains(text, `"`+name+`"`)) {
			return true
		}
	}
	return false
}

// testSources holds the test files of each package, by the package's name.
func testSources(t *testing.T) map[string][]string {
	t.Helper()
	sources := map[string][]string{}
	clause := regexp.MustCompile(`(?m)^package (\w+?)(?:_test)?$`)
	for _, pattern := range []string{"*/*_test.go", "internal/*/*_test.go", "test/*/*_test.go"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		for _, f := range files {
			b, err := os.ReadFile(f)
			require.NoError(t, err)
			if m := clause.FindSubmatch(b); m != nil {
				sources[string(m[1])] = append(sources[string(m[1])], string(b))
			}
		}
	}
	return sources
}
