package llm

import (
	"context"
	"regexp"
	"strings"
	"time"
	"unicode"

	"rookery/internal/engine"
	"rookery/protocol"
)

// Limits of a title and of what it is made from (L148, L149, L150).
const (
	titleUser      = 2000
	titleAssistant = 1000
	titleTokens    = 300
	titleTimeout   = 30 * time.Second
	titleLength    = 30
)

const titleInstruction = "Give this conversation a title of at most five words, in its own language. Answer with the title only."

// Title asks the model for the title of a session whose first task is given:
// one request without system prompt and tools. The title is "" when the model
// gave none, or when there is nothing to make one of; then asked is false and
// nothing was sent. The outcome is for the ledger.
func Title(ctx context.Context, m engine.Model, task []protocol.Message) (title string, o engine.Outcome, asked bool) {
	prompt := TitlePrompt(task)
	if prompt == "" {
		return "", engine.Outcome{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, titleTimeout)
	defer cancel()
	var answer strings.Builder
	o = m.Stream(ctx, engine.Request{
		Input:     []protocol.Message{protocol.New(protocol.UserText(prompt))},
		Thinking:  "none",
		MaxTokens: titleTokens,
		IDs:       &protocol.CallIDs{},
	}, func(p protocol.Payload) error {
		if t, ok := p.(protocol.Text); ok {
			answer.WriteString(t.Text)
		}
		return nil
	})
	if o.Status != protocol.Completed {
		return "", o, true
	}
	return CleanTitle(answer.String()), o, true
}

// TitlePrompt returns what to ask for the title of a task, "" when its texts are
// blank. Marker blocks are left out.
func TitlePrompt(task []protocol.Message) string {
	var user, assistant []string
	for _, m := range task {
		t, ok := m.Payload.(protocol.Text)
		if !ok {
			continue
		}
		s := strings.TrimSpace(stripMarkers(t.Text))
		switch {
		case s == "":
		case t.Role == protocol.User:
			user = append(user, s)
		default:
			assistant = append(assistant, s)
		}
	}
	if len(user) == 0 {
		return ""
	}
	prompt := titleInstruction + "\n\nUser:\n" + firstRunes(strings.Join(user, "\n"), titleUser)
	if len(assistant) > 0 {
		prompt += "\n\nAssistant:\n" + firstRunes(strings.Join(assistant, "\n"), titleAssistant)
	}
	return prompt
}

// CleanTitle makes a title of an answer: one line, without quotes around it and
// punctuation behind it, of at most 30 characters.
func CleanTitle(s string) string {
	s = trimTitle(strings.Join(strings.Fields(protocol.Clean(s)), " "))
	return trimTitle(firstRunes(s, titleLength))
}

// FirstLine is the title of a session whose model gave none: the first line of
// the prompt that is not blank.
func FirstLine(prompt string) string {
	for line := range strings.Lines(stripMarkers(prompt)) {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			return strings.TrimSpace(firstRunes(line, titleLength))
		}
	}
	return ""
}

func trimTitle(s string) string {
	return strings.TrimFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || strings.ContainsRune("\"'`“”„‘’«»*#.,;:!…。！：", r)
	})
}

func firstRunes(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

//nolint:gochecknoglobals // a compiled constant
var markers = func() []*regexp.Regexp {
	var res []*regexp.Regexp
	for _, tag := range []string{
		protocol.TagTurnAborted, protocol.TagTurnRetried, protocol.TagContextSummary,
		protocol.TagSummary, protocol.TagUserSteering,
	} {
		res = append(res, regexp.MustCompile(`(?s)\[`+tag+`\].*?\[/`+tag+`\]|<`+tag+`>.*?</`+tag+`>`))
	}
	return res
}()

// stripMarkers removes the blocks that the loop writes into user texts.
func stripMarkers(s string) string {
	for _, re := range markers {
		s = re.ReplaceAllString(s, "")
	}
	return s
}
