package engine_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// rows are the ids of the contract: L001 to L169 without two that do not exist and
// the section on subagents, which is built later.
func rows() []string {
	var ids []string
	for n := 1; n <= 169; n++ {
		if n != 137 && n != 147 && (n < 139 || n > 146) {
			ids = append(ids, fmt.Sprintf("L%03d", n))
		}
	}
	return ids
}

func TestEveryRowOfTheContractIsNamedByATest(t *testing.T) {
	named := map[string]bool{}
	row := regexp.MustCompile(`\bL\d{3}\b`)
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if err == nil && strings.HasPrefix(d.Name(), ".") && d.Name() != "../.." && d.Name() != ".." {
				return filepath.SkipDir
			}
			return err
		}
		if d.Name() == "coverage_test.go" || !strings.HasSuffix(path, "_test.go") && filepath.Ext(path) != ".txtar" {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, id := range row.FindAll(data, -1) {
			named[string(id)] = true
		}
		return nil
	})
	require.NoError(t, err)
	missing := slices.DeleteFunc(rows(), func(id string) bool { return named[id] })
	require.Empty(t, missing, "rows without a test")
}
