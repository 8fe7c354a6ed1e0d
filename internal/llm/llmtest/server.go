package llmtest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// A Server answers chat completions. It is safe for concurrent use.
type Server struct {
	// URL is the base URL, with /v1.
	URL string
	// Transport reaches a server of StartPipe; nil for one that listens.
	Transport *http.Transport

	http     *http.Server
	listener net.Listener
	served   sync.WaitGroup
	handlers sync.WaitGroup
	stop     context.CancelFunc // ends every handler's context

	mu       sync.Mutex
	queue    [][]Step
	choose   func(Request) []Step
	static   func(body []byte) []byte
	requests []Request
	faults   []error
	released map[string]chan struct{}
	lenient  bool
	closed   bool
}

// NewServer returns a server that listens on a free port of loopback. Close ends it.
func NewServer() (*Server, error) {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for model requests: %w", err)
	}
	s := serve(l)
	s.URL = "http://" + l.Addr().String() + "/v1"
	return s, nil
}

// Start returns a server that ends with the test and fails it for every fault.
func Start(tb testing.TB) *Server {
	tb.Helper()
	s, err := NewServer()
	if err != nil {
		tb.Fatal(err)
	}
	s.endWith(tb)
	return s
}

// StartPipe is Start without sockets, for a bubble of fake time: the server is
// reached through its Transport only.
func StartPipe(tb testing.TB) *Server {
	tb.Helper()
	l := newPipes()
	s := serve(l)
	s.URL = "http://endpoint.test/v1"
	s.Transport = &http.Transport{DialContext: l.dial, DisableCompression: true, MaxIdleConnsPerHost: 64}
	s.endWith(tb)
	return s
}

func serve(l net.Listener) *Server {
	s := &Server{listener: l, released: map[string]chan struct{}{}}
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	s.http = &http.Server{
		Handler: s, ReadHeaderTimeout: time.Minute,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	s.served.Go(func() { _ = s.http.Serve(l) })
	return s
}

func (s *Server) endWith(tb testing.TB) {
	tb.Helper()
	tb.Cleanup(func() {
		s.Close()
		for _, err := range s.Faults() {
			tb.Errorf("model request: %v", err)
		}
	})
}

// Close cuts what is running and waits for it.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	if s.Transport != nil {
		s.Transport.CloseIdleConnections()
	}
	_ = s.http.Close()
	s.served.Wait()
	s.handlers.Wait()
}

// Reply queues the answer to one request. Without an ending step the reply gets
// its finish reason and [DONE].
func (s *Server) Reply(steps ...Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, steps)
}

// Choose answers the requests for which no reply is queued.
func (s *Server) Choose(f func(Request) []Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.choose = f
}

// Static answers every request with the bytes that f returns (see Encode), and
// neither records nor checks anything. f is called from many goroutines.
func (s *Server) Static(f func(body []byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.static = f
}

// Lenient switches the checks of requests off.
func (s *Server) Lenient() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lenient = true
}

// Release lets replies go on that wait at Hold(name), now and later.
func (s *Server) Release(name string) {
	ch := s.gate(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-ch:
	default:
		close(ch)
	}
}

func (s *Server) gate(name string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released[name] == nil {
		s.released[name] = make(chan struct{})
	}
	return s.released[name]
}

// Requests returns what was asked so far.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// Faults returns what was wrong with the requests so far.
func (s *Server) Faults() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]error(nil), s.faults...)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		return
	}
	defer s.handlers.Done()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has gone
	}
	s.mu.Lock()
	static := s.static
	s.mu.Unlock()
	if static != nil {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write(static(body))
		return
	}
	steps, err := s.take(r.Header, body)
	if err != nil {
		http.Error(w, fmt.Sprintf(`{"error":{"message":%q,"type":"invalid_request_error"}}`, err.Error()), http.StatusBadRequest)
		return
	}
	p := &player{server: s, w: w, gone: r.Context().Done()}
	p.play(steps)
}

// enter counts a handler, unless the server is closing.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.handlers.Add(1)
	return true
}

// take records a request and returns its reply.
func (s *Server) take(header http.Header, body []byte) ([]Step, error) {
	req := Request{Header: header.Clone(), Body: body}
	err := json.Unmarshal(body, &req)
	if err == nil && !s.isLenient() {
		err = Check(body)
	}
	s.mu.Lock()
	req.Number = len(s.requests) + 1
	s.requests = append(s.requests, req)
	var steps []Step
	choose := s.choose
	switch {
	case err != nil:
	case len(s.queue) > 0:
		steps, s.queue = s.queue[0], s.queue[1:]
		choose = nil
	case choose == nil:
		err = fmt.Errorf("no reply is left for request %d", req.Number)
	}
	if err != nil {
		s.faults = append(s.faults, fmt.Errorf("request %d: %w", req.Number, err))
	}
	s.mu.Unlock()
	if err == nil && choose != nil {
		steps = choose(req)
	}
	return steps, err
}

func (s *Server) isLenient() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lenient
}
