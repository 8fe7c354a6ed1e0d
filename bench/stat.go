package main

import (
	"math"
	"slices"
	"time"
)

// A Sample holds single measurements, in the unit of its row.
type Sample []float64

func (s *Sample) add(d time.Duration) { *s = append(*s, micros(d)) }

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// quantile is 0 for an empty sample.
func (s Sample) quantile(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// A Stat is what is kept of a sample.
type Stat struct {
	Median float64 `json:"median"`
	P99    float64 `json:"p99,omitempty"`
	N      int     `json:"n,omitempty"`
}

func (s Sample) stat() Stat {
	return Stat{Median: s.quantile(0.5), P99: s.quantile(0.99), N: len(s)}
}

// single is a figure that was measured once.
func single(v float64) Stat { return Stat{Median: v, N: 1} }

func ratio(a, b float64) float64 {
	if b == 0 {
		return math.NaN()
	}
	return a / b
}
