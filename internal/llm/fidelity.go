package llm

import (
	"bytes"
	"encoding/json"
	"strings"

	"rookery/protocol"
)

// A fidelity is what this adapter wants back with a message. Nobody else looks inside.
type fidelity struct {
	// Provider and Model say whose it is: others do not get it.
	Provider string `json:"provider,omitempty"`
	Model    string `json:"model,omitempty"`
	// Field is the member the thinking came in.
	Field string `json:"field,omitempty"`
	// Details are reasoning_details, pieces of one item joined.
	Details []json.RawMessage `json:"details,omitempty"`
	// Extra is extra_content, such as a thought signature.
	Extra json.RawMessage `json:"extra_content,omitempty"`
	// ID is the provider's call id where ours can't be turned back into it.
	ID string `json:"id,omitempty"`
}

// encode returns nil when there is nothing to keep.
func (f fidelity) encode(cfg *Config) protocol.Fidelity {
	if f.Field == "" && f.Details == nil && f.Extra == nil && f.ID == "" {
		return nil
	}
	f.Provider, f.Model = cfg.Provider, cfg.Model
	b, err := json.Marshal(f)
	if err != nil { // a raw member that is no JSON: nothing to send back
		return nil
	}
	return b
}

// readFidelity returns what came from this provider and model, else nothing.
func readFidelity(raw protocol.Fidelity, cfg *Config) (f fidelity) {
	if len(raw) == 0 || json.Unmarshal(raw, &f) != nil || f.Provider != cfg.Provider || f.Model != cfg.Model {
		return fidelity{}
	}
	return f
}

// A detail is one item of reasoning_details: what we read of it, and all of it.
type detail struct {
	Type      string
	Text      str
	Summary   str
	Signature str
	Index     *num
	raw       json.RawMessage
}

// details is reasoning_details; anything but a list of objects is nothing.
type details []detail

func (d *details) UnmarshalJSON(b []byte) error {
	*d = nil
	var raws []json.RawMessage
	_ = lenient(b, &raws)
	for _, raw := range raws {
		var it detail
		if len(raw) == 0 || raw[0] != '{' || lenient(raw, &it) != nil {
			continue
		}
		it.raw = raw
		*d = append(*d, it)
	}
	return nil
}

// text returns the thinking that can be read in the details.
func (d details) text() string {
	var b strings.Builder
	for _, it := range d {
		switch it.Type {
		case "reasoning.text":
			b.WriteString(it.Text.s)
		case "reasoning.summary":
			b.WriteString(it.Summary.s)
		}
	}
	return b.String()
}

// signed reports that an item is finished by a signature.
func (d details) signed() bool {
	for _, it := range d {
		if it.Signature.s != "" {
			return true
		}
	}
	return false
}

// A detailList joins the pieces of streamed items.
type detailList struct {
	items []map[string]json.RawMessage
}

// add appends the items, joining each to the last one when it continues it: same
// type and index, and text to go on with.
func (l *detailList) add(d details) {
	for _, it := range d {
		var m map[string]json.RawMessage
		if json.Unmarshal(it.raw, &m) != nil {
			continue
		}
		if n := len(l.items); n > 0 && continues(l.items[n-1], m) {
			join(l.items[n-1], m)
			continue
		}
		l.items = append(l.items, m)
	}
}

func continues(last, m map[string]json.RawMessage) bool {
	if !bytes.Equal(last["type"], m["type"]) || !bytes.Equal(last["index"], m["index"]) {
		return false
	}
	if present(last["signature"]) && present(m["text"]) && string(m["text"]) != `""` {
		return false
	}
	return present(m["text"]) || present(m["summary"]) || present(m["signature"])
}

// join adds the texts of m to those of last; of other members the last one counts.
func join(last, m map[string]json.RawMessage) {
	for k, v := range m {
		if !present(v) {
			continue
		}
		var a, b string
		if (k == "text" || k == "summary") && json.Unmarshal(last[k], &a) == nil && json.Unmarshal(v, &b) == nil {
			v, _ = json.Marshal(a + b) // strings always encode
		}
		last[k] = v
	}
}

// encode returns the items; encoding/json sorts their members.
func (l *detailList) encode() []json.RawMessage {
	out := make([]json.RawMessage, 0, len(l.items))
	for _, m := range l.items {
		if b, err := json.Marshal(m); err == nil {
			out = append(out, b)
		}
	}
	return out
}
