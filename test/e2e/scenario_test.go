package e2e_test

import (
	"flag"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/engine/enginetest"
)

var update = flag.Bool("update", false, "rewrite the expectations of the stack's scenarios")

// The loop's contract at full stack: the scenarios of this folder, and those of the
// engine that are not of its level alone.
func TestScenarios(t *testing.T) {
	files := enginetest.Files(t, "../..", "testdata/scenarios")
	own := len(files)
	if files[0] == filepath.Join("testdata", "scenarios", filepath.Base(files[0])) {
		files = append(files, enginetest.Files(t, "../..", "../../internal/engine/testdata/scenarios")...)
	}
	played := 0
	for i, file := range files {
		s, err := enginetest.Load(file)
		if err == nil && !s.For(enginetest.LevelStack) {
			continue
		}
		played++
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			require.NoError(t, err)
			result := playStack(t, s)
			if *update && i < own && s.Level == enginetest.LevelStack {
				require.NoError(t, s.Update(result))
				return
			}
			for _, err := range s.Check(result, enginetest.LevelStack) {
				t.Error(err)
			}
		})
	}
	t.Logf("%d scenarios", played)
}
