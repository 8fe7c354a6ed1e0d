package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"rookery/internal/engine"
	"rookery/internal/engine/enginetest"
	"rookery/internal/llm/llmtest"
	"rookery/protocol"
)

// latency is what an endpoint and a tool take at least. Time stands still until
// everybody has done what is due, so whatever a viewer does about a message
// happens before the next thing that was not under way. Behind each statement of
// the script settling passes: then what is due at that instant has happened.
const (
	latency  = 10 * time.Microsecond
	settling = 100 * latency
)

// steps is a scripted reply as an endpoint says it. What can't be said over HTTP
// is an error: such a file is of the engine's level.
func steps(r enginetest.Reply, gates *enginetest.Gates) ([]llmtest.Step, error) {
	out := []llmtest.Step{llmtest.Wait(latency)}
	said := len(r.Usages) > 0
	for _, it := range r.Items {
		pieces := slices.DeleteFunc(slices.Clone(it.Pieces), func(p string) bool { return p == "" })
		switch it.Kind {
		case enginetest.ItemThink:
			out, said = append(out, llmtest.Think(pieces...)), true
		case enginetest.ItemText:
			out, said = append(out, llmtest.Text(pieces...)), true
		case enginetest.ItemCall:
			out, said = append(out, llmtest.Call(it.ID, it.Name, pieces...)), true
		case enginetest.ItemWait:
			out = append(out, llmtest.Wait(it.For))
		case enginetest.ItemHold:
			out = append(out, hold(gates, it.Gate))
		}
	}
	out = append(out, llmtest.Wait(latency))
	switch e := r.End; {
	case e == nil && r.Half():
		return append(out, llmtest.Stall()), nil
	case e == nil || e.Status == protocol.Completed:
		if e != nil && e.Length {
			out = append(out, llmtest.Finish("length"))
		}
		for _, u := range r.Usages {
			out = append(out, llmtest.Usage(int(u.CacheRead+u.CacheWrite), int(u.Output), int(u.CacheRead)))
		}
		return out, nil
	default:
		end, err := ending(*e, said)
		return append(append(out, usageAhead(r.Usages)...), end...), err
	}
}

// hold waits for a release of the script.
func hold(gates *enginetest.Gates, name string) llmtest.Step {
	return llmtest.Do(func(gone <-chan struct{}) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() { // ends with the hold
			select {
			case <-gone:
				cancel()
			case <-ctx.Done():
			}
		}()
		_ = gates.Wait(ctx, name) // a client that is gone is seen by the player
	})
}

// usageAhead reports usage in a reply that does not finish.
func usageAhead(us []protocol.Usage) []llmtest.Step {
	var out []llmtest.Step
	for _, u := range us {
		out = append(out, llmtest.Raw(fmt.Sprintf(
			`data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`+"\n\n", u.CacheRead+u.CacheWrite, u.Output)))
	}
	return out
}

// ending is how an endpoint lets a reply go wrong.
func ending(e enginetest.End, said bool) ([]llmtest.Step, error) {
	switch {
	case e.Status == protocol.Malformed:
		return []llmtest.Step{llmtest.Cut()}, nil
	case e.Status == protocol.Timeout && !said:
		return []llmtest.Step{refusal(e, http.StatusServiceUnavailable, "overloaded")}, nil
	case e.Status == protocol.Timeout && e.Message == "":
		return []llmtest.Step{llmtest.Abort()}, nil
	case e.Status == protocol.Timeout:
		return inStream(e, "server_error"), nil
	case e.Status == protocol.Failed && !said && e.Code == protocol.CodeAuth:
		return []llmtest.Step{refusal(e, http.StatusUnauthorized, "invalid_api_key")}, nil
	case e.Status == protocol.Failed && !said && e.Code == protocol.CodeModel:
		return []llmtest.Step{refusal(e, http.StatusNotFound, "model_not_found")}, nil
	case e.Status == protocol.Failed && !said:
		return []llmtest.Step{refusal(e, http.StatusBadRequest, "invalid_request_error")}, nil
	case e.Status == protocol.Failed && e.Code == protocol.CodeAuth:
		return inStream(e, "invalid_api_key"), nil
	case e.Status == protocol.Failed:
		return inStream(e, "invalid_request_error"), nil
	}
	return nil, fmt.Errorf("line %d: an endpoint can't end a reply as %s: the file is of level: engine", e.Line, e.Status)
}

func errorBody(e enginetest.End, code string) string {
	b, err := json.Marshal(map[string]any{"error": map[string]string{"message": e.Message, "code": code}})
	if err != nil {
		panic(err) // two strings
	}
	return string(b)
}

func refusal(e enginetest.End, status int, code string) llmtest.Step {
	var header []string
	if e.RetryAfter > 0 {
		status = http.StatusTooManyRequests
		header = []string{"Retry-After-Ms", fmt.Sprint(e.RetryAfter.Milliseconds())}
	}
	return llmtest.Status(status, errorBody(e, code), header...)
}

func inStream(e enginetest.End, code string) []llmtest.Step {
	return []llmtest.Step{llmtest.Raw("data: " + errorBody(e, code) + "\n\n"), llmtest.Cut()}
}

// A recorder is the adapter under test and what it was asked. It takes two words of
// the adapter back, which the scripts don't know: usage that it estimated, and
// what it says around a provider's message.
type recorder struct {
	engine.Model
	replies []enginetest.Reply

	mu       sync.Mutex // requests may overlap when an owner dies
	requests []engine.Request
	calls    map[string]string // "<request>-<position>" to the call's id
}

func (r *recorder) Stream(ctx context.Context, req engine.Request, emit func(protocol.Payload) error) engine.Outcome {
	r.mu.Lock()
	kept := req
	kept.History, kept.Input = slices.Clone(req.History), slices.Clone(req.Input)
	r.requests = append(r.requests, kept)
	n := len(r.requests)
	r.mu.Unlock()
	position := 0
	o := r.Model.Stream(ctx, req, func(p protocol.Payload) error {
		if tc, ok := p.(protocol.ToolCall); ok && tc.StopReason == protocol.Completed {
			r.mu.Lock()
			r.calls[fmt.Sprintf("%d-%d", req.Number, position)] = tc.ToolCallID
			r.mu.Unlock()
			position++
		}
		return emit(p)
	})
	if o.Estimated {
		o.Usage, o.Estimated = nil, false
	}
	if n <= len(r.replies) {
		if e := r.replies[n-1].End; e != nil && e.Message != "" && strings.HasSuffix(o.Message, e.Message) {
			o.Message = e.Message
		}
	}
	return o
}

func (r *recorder) asked() []engine.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.requests)
}

// call returns the id of the call with a key such as scenario/1-0.
func (r *recorder) call(key string) string {
	_, place, _ := strings.Cut(key, "/")
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[place]
}
