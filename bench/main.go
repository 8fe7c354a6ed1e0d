package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"

	"rookery/internal/sandbox/backend"
	"rookery/internal/tool"
)

func main() {
	backend.Main(tool.Ops()) // a child of the sandbox does not come back
	if role := os.Getenv(roleVariable); role != "" {
		exit(child(role))
	}
	rows := flag.String("rows", "", "comma separated groups of rows; default all")
	scale := flag.Float64("scale", 1, "multiplies how often things are measured, and how large they get")
	out := flag.String("o", "", "`base` of the files to write: BASE.md, BASE.json; default the table on standard output")
	img := flag.String("img", "", "`directory` for the curves")
	profile := flag.String("profile", "", "`file` for a processor profile of this process")
	box := flag.String("sandbox", "", "native, landlock or none; default native where it works, else none")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(profiled(*profile, func() error { return measure(ctx, *rows, *scale, *box, *out, *img) }))
}

// profiled runs f under the profiler where a file is named.
func profiled(name string, f func() error) error {
	if name == "" {
		return f()
	}
	return writeFile(name, func(w io.Writer) error {
		if err := pprof.StartCPUProfile(w); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
		return f()
	})
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// measure runs the groups and writes what they found.
func measure(ctx context.Context, names string, scale float64, box, out, img string) error {
	b, err := newBench(ctx, scale, box)
	if err != nil {
		return err
	}
	defer b.close()
	faults := b.groups(ctx, names)
	b.result.RTT = b.rtts.stat()
	return errors.Join(faults, b.write(out, img))
}

// A group measures rows that belong together.
type group struct {
	name string
	run  func(*bench, context.Context) error
}

func allGroups() []group {
	return []group{
		{"call", (*bench).calls},
		{"turn", (*bench).turns},
		{"sessions", (*bench).sessions},
		{"delta", (*bench).deltas},
		{"fanout", (*bench).fanout},
		{"resume", (*bench).resume},
		{"history", (*bench).history},
		{"idle", (*bench).idle},
		{"running", (*bench).running},
		{"takeover", (*bench).takeover},
		{"start", (*bench).start},
		{"exec", (*bench).exec},
		{"workers", (*bench).workers},
		{"backlog", (*bench).backlog},
	}
}

func (b *bench) groups(ctx context.Context, names string) error {
	want := strings.FieldsFunc(names, func(r rune) bool { return r == ',' })
	var faults []error
	for _, g := range allGroups() {
		if len(want) > 0 && !slices.Contains(want, g.name) || ctx.Err() != nil {
			continue
		}
		began := time.Now()
		before := len(b.result.Rows)
		err := b.group(ctx, g)
		if err == nil && len(b.result.Rows) == before {
			err = errors.New("no result")
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", g.name, err))
		}
		fmt.Fprintf(os.Stderr, "%-10s %6.1f s  %v\n", g.name, time.Since(began).Seconds(), orDone(err))
	}
	return errors.Join(append(faults, ctx.Err())...)
}

// groupLimit ends a group that hangs.
const groupLimit = 3 * time.Minute

func (b *bench) group(ctx context.Context, g group) error {
	ctx, cancel := context.WithTimeout(ctx, groupLimit)
	defer cancel()
	return g.run(b, ctx)
}

func orDone(err error) any {
	if err == nil {
		return "done"
	}
	return err
}

func (b *bench) write(out, img string) error {
	var errs []error
	if out == "" {
		errs = append(errs, b.result.markdown(os.Stdout))
	} else {
		errs = append(errs, writeFile(out+".md", b.result.markdown), writeFile(out+".json", b.result.json))
	}
	if img != "" {
		for _, s := range b.result.Series {
			errs = append(errs, writeFile(filepath.Join(img, s.Name+".svg"), s.svg))
		}
	}
	return errors.Join(errs...)
}
