package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

// A row is what compare reads of a bench.Row.
type row struct {
	Name string `json:"name"`
	Unit string `json:"unit"`
	Ours struct {
		Median float64 `json:"median"`
	} `json:"ours"`
	Figure float64 `json:"figure"`
	Of     string  `json:"of"`
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: compare OLD.json NEW.json")
		os.Exit(2)
	}
	if err := compare(os.Stdout, os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

func compare(w io.Writer, older, newer string) error {
	was, _, err := read(older)
	if err != nil {
		return err
	}
	now, order, err := read(newer)
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString("| row | unit | old | new | change | old figure | new figure |\n| --- | --- | ---: | ---: | ---: | ---: | ---: |\n")
	for _, name := range order {
		n := now[name]
		o, ok := was[name]
		if !ok {
			fmt.Fprintf(&b, "| %s | %s | - | %.4g | new | | %.3g %s |\n", name, n.Unit, n.Ours.Median, n.Figure, n.Of)
			continue
		}
		fmt.Fprintf(&b, "| %s | %s | %.4g | %.4g | %+.0f %% | %.3g %s | %.3g %s |\n", name, n.Unit, o.Ours.Median, n.Ours.Median,
			100*(n.Ours.Median/o.Ours.Median-1), o.Figure, o.Of, n.Figure, n.Of)
		delete(was, name)
	}
	for name := range was {
		fmt.Fprintf(&b, "| %s | | | - | gone | | |\n", name)
	}
	_, err = io.WriteString(w, b.String())
	return err
}

// read returns the rows of a result by name, and the names in order.
func read(file string) (map[string]row, []string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	var r struct {
		Rows []row `json:"rows"`
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", file, err)
	}
	rows, order := map[string]row{}, make([]string, 0, len(r.Rows))
	for _, x := range r.Rows {
		rows[x.Name] = x
		order = append(order, x.Name)
	}
	for name := range rows {
		if rows[name].Ours.Median == 0 {
			return nil, nil, fmt.Errorf("read %s: row %s has no value", file, name)
		}
	}
	return rows, order, nil
}
