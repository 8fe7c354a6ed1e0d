package protocol_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/protocol"
)

func TestExitCode(t *testing.T) {
	for _, c := range []struct {
		status protocol.TaskStatus
		code   protocol.Code
		exit   int
	}{
		{protocol.TaskCompleted, "", 0},
		{protocol.TaskFailed, "", 1},
		{protocol.TaskFailed, protocol.CodeLength, 1},
		{protocol.TaskFailed, protocol.CodeTrace, 1},
		{protocol.TaskFailed, protocol.CodeLostOwner, 1},
		{protocol.TaskFailed, protocol.CodeRefused, 1},
		{protocol.TaskFailed, protocol.CodeUsage, 2},
		{protocol.TaskMaxTurns, "", 3},
		{protocol.TaskCompleted, protocol.CodeDenied, 4},
		{protocol.TaskFailed, protocol.CodeDenied, 1},
		{protocol.TaskMaxTurns, protocol.CodeDenied, 3},
		{protocol.TaskFailed, protocol.CodeBroker, 5},
		{protocol.TaskFailed, protocol.CodeAuth, 6},
		{protocol.TaskFailed, protocol.CodeModel, 6},
		{protocol.TaskAborted, protocol.CodeTimeout, 124},
		{protocol.TaskFailed, protocol.CodeTimeout, 1},
		{protocol.TaskAborted, "", 130},
		{"", "", 1},
		{"of a later version", "", 1},
		{protocol.TaskCompleted, "of a later version", 0},
	} {
		t.Run(fmt.Sprintf("%s,%s", c.status, c.code), func(t *testing.T) {
			require.Equal(t, c.exit, protocol.ExitCode(c.status, c.code))
		})
	}
}
