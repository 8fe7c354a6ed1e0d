package llm

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	openai "github.com/sashabaranov/go-openai"

	"rookery/internal/engine"
	"rookery/protocol"
)

var (
	errCutOff = errors.New("the stream ended without a finish reason")
	errNotSSE = errors.New("the answer is not an event stream")
	errEmit   = errors.New("the consumer stopped the attempt")
)

// An httpError is an answer with another status than success.
type httpError struct {
	status     int
	retryAfter time.Duration
	body       streamError
}

func (e *httpError) Error() string {
	s := fmt.Sprintf("http %d", e.status)
	if t := http.StatusText(e.status); t != "" {
		s += " " + t
	}
	if e.body.message != "" {
		s += ": " + e.body.message
	}
	return s
}

// A streamError is an error object, of a stream or of a body.
type streamError struct {
	code, kind string
	status     int
	message    string
}

func (e *streamError) Error() string {
	s := "the provider reports an error"
	if e.code != "" {
		s += " (" + e.code + ")"
	}
	if e.message != "" {
		s += ": " + e.message
	}
	return s
}

// newStreamError reads an error object of any shape: nested, flat or a mere string.
func newStreamError(raw json.RawMessage) *streamError {
	var e struct {
		Error, Detail      json.RawMessage
		Code, Type         str
		Message            str
		StatusCode, Status num
	}
	var s str
	if len(raw) == 0 || raw[0] != '{' {
		if json.Unmarshal(raw, &s) != nil {
			return &streamError{message: cut(strings.TrimSpace(string(raw)), 200)}
		}
		return &streamError{message: cut(s.s, 500)}
	}
	if lenient(raw, &e) != nil {
		return &streamError{message: cut(string(raw), 200)}
	}
	if present(e.Error) {
		return newStreamError(e.Error)
	}
	out := &streamError{code: e.Code.s, kind: e.Type.s, message: cut(e.Message.s, 500)}
	if out.message == "" && present(e.Detail) {
		_ = json.Unmarshal(e.Detail, &s)
		out.message = cut(s.s, 500)
	}
	var snake struct {
		StatusCode num `json:"status_code"`
	}
	_ = lenient(raw, &snake)
	n, _ := strconv.Atoi(e.Code.s)
	for _, v := range []int{int(snake.StatusCode), int(e.StatusCode), n, int(e.Status)} {
		if v >= 300 && v < 600 {
			out.status = v
			break
		}
	}
	if out.message == "" {
		out.message = cut(string(raw), 200)
	}
	return out
}

// words reports that code or type is one of the words or begins with one.
func (e *streamError) words(words ...string) bool {
	return slices.ContainsFunc(words, func(w string) bool {
		return strings.HasPrefix(e.code, w) || strings.HasPrefix(e.kind, w)
	})
}

func (e *streamError) auth() bool {
	return e.words("invalid_api_key", "authentication_error", "unauthorized", "invalid_authentication")
}

func (e *streamError) busy() bool {
	return e.words("server_error", "api_error", "internal_error", "internal_server_error", "overloaded", "rate_limit",
		"RateLimit", "insufficient_quota", "service_unavailable", "timeout")
}

func (e *streamError) overflow() bool {
	m := strings.ToLower(e.message)
	return e.words("context_length_exceeded", "string_above_max_length") || slices.ContainsFunc([]string{
		"context length", "context window", "context size", "prompt is too long", "input is too long", "too many tokens",
		"reduce the length", "maximum number of tokens", "exceeds the maximum", "exceed_context",
	}, func(w string) bool { return strings.Contains(m, w) })
}

// verdict maps a status and an error object to ours. A status of 0 is none; began
// reports that the provider had begun to answer.
func (e *streamError) verdict(status int, began bool) engine.Outcome {
	o := engine.Outcome{Status: protocol.Failed}
	switch {
	case e.words("tool_use_failed"):
		o.Status = protocol.Malformed
	case status == 401, e.auth():
		o.Code = protocol.CodeAuth
	case status == 408, status == 409, status == 425, status == 429, status >= 500:
		o.Status = protocol.Timeout
	case status == 404 && e.words("model_not_found"):
		o.Code = protocol.CodeModel
	case status >= 300:
		o.ContextOverflow = e.overflow()
	case e.busy():
		o.Status = protocol.Timeout
	case e.overflow():
		o.ContextOverflow = true
	case e.words("invalid_request", "model_not_found", "not_found", "content_"):
	case began:
		o.Status = protocol.Malformed
	}
	return o
}

// classify says how an attempt ended that is not completed.
func classify(ctx context.Context, err error, began bool) engine.Outcome {
	var (
		o      engine.Outcome
		slow   *timeoutError
		status *httpError
		inBand *streamError
	)
	switch {
	case ctx.Err() != nil:
		return engine.Outcome{Status: protocol.Aborted, Message: fmt.Sprintf("the request was cancelled: %v", context.Cause(ctx))}
	case errors.Is(err, errEmit):
		o.Status = protocol.Aborted
	case errors.As(err, &slow):
		o.Status = protocol.Timeout
	case errors.As(err, &status):
		o = status.body.verdict(status.status, began)
		o.RetryAfter = status.retryAfter
	case errors.As(err, &inBand):
		o = inBand.verdict(inBand.status, began)
	case errors.Is(err, errFinishError):
		o = (&streamError{}).verdict(0, began)
	case errors.Is(err, errFiltered), permanent(err):
		o.Status = protocol.Failed
	case transport(err):
		o.Status = protocol.Timeout
	default:
		o.Status = protocol.Malformed
	}
	o.Message = err.Error()
	return o
}

// A sendError is a request that got no answer, or lost it.
type sendError struct{ err error }

func (e *sendError) Error() string { return e.err.Error() }
func (e *sendError) Unwrap() error { return e.err }

func transport(err error) bool {
	var e *sendError
	return errors.As(err, &e)
}

// permanent reports an error that the same request will meet again.
func permanent(err error) bool {
	var (
		cert   *tls.CertificateVerificationError
		record tls.RecordHeaderError
	)
	return errors.As(err, &cert) || errors.As(err, &record) || errors.Is(err, http.ErrSchemeMismatch) ||
		errors.Is(err, openai.ErrChatCompletionInvalidModel) || errors.Is(err, errBuild)
}

// retryAfter returns what the provider asks for: the larger of the two headers,
// at most a day.
func retryAfter(h http.Header) time.Duration {
	d := max(seconds(h.Get("Retry-After"), time.Second), seconds(h.Get("Retry-After-Ms"), time.Millisecond))
	if t, err := http.ParseTime(h.Get("Retry-After")); err == nil {
		d = max(d, time.Until(t))
	}
	return min(d, 24*time.Hour)
}

func seconds(s string, unit time.Duration) time.Duration {
	f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil || !(f > 0) {
		return 0
	}
	return time.Duration(min(f, 1e9) * float64(unit))
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) }
