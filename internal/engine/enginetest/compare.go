package enginetest

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Diff shows how two lists of lines differ, with "- " for wanted and "+ " for got.
func Diff(want, got []string) string {
	common := lcs(want, got)
	var b strings.Builder
	i, j := 0, 0
	for i < len(want) || j < len(got) {
		switch {
		case i < len(want) && j < len(got) && want[i] == got[j]:
			fmt.Fprintf(&b, "  %s\n", want[i])
			i, j = i+1, j+1
		case j == len(got) || i < len(want) && common[i+1][j] >= common[i][j+1]:
			fmt.Fprintf(&b, "- %s\n", want[i])
			i++
		default:
			fmt.Fprintf(&b, "+ %s\n", got[j])
			j++
		}
	}
	return b.String()
}

// lcs is the table of the longest common subsequences of the tails.
func lcs(a, b []string) [][]int {
	t := make([][]int, len(a)+1)
	for i := range t {
		t[i] = make([]int, len(b)+1)
	}
	for i, x := range slices.Backward(a) {
		for j, y := range slices.Backward(b) {
			if x == y {
				t[i][j] = t[i+1][j+1] + 1
			} else {
				t[i][j] = max(t[i+1][j], t[i][j+1])
			}
		}
	}
	return t
}

var (
	toolLine = regexp.MustCompile(`^(?:partial_)?tool_call_output\[([^,\]]+)|^\+(?:call_dispatched|waiting|call_fate)\(([^,)]+)`)
	callLine = regexp.MustCompile(`^(?:partial_)?tool_call\[([^,\]]+)`)
)

// producers names who made a line; a complete call belongs to its own stream and
// to the loop.
func producers(line string) []string {
	if m := toolLine.FindStringSubmatch(line); m != nil {
		return []string{"tool " + m[1] + m[2]}
	}
	if m := callLine.FindStringSubmatch(line); m != nil {
		if isPartialLine(line) {
			return []string{"call " + m[1]}
		}
		return []string{"call " + m[1], "loop"}
	}
	return []string{"loop"}
}

// compareStack compares what each producer made, in its own order, and the points
// that hold whatever the timing: usage right before request_end, decision before
// output, every output before the next request.
func compareStack(want, got []string) error {
	got = spoken(want, got)
	w, g := split(want), split(got)
	for _, who := range slices.Sorted(maps.Keys(w)) {
		if err := equal(w[who], g[who]); err != nil {
			return fmt.Errorf("%s: %w", who, err)
		}
	}
	for _, who := range slices.Sorted(maps.Keys(g)) {
		if _, ok := w[who]; !ok {
			return fmt.Errorf("%s: %w", who, equal(nil, g[who]))
		}
	}
	if err := equal(epochs(want), epochs(got)); err != nil {
		return fmt.Errorf("outputs by request: %w", err)
	}
	return fixedPoints(got)
}

// timing are our own events that only the full stack emits, when it is slow
// enough or always; a file that does not name the kind does not speak of them.
func timing(line string) string {
	for _, kind := range []string{"+call_dispatched(", "+waiting(", "+reply_received"} {
		if strings.HasPrefix(bare(line), kind) {
			return kind
		}
	}
	return ""
}

func spoken(want, got []string) []string {
	named := map[string]bool{"": true}
	for _, line := range want {
		named[timing(line)] = true
	}
	var kept []string
	for _, line := range got {
		if named[timing(line)] {
			kept = append(kept, line)
		}
	}
	return kept
}

func split(lines []string) map[string][]string {
	by := map[string][]string{}
	for _, line := range lines {
		for _, who := range producers(line) {
			by[who] = append(by[who], line)
		}
	}
	for who, lines := range by {
		by[who] = joined(lines)
	}
	return by
}

var deltaLine = regexp.MustCompile(`^(partial_\w+(?:\[[^\]]*\])?)\(delta:(".*")\)$`)

// joined makes one delta of those that follow one another: how a text is cut into
// pieces is not the stack's to keep.
func joined(lines []string) []string {
	var out []string
	head, text := "", ""
	for _, line := range lines {
		m := deltaLine.FindStringSubmatch(line)
		if m == nil {
			out, head = append(out, line), ""
			continue
		}
		piece, err := strconv.Unquote(m[2])
		if err != nil {
			piece = m[2]
		}
		if m[1] == head {
			text += piece
			out = out[:len(out)-1]
		} else {
			head, text = m[1], piece
		}
		out = append(out, fmt.Sprintf("%s(delta:%q)", head, text))
	}
	return out
}

// epochs tells each output with how many requests had begun before it.
func epochs(lines []string) []string {
	var out []string
	n := 0
	for _, line := range lines {
		switch {
		case line == "request_begin":
			n++
		case strings.HasPrefix(line, "tool_call_output["):
			out = append(out, fmt.Sprintf("request %d: %s", n, line))
		}
	}
	slices.Sort(out)
	return out
}

func fixedPoints(got []string) error {
	decided := map[string]bool{}
	for i, line := range got {
		if strings.HasPrefix(line, "token_usage(") && !compacting(got, i) &&
			(i+1 == len(got) || !strings.HasPrefix(got[i+1], "request_end(")) {
			return fmt.Errorf("token_usage is not followed by request_end:\n%s", strings.Join(got, "\n"))
		}
		if d, ok := strings.CutPrefix(line, "approval_decision("); ok {
			_, id, _ := strings.Cut(strings.TrimSuffix(d, ")"), ",")
			decided[id] = true
		}
		if m := toolLine.FindStringSubmatch(line); m != nil && m[1] != "" && !decided[m[1]] {
			return fmt.Errorf("output of %s before its decision", m[1])
		}
	}
	return nil
}

// compacting reports whether line i stands between compaction_begin and _end,
// where viewers see the usage alone (L116).
func compacting(lines []string, i int) bool {
	for _, line := range slices.Backward(lines[:i]) {
		switch {
		case strings.HasPrefix(line, "compaction_end("):
			return false
		case strings.HasPrefix(line, "compaction_begin("):
			return true
		}
	}
	return false
}
