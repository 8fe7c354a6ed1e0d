package llm

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	openai "github.com/sashabaranov/go-openai"
)

var errBuild = errors.New("the request can't be built")

// maxErrorBody bounds what is read of an error's body.
const maxErrorBody = 64 << 10

// A post sends one request through go-openai, which builds the URL and the
// authentication; the body is ours and the answer is taken before go-openai reads it.
type post struct {
	client *Client
	body   *body
	id     string
	clock  *clock
	answer *http.Response
}

// send returns the answer's body after its status and type were checked: a stream
// of events, or one whole JSON answer.
func (p *post) send(ctx context.Context) (*stream, error) {
	cfg := openai.DefaultConfig(p.client.cfg.APIKey)
	if p.client.cfg.Azure {
		cfg = openai.DefaultAzureConfig(p.client.cfg.APIKey, p.client.cfg.BaseURL)
		cfg.APIVersion = p.client.cfg.APIVersion
	}
	cfg.BaseURL, cfg.HTTPClient = p.client.cfg.BaseURL, p
	_, err := openai.NewClientWithConfig(cfg).CreateChatCompletionStream(ctx, openai.ChatCompletionRequest{Model: p.client.cfg.Model})
	if err != nil {
		return nil, err
	}
	s, err := p.open()
	if err != nil {
		_ = p.answer.Body.Close()
		return nil, err
	}
	return s, nil
}

// Do implements openai.HTTPDoer.
func (p *post) Do(req *http.Request) (*http.Response, error) {
	p.body.attach(req)
	for name, v := range p.client.cfg.ExtraHeaders {
		req.Header.Set(name, v)
	}
	if p.id != "" {
		req.Header.Set("X-Client-Request-Id", p.id)
	}
	req.Header.Del("Connection") // for HTTP/1.1 it says nothing, HTTP/2 forbids it
	var resp *http.Response
	var err error
	p.clock.wait(func() { resp, err = p.client.http.Do(req) })
	if err != nil {
		return nil, &sendError{err}
	}
	resp.Body = clockedBody{resp.Body, p.clock}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close()
		b, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
		return nil, &httpError{resp.StatusCode, retryAfter(resp.Header), *newStreamError(bytes.TrimSpace(b))}
	}
	p.answer = resp
	return resp, nil
}

// A stream is the body of an answer.
type stream struct {
	body   io.Closer
	events *events
	// whole is the answer of a server that does not stream.
	whole *chunk
}

func (p *post) open() (*stream, error) {
	var r io.Reader = p.answer.Body
	if p.answer.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, readError(err)
		}
		r = z
	}
	s := &stream{body: p.answer.Body}
	br := bufio.NewReaderSize(r, 16<<10)
	first, err := firstByte(br)
	if err != nil {
		return nil, readError(err)
	}
	if first == '{' {
		s.whole, err = readWhole(br)
		return s, err
	}
	kind, _, _ := mime.ParseMediaType(p.answer.Header.Get("Content-Type"))
	if kind != "text/event-stream" && !looksLikeEvents(br) {
		b, _ := io.ReadAll(io.LimitReader(br, 4<<10))
		return nil, fmt.Errorf("%w but %q: %s", errNotSSE, kind, cut(string(bytes.TrimSpace(b)), 200))
	}
	s.events = newEvents(br)
	return s, nil
}

// firstByte skips a byte order mark and blanks and returns what comes then,
// unread; 0 for an empty body.
func firstByte(br *bufio.Reader) (byte, error) {
	for {
		b, err := br.Peek(1)
		if err != nil {
			if isEOF(err) {
				return 0, nil
			}
			return 0, err
		}
		switch b[0] {
		case ' ', '\t', '\r', '\n', 0xEF, 0xBB, 0xBF:
			_, _ = br.Discard(1)
		default:
			return b[0], nil
		}
	}
}

func looksLikeEvents(br *bufio.Reader) bool {
	b, _ := br.Peek(6)
	for _, field := range []string{":", "data:", "event:", "id:", "retry:"} {
		if bytes.HasPrefix(b, []byte(field)) {
			return true
		}
	}
	return len(b) == 0
}

// readWhole reads an answer that is one JSON object: an error, or a reply that
// was not streamed.
func readWhole(r io.Reader) (*chunk, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxEvent+1))
	if err != nil {
		return nil, readError(err)
	}
	if len(b) > maxEvent {
		return nil, errTooLarge
	}
	b = bytes.TrimSpace(b)
	if !json.Valid(b) {
		return nil, fmt.Errorf("%w: %s", errNotSSE, cut(string(b), 200))
	}
	c, err := decodeChunk(event{data: b})
	if errors.Is(err, errPing) || err == nil && c.Choices == nil {
		return nil, fmt.Errorf("%w: %s", errNotSSE, cut(string(b), 200))
	}
	return c, err
}

// readError marks an error of the connection; what else a reader says stays.
func readError(err error) error {
	if isEOF(err) && !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errTooLarge) {
		return err
	}
	return &sendError{err}
}
