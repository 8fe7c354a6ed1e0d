package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
)

// A Row is one line of the table.
type Row struct {
	// Name is the same over all versions; compare joins by it.
	Name string `json:"name"`
	What string `json:"what"`
	// Unit of Floor and Ours.
	Unit  string `json:"unit"`
	Floor Stat   `json:"floor,omitzero"`
	Ours  Stat   `json:"ours"`
	// Figure is what the target speaks of, and Of what it is: x floor, x RTT, …
	Figure float64 `json:"figure,omitempty"`
	Of     string  `json:"of,omitempty"`
	// Target is an upper bound, a lower one with AtLeast; 0 is none.
	Target  float64 `json:"target,omitempty"`
	AtLeast bool    `json:"at_least,omitempty"`
	Note    string  `json:"note,omitempty"`
}

// over compares ours with the floor by their medians, against an upper bound.
func (r Row) over(target float64) Row {
	r.Figure, r.Of, r.Target = ratio(r.Ours.Median, r.Floor.Median), "× floor", target
	return r
}

// Met reports yes, no, or nothing where there is no target.
func (r Row) Met() string {
	switch {
	case r.Target == 0:
		return ""
	case math.IsNaN(r.Figure), r.AtLeast && r.Figure < r.Target, !r.AtLeast && r.Figure > r.Target:
		return "no"
	}
	return "yes"
}

func (r Row) target() string {
	switch {
	case r.Target == 0:
		return "-"
	case r.AtLeast:
		return "≥ " + figure(r.Target)
	}
	return "≤ " + figure(r.Target)
}

// A Series is a curve: a value for each size.
type Series struct {
	Name string `json:"name"` // of the file
	What string `json:"what"`
	X    string `json:"x"`
	Y    string `json:"y"`
	// Lines are drawn in this order.
	Lines []Line `json:"lines"`
}

// A Line is one curve of a Series.
type Line struct {
	Name string    `json:"name"`
	X    []float64 `json:"x"`
	Y    []float64 `json:"y"`
}

func (l *Line) add(x, y float64) { l.X, l.Y = append(l.X, x), append(l.Y, y) }

// A Result is a run.
type Result struct {
	At      string   `json:"at"`
	Machine string   `json:"machine"`
	Scale   float64  `json:"scale"`
	RTT     Stat     `json:"rtt"` // core request and reply over TCP, in µs
	Rows    []Row    `json:"rows"`
	Series  []Series `json:"series,omitempty"`
}

func (r *Result) json(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// markdown writes the table.
func (r *Result) markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s, scale %g. RTT %s µs (p99 %s).\n\n", r.At, r.Machine, r.Scale, figure(r.RTT.Median), figure(r.RTT.P99))
	b.WriteString("| row | what | unit | floor p50 | p99 | rookery p50 | p99 | figure | target | met | note |\n")
	b.WriteString("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- |\n")
	for _, row := range r.Rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", row.Name, row.What, row.Unit,
			figure(row.Floor.Median), figure(row.Floor.P99), figure(row.Ours.Median), figure(row.Ours.P99),
			strings.TrimSpace(figure(row.Figure)+" "+row.Of), row.target(), row.Met(), row.Note)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// figure writes a number with three digits that count.
func figure(v float64) string {
	switch a := math.Abs(v); {
	case v == 0:
		return "-"
	case math.IsNaN(v):
		return "?"
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
