package protocol

// The exit statuses of the command line.
const (
	ExitOK       = 0
	ExitFailed   = 1
	ExitUsage    = 2
	ExitMaxTurns = 3
	ExitDenied   = 4
	ExitBroker   = 5
	ExitModel    = 6
	ExitTimeout  = 124
	ExitAborted  = 130
)

// ExitCode maps the status and code of a task_end to the exit status of the
// command that ran the task. Codes that name a cause win over the status; a
// status that is not known counts as failed.
func ExitCode(status TaskStatus, code Code) int {
	switch code {
	case CodeUsage:
		return ExitUsage
	case CodeBroker:
		return ExitBroker
	case CodeAuth, CodeModel:
		return ExitModel
	case CodeRefused, CodeLength, CodeTrace, CodeLostOwner:
		return ExitFailed
	case CodeDenied, CodeTimeout: // only together with their status
	}
	switch {
	case status == TaskCompleted && code == CodeDenied:
		return ExitDenied
	case status == TaskCompleted:
		return ExitOK
	case status == TaskAborted && code == CodeTimeout:
		return ExitTimeout
	case status == TaskAborted:
		return ExitAborted
	case status == TaskMaxTurns:
		return ExitMaxTurns
	}
	return ExitFailed
}
