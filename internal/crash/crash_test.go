package crash_test

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/crash"
	"rookery/protocol"
)

// TestMain makes the test binary the process that crashes, too.
func TestMain(m *testing.M) {
	if os.Getenv("CRASH_TEST_CHILD") == "" {
		os.Exit(m.Run())
	}
	pair := []protocol.Message{protocol.New(protocol.TaskBegin{}), protocol.New(protocol.UserText("x"))}
	crash.At("one")
	crash.Before(pair)
	crash.At("one")
	crash.After(pair)
	if crash.Between(pair[0], pair[1]) {
		os.Exit(11)
	}
	os.Exit(10)
}

// child runs it with a plan and returns the exit status, -1 after SIGKILL.
func child(t *testing.T, plan string) int {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "CRASH_TEST_CHILD=1", crash.Variable+"="+plan)
	_ = cmd.Run() // the status says it
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, ok)
	if status.Signaled() {
		require.Equal(t, syscall.SIGKILL, status.Signal())
		return -1
	}
	return status.ExitStatus()
}

func TestAt_EndsTheProcessAtItsPlaceOnly(t *testing.T) {
	for plan, want := range map[string]int{
		"": 10, "another": 10, ":2": 10,
		"one": -1, "one:1": -1, "one:2": -1, "one:3": 10, "one:x": -1, "one:-1": -1,
		"before-append": -1, "before-append:2": 10, "after-append": -1,
		"before-task-begin": -1, "after-text": -1, "after-task-begin:2": 11, "before-text:2": 11, "after-text:2": 10,
	} {
		require.Equal(t, want, child(t, plan), "plan %q", plan)
	}
}

func TestAt_OffIsNothing(t *testing.T) {
	require.Zero(t, testing.AllocsPerRun(100, func() {
		crash.At("one")
		crash.Before(nil)
	}))
}
