package protocol

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// An ID names a session, worker, orchestrator, pool or command; it is one token
// of a subject: 1 to 40 of A-Z a-z 0-9 _ and -.
type ID string

var idShape = regexp.MustCompile(`^[A-Za-z0-9_-]{1,40}$`)

// ParseID checks s. IDs are checked here, at the edge, and nowhere else.
func ParseID(s string) (ID, error) {
	if !idShape.MatchString(s) {
		return "", fmt.Errorf("%.60q is not an id: 1 to 40 letters, digits, _ or - are allowed", s)
	}
	return ID(s), nil
}

// NewSessionID returns a fresh id that sorts by time: 20060102-150405-xxxxxxxx.
func NewSessionID() ID {
	return ID(time.Now().UTC().Format("20060102-150405-") + Token(4))
}

// Token returns n random bytes in hex: boots, command ids.
func Token(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// CallIDs makes provider call ids unique in a session (L033): the second call
// with id f becomes f#2. The zero value is ready; it is not safe for concurrent use.
type CallIDs struct{ seen map[string]bool }

// Reserve marks an id of the replayed history as taken.
func (c *CallIDs) Reserve(id string) {
	if c.seen == nil {
		c.seen = map[string]bool{}
	}
	c.seen[id] = true
}

// Unique returns id, or id#n with the smallest free n from 2, and reserves it.
// An empty id becomes call_<random>.
func (c *CallIDs) Unique(id string) string {
	if id == "" {
		id = "call_" + Token(8)
	}
	u := id
	for n := 2; c.seen[u]; n++ {
		u = id + "#" + strconv.Itoa(n)
	}
	c.Reserve(u)
	return u
}

// Clone returns an independent copy.
func (c *CallIDs) Clone() *CallIDs {
	if c == nil {
		return &CallIDs{}
	}
	d := &CallIDs{seen: make(map[string]bool, len(c.seen))}
	for id := range c.seen {
		d.seen[id] = true
	}
	return d
}

// ProviderCallID strips the suffix that Unique added.
func ProviderCallID(id string) string {
	base, n, ok := cutLast(id, "#")
	if v, err := strconv.Atoi(n); ok && base != "" && err == nil && v >= 2 && strconv.Itoa(v) == n {
		return base
	}
	return id
}

func cutLast(s, sep string) (before, after string, ok bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
