package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"rookery/internal/bus/natsd"
	"rookery/internal/sandbox"
	"rookery/internal/sandbox/backend"
	"rookery/internal/tool"
)

// A bench is one run of this program.
type bench struct {
	dir    string // everything that is written lies here
	scale  float64
	box    string // name of the sandbox that works here
	result Result

	quiet *natsd.Server // does nothing else than the yardstick
	yard  *nats.Conn
	rtts  Sample
	count int // of directories given out
}

func newBench(ctx context.Context, scale float64, box string) (*bench, error) {
	dir, err := os.MkdirTemp("", "rookery-bench-")
	if err != nil {
		return nil, err
	}
	b := &bench{dir: dir, scale: scale, box: findSandbox(ctx, box)}
	b.result = Result{At: time.Now().UTC().Format("2006-01-02"), Machine: machine(), Scale: scale}
	if b.quiet, err = natsd.Start(natsd.Options{StoreDir: b.place(), Port: -1}); err == nil {
		b.yard, err = nats.Connect(b.quiet.ClientURL())
	}
	if err == nil {
		_, err = b.yard.Subscribe("echo", func(m *nats.Msg) { _ = m.Respond(m.Data) })
	}
	if err != nil {
		b.close()
		return nil, fmt.Errorf("start the yardstick: %w", err)
	}
	_, err = b.rtt(ctx)
	return b, err
}

// findSandbox is the one that was asked for, else native if it works, else none.
func findSandbox(ctx context.Context, want string) string {
	if want != "" {
		return want
	}
	s, err := backend.New("native", tool.Ops(), backend.Options{SoftLimits: true})
	if err != nil {
		return "none"
	}
	defer closeBackend(s)
	if _, err := s.Check(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "sandbox native does not work here, measuring with none:", err)
		return "none"
	}
	return "native"
}

// closeBackend ends what a backend keeps running.
func closeBackend(s sandbox.Backend) {
	if c, ok := s.(io.Closer); ok {
		_ = c.Close()
	}
}

func machine() string {
	return fmt.Sprintf("%s, %d CPUs, %s/%s", runtime.Version(), runtime.GOMAXPROCS(0), runtime.GOOS, runtime.GOARCH)
}

func (b *bench) close() {
	if b.yard != nil {
		b.yard.Close()
	}
	if b.quiet != nil {
		b.quiet.Shutdown()
	}
	_ = os.RemoveAll(b.dir)
}

// place is a new directory.
func (b *bench) place() string {
	b.count++
	return filepath.Join(b.dir, strconv.Itoa(b.count))
}

// n scales a count.
func (b *bench) n(base int) int { return max(2, int(float64(base)*b.scale)) }

func (b *bench) add(rows ...Row) { b.result.Rows = append(b.result.Rows, rows...) }

func (b *bench) draw(s Series) { b.result.Series = append(b.result.Series, s) }

// rtt is the yardstick, taken next to what it is compared with: a core request and
// reply over TCP. It is the median of some hundred, in µs.
func (b *bench) rtt(ctx context.Context) (float64, error) {
	var s Sample
	body := make([]byte, 200)
	for i := range 440 {
		began := time.Now()
		if _, err := b.yard.RequestWithContext(ctx, "echo", body); err != nil {
			return 0, fmt.Errorf("yardstick: %w", err)
		}
		if i >= 40 {
			s.add(time.Since(began))
		}
	}
	b.rtts = append(b.rtts, s...)
	return s.quantile(0.5), nil
}

// usage is the processor time that this process has used.
func usage() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// usageOf is the processor time of another process.
func usageOf(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(string(f[11]), 10, 64) // in hundredths of a second
	system, _ := strconv.ParseInt(string(f[12]), 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// resident is the memory of a process, in bytes.
func resident(pid int) float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	f := bytes.Fields(b)
	if len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseFloat(string(f[1]), 64)
	return pages * float64(os.Getpagesize())
}

// inUse is what the heap and the stacks of this process hold, after a collection.
func inUse() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse)
}

// rest waits for d, or the end of ctx.
func rest(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func writeFile(name string, write func(io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// flush returns when the broker has seen what c did so far.
func flush(c *nats.Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return c.FlushWithContext(ctx)
}
