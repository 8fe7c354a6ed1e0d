package protocol

import (
	"fmt"
	"strconv"
	"strings"
)

// String returns "<stream seq>.<position in frame>".
func (c Cursor) String() string {
	return strconv.FormatUint(c.Seq, 10) + "." + strconv.Itoa(c.Pos)
}

// ParseCursor reads what String wrote; the empty string is the beginning.
func ParseCursor(s string) (Cursor, error) {
	if s == "" {
		return Cursor{}, nil
	}
	seq, pos, ok := strings.Cut(s, ".")
	n, err := strconv.ParseUint(seq, 10, 64)
	p, perr := strconv.ParseUint(pos, 10, 31)
	if !ok || err != nil || perr != nil {
		return Cursor{}, fmt.Errorf("%.60q is no cursor: <sequence>.<position>", s)
	}
	return Cursor{Seq: n, Pos: int(p)}, nil
}

// MarshalText makes a Cursor a string in JSON.
func (c Cursor) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads a Cursor from a string in JSON.
func (c *Cursor) UnmarshalText(b []byte) error {
	d, err := ParseCursor(string(b))
	if err != nil {
		return err
	}
	*c = d
	return nil
}
