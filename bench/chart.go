package main

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// Sizes of a chart, in pixels.
const (
	chartWidth, chartHeight = 640, 320
	chartLeft, chartBottom  = 64, 48
	chartTop, chartRight    = 36, 150
)

// svg draws the curves: a logarithmic axis of sizes, a linear one of values.
func (s Series) svg(w io.Writer) error {
	x0, x1, top := s.extent()
	place := func(x, y float64) (px, py float64) {
		span := math.Log10(x1) - math.Log10(x0)
		if span == 0 {
			span = 1
		}
		px = chartLeft + (math.Log10(x)-math.Log10(x0))/span*(chartWidth-chartLeft-chartRight)
		return px, chartHeight - chartBottom - y/top*(chartHeight-chartBottom-chartTop)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", chartWidth, chartHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", chartWidth, chartHeight)
	fmt.Fprintf(&b, `<text x="%d" y="20" font-size="14">%s</text>`+"\n", chartLeft, escape(s.What))
	for i := range 5 {
		v := top * float64(i) / 4
		_, y := place(x0, v)
		fmt.Fprintf(&b, `<path d="M%d %.1fH%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			chartLeft, y, chartWidth-chartRight, chartLeft-6, y+4, axis(v))
	}
	for _, x := range s.Lines[0].X {
		px, _ := place(x, 0)
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%g</text>`+"\n", px, chartHeight-chartBottom+18, x)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d">%s</text><text x="6" y="%d">%s</text>`+"\n", chartLeft, chartHeight-10, escape(s.X), chartTop-4, escape(s.Y))
	for i, l := range s.Lines {
		l.draw(&b, place, []string{"#1f6feb", "#d1495b", "#2a9d5c", "#8a5cd1"}[i%4])
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (l Line) draw(b *strings.Builder, place func(x, y float64) (px, py float64), color string) {
	var points []string
	var px, py float64
	for i := range l.X {
		px, py = place(l.X[i], l.Y[i])
		points = append(points, fmt.Sprintf("%.1f,%.1f", px, py))
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", px, py, color)
	}
	fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(points, " "), color)
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" fill="%s">%s</text>`+"\n", px+8, py+4, color, escape(l.Name))
}

// extent is the range of the sizes, and a round value over all values.
func (s Series) extent() (x0, x1, top float64) {
	x0, x1 = math.Inf(1), 1
	for _, l := range s.Lines {
		for i := range l.X {
			x0, x1, top = min(x0, l.X[i]), max(x1, l.X[i]), max(top, l.Y[i])
		}
	}
	if top <= 0 {
		return min(x0, x1), x1, 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(top)))
	return min(x0, x1), x1, math.Ceil(top/unit*2) / 2 * unit
}

func axis(v float64) string {
	if v == 0 {
		return "0"
	}
	return figure(v)
}

func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(s)
}
