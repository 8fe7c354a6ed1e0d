package engine_test

import (
	"flag"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/engine/enginetest"
)

//nolint:gochecknoglobals // a flag
var update = flag.Bool("update", false, "rewrite the expectations of the scenarios")

func TestScenarios(t *testing.T) {
	played := 0
	for _, file := range enginetest.Files(t, "../..", "testdata/scenarios") {
		s, err := enginetest.Load(file)
		if err == nil && !s.For(enginetest.LevelEngine) {
			continue
		}
		played++
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			require.NoError(t, err)
			result := enginetest.Run(t, s)
			if *update {
				require.NoError(t, s.Update(result))
				return
			}
			for _, err := range s.Check(result, enginetest.LevelEngine) {
				t.Error(err)
			}
		})
	}
	t.Logf("%d scenarios", played)
}
