package llm

import (
	"unicode/utf8"

	"rookery/protocol"
)

// maxTokens is more than any request has: a larger figure is nonsense.
const maxTokens = 50_000_000

// wireUsage is what providers report; see usage.
type wireUsage struct {
	Prompt     num `json:"prompt_tokens"`
	Completion num `json:"completion_tokens"`
	Total      num `json:"total_tokens"`
	Cached     num `json:"cached_tokens"`
	CacheHit   num `json:"prompt_cache_hit_tokens"`
	PDetails   *struct {
		Cached num `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CDetails *struct {
		Reasoning num `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

// usage turns the report into our counts: the total is never below its parts, and
// what it exceeds them by is output that the provider did not list. It reports
// false for figures that can't be true.
func (w *wireUsage) usage() (u protocol.Usage, reasoning int64, ok bool) {
	p, c, t := int64(w.Prompt), int64(w.Completion), int64(w.Total)
	if p <= 0 || c < 0 || t < 0 || p > maxTokens || c > maxTokens || t > maxTokens {
		return u, 0, false
	}
	cached := max(w.Cached, w.CacheHit, 0)
	if w.PDetails != nil {
		cached = max(cached, w.PDetails.Cached)
	}
	u.CacheRead = min(int64(cached), p)
	u.CacheWrite = p - u.CacheRead
	u.Total = max(t, p+c)
	u.Output = u.Total - p
	if w.CDetails != nil {
		reasoning = min(max(int64(w.CDetails.Reasoning), 0), u.Output)
	}
	return u, reasoning, true
}

// estimate guesses how many tokens a text is: four ASCII characters or one other
// character a token.
func estimate(s string) float64 {
	ascii, wide := 0, 0
	for i := range len(s) {
		switch c := s[i]; {
		case c < utf8.RuneSelf:
			ascii++
		case utf8.RuneStart(c):
			wide++
		}
	}
	return float64(ascii)/4 + float64(wide)
}

// calibrate learns from a prompt that the endpoint counted.
func (c *Client) calibrate(actual int64, estimated float64) {
	if estimated < 1 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ratio = min(max(float64(actual)/estimated, 0.5), 2)
}

// guess returns the usage of a request that the endpoint did not count.
func (c *Client) guess(prompt, output float64) protocol.Usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := protocol.Usage{CacheWrite: int64(prompt*c.ratio) + 1, Output: int64(output*c.ratio) + 1}
	u.Total = u.CacheWrite + u.Output
	return u
}
