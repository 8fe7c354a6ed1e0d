package archtest_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A word that has no place in the tree, and why. The patterns are written so that
// they do not match themselves.
var words = []struct {
	pattern *regexp.Regexp
	files   string // suffix of the files it is looked for in
	why     string
}{
	{regexp.MustCompile(`\b(TOD[O]|FIXM[E]|XX[X])\b`), "", "is unfinished by its own words: finish it, or write it into docs/rough-edges.md"},
	{regexp.MustCompile(`(?i)\b(not|un)[ -]?implemente[d]\b`), ".go", "is a stub"},
	{regexp.MustCompile(`\b[tbf]\.Skip(f|Now)?\(`), ".go", "skips: a test that can't run proves nothing"},
	{regexp.MustCompile(`\b(proxy\.golan[g]\.org|sum\.golan[g]\.org|registry\.npmj[s]\.org|deb\.debia[n]\.org)\b`), "", "names a package registry: everybody has their own"},
	{regexp.MustCompile(`(^|[^\w.])/(wor[k]|hom[e]/[a-z]+|roo[t])/`), "", "names a place on somebody's machine"},
	{regexp.MustCompile(`(?i)\bissue #?[0-9]+`), "", "points to a tracker that a reader of the tree does not have"},
}

func TestTree_HasNoWordsThatDoNotBelong(t *testing.T) {
	files := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		rel, err := filepath.Rel(root, path)
		require.NoError(t, err)
		if d.IsDir() {
			if rel == ".git" || rel == "bin" || d.Name() == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || d.Name() == "go.sum" || d.Name() == "LICENSE" {
			return nil
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		if bytes.IndexByte(text, 0) >= 0 {
			return nil
		}
		files++
		checkWords(t, rel, string(text))
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, files, 20)
}

func checkWords(t *testing.T, file, text string) {
	t.Helper()
	for n, line := range strings.Split(text, "\n") {
		for _, w := range words {
			if strings.HasSuffix(file, w.files) && w.pattern.MatchString(line) {
				t.Errorf("%s:%d %s: %s", file, n+1, w.why, strings.TrimSpace(line))
			}
		}
	}
}
