package e2e_test

import (
	"rookery/internal/llm/llmtest"
)

// endpoint is a scripted model that w's configuration names.
func (w *world) endpoint() *llmtest.Server {
	w.t.Helper()
	s := llmtest.Start(w.t)
	w.env["OPENAI_BASE_URL"], w.env["OPENAI_API_KEY"], w.env["ROOKERY_MODEL"] = s.URL, "test-key", "scripted"
	w.env["ROOKERY_TITLE"] = "false" // titles would be requests of their own
	return s
}

// says replies with a text.
func says(text string) []llmtest.Step {
	return []llmtest.Step{llmtest.Text(text), llmtest.Usage(10, 5)}
}

// calls replies with one exec_command.
func calls(command string) []llmtest.Step {
	return []llmtest.Step{llmtest.Call("a", "exec_command", string(arguments(map[string]string{"cmd": command}))), llmtest.Usage(10, 5)}
}
