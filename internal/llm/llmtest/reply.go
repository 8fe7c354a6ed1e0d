package llmtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"
)

// A Step is one thing that a reply does.
type Step struct {
	chunks [][]byte // members of choices[0] or of the chunk, ready to be sent
	do     func(*player)
	calls  int  // tool calls it has, which decide the finish reason
	ends   bool // nothing is added behind it
	finish bool // it is the finish reason
}

type object = map[string]any

// Text says an assistant text, a chunk for each delta.
func Text(deltas ...string) Step { return member("content", deltas) }

// Think says thinking, as reasoning_content.
func Think(deltas ...string) Step { return member("reasoning_content", deltas) }

func member(key string, deltas []string) Step {
	var s Step
	for _, d := range deltas {
		s.chunks = append(s.chunks, choice(object{key: d}, nil))
	}
	return s
}

// Call makes a tool call; its arguments are sent in these pieces. Calls of one
// reply get their index by order.
func Call(id, name string, args ...string) Step {
	s := Step{calls: 1}
	first := object{"id": id, "type": "function", "function": object{"name": name, "arguments": ""}}
	s.chunks = append(s.chunks, choice(object{"tool_calls": []object{first}}, nil))
	for _, a := range args {
		s.chunks = append(s.chunks, choice(object{"tool_calls": []object{{"function": object{"arguments": a}}}}, nil))
	}
	return s
}

// Delta sends one delta object as it is.
func Delta(d map[string]any) Step { return Step{chunks: [][]byte{choice(d, nil)}} }

// Usage reports tokens; cached ones, when given, are part of prompt.
func Usage(prompt, completion int, cached ...int) Step {
	u := object{"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
	if len(cached) > 0 {
		u["prompt_tokens_details"] = object{"cached_tokens": cached[0]}
	}
	return Step{chunks: [][]byte{chunk(object{"choices": []object{}, "usage": u})}}
}

// Finish gives the finish reason; without it a reply gets stop or tool_calls.
func Finish(reason string) Step {
	return Step{finish: true, chunks: [][]byte{choice(object{}, reason)}}
}

// Wait pauses.
func Wait(d time.Duration) Step {
	return Step{do: func(p *player) {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-p.gone:
		}
	}}
}

// Hold pauses until Release(name).
func Hold(name string) Step {
	return Step{do: func(p *player) {
		select {
		case <-p.server.gate(name):
		case <-p.gone:
		}
	}}
}

// Do pauses while f runs; gone is closed when the client or the server has ended.
func Do(f func(gone <-chan struct{})) Step { return Step{do: func(p *player) { f(p.gone) }} }

// Comment sends a line that only keeps the connection busy.
func Comment(text string) Step { return Raw(": " + text + "\n\n") }

// Raw sends bytes as they are.
func Raw(b string) Step { return Step{do: func(p *player) { p.send([]byte(b)) }} }

// RawEnd sends pieces as they are, each in a write of its own, and nothing after them.
func RawEnd(pieces ...string) Step {
	return Step{ends: true, do: func(p *player) {
		for _, piece := range pieces {
			p.send([]byte(piece))
		}
	}}
}

// Every sends b again and again until the client goes.
func Every(d time.Duration, b string) Step {
	return Step{ends: true, do: func(p *player) {
		tick := time.NewTicker(d)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.send([]byte(b))
			case <-p.gone:
				return
			}
		}
	}}
}

// Status answers with an HTTP status instead of a stream; header is in pairs.
func Status(code int, body string, header ...string) Step {
	return Step{ends: true, do: func(p *player) {
		p.w.Header().Set("Content-Type", "application/json")
		for i := 0; i+1 < len(header); i += 2 {
			p.w.Header().Set(header[i], header[i+1])
		}
		p.w.WriteHeader(code)
		p.begun = true
		p.send([]byte(body))
	}}
}

// Cut ends the stream cleanly, without finish reason and [DONE].
func Cut() Step { return Step{ends: true} }

// NoDone ends a finished stream without [DONE].
func NoDone() Step { return Cut() }

// Abort breaks the body off, so that the client sees that something is missing.
func Abort() Step {
	return Step{ends: true, do: func(*player) { panic(http.ErrAbortHandler) }}
}

// Reset closes the connection hard.
func Reset() Step {
	return Step{ends: true, do: func(p *player) {
		p.begin()
		conn, _, err := http.NewResponseController(p.w).Hijack()
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = conn.Close()
	}}
}

// Stall keeps the connection open and silent until the client goes.
func Stall() Step {
	return Step{ends: true, do: func(p *player) { p.begin(); <-p.gone }}
}

// Encode returns a whole stream as bytes, for Static. Steps that do something
// else than send chunks are left out.
func Encode(steps ...Step) []byte {
	var b bytes.Buffer
	for _, c := range complete(steps) {
		for _, line := range c.chunks {
			b.Write(line)
		}
	}
	return b.Bytes()
}

// complete numbers the calls of a reply and adds finish reason and [DONE].
func complete(steps []Step) []Step {
	var out []Step
	calls, finished := 0, false
	for _, s := range steps {
		if s.calls > 0 {
			s.chunks = numbered(s.chunks, calls)
			calls++
		}
		if !finished && isUsage(s) {
			out, finished = append(out, finish(calls)), true
		}
		finished = finished || s.finish
		out = append(out, s)
		if s.ends {
			return out
		}
	}
	if !finished {
		out = append(out, finish(calls))
	}
	return append(out, Step{chunks: [][]byte{[]byte("data: [DONE]\n\n")}})
}

func isUsage(s Step) bool {
	return len(s.chunks) == 1 && bytes.Contains(s.chunks[0], []byte(`"choices":[],`))
}

func finish(calls int) Step {
	if calls > 0 {
		return Finish("tool_calls")
	}
	return Finish("stop")
}

// numbered puts the index of a call into its chunks.
func numbered(chunks [][]byte, index int) [][]byte {
	out := make([][]byte, len(chunks))
	for i, c := range chunks {
		out[i] = bytes.Replace(c, []byte(`"tool_calls":[{`), fmt.Appendf(nil, `"tool_calls":[{"index":%d,`, index), 1)
	}
	return out
}

func choice(delta object, finish any) []byte {
	return chunk(object{"choices": []object{{"index": 0, "delta": delta, "finish_reason": finish}}})
}

func chunk(members object) []byte {
	members["id"], members["object"], members["created"], members["model"] = "chatcmpl-0", "chat.completion.chunk", 1, "scripted"
	b, err := json.Marshal(members)
	if err != nil {
		panic(fmt.Sprintf("llmtest: a chunk that can't be encoded: %v", err))
	}
	return append(append([]byte("data: "), b...), "\n\n"...)
}

// A player sends one reply.
type player struct {
	server *Server
	w      http.ResponseWriter
	gone   <-chan struct{} // closed when the client or the server has ended
	begun  bool
}

func (p *player) play(steps []Step) {
	for _, s := range complete(steps) {
		for _, c := range s.chunks {
			p.send(c)
		}
		if s.do != nil {
			s.do(p)
		}
		select {
		case <-p.gone:
			panic(http.ErrAbortHandler) // what is not sent yet must be missed
		default:
		}
	}
	p.begin()
}

func (p *player) begin() {
	if p.begun {
		return
	}
	p.begun = true
	p.w.Header().Set("Content-Type", "text/event-stream")
	p.w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(p.w).Flush()
}

func (p *player) send(b []byte) {
	p.begin()
	_, _ = p.w.Write(b)
	_ = http.NewResponseController(p.w).Flush()
}
