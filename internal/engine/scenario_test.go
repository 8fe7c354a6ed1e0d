package engine_test

import (
	"flag"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/engine/enginetest"
)

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

// Live and rebuilt state are the same (L157, L166): a resume between any two tasks
// changes nothing.
func TestScenarios_ResumeBetweenTasksChangesNothing(t *testing.T) {
	files, err := filepath.Glob("testdata/scenarios/*.txtar")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		s, err := enginetest.Load(file)
		require.NoError(t, err)
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			s.Script = withResumes(s.Script)
			for _, err := range s.Check(enginetest.Run(t, s), enginetest.LevelEngine) {
				t.Error(err)
			}
		})
	}
}

// withResumes puts a resume before each start of a task that finds the session idle.
func withResumes(script []enginetest.Statement) []enginetest.Statement {
	var out []enginetest.Statement
	idle, bare := true, false
	for _, st := range script {
		if bare = bare || st.Bare || st.At != nil && st.At.Do.Bare; bare && st.Verb == enginetest.VerbResume {
			st.Bare = true // what it hides stays hidden
		}
		switch st.Verb {
		case enginetest.VerbRun, enginetest.VerbStart, enginetest.VerbCompact:
			if idle {
				out = append(out, enginetest.Statement{Line: st.Line, Verb: enginetest.VerbResume, Bare: bare})
			}
			idle = idle && st.Verb != enginetest.VerbStart
		case enginetest.VerbWaitIdle:
			idle = true
		default:
		}
		out = append(out, st)
	}
	return out
}
