package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"rookery/client"
	"rookery/internal/bus"
	"rookery/internal/config"
	"rookery/internal/host"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Show the version", Args: args(0, 0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(a.stdout, "rookery %s %s %s/%s\n", host.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

func (a *app) doctorCommand() *cobra.Command {
	all := false
	cmd := &cobra.Command{
		Use: "doctor", Short: "Show what this machine can do, and where each setting comes from", Args: args(0, 0, "no arguments"),
		Long: `doctor checks everything that a run needs and says what is wrong with it. Its exit
status is 1 when something is.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context(), all) },
	}
	cmd.Flags().BoolVar(&all, "all", false, "list settings that have their default, too")
	return cmd
}

// An examination is one run of doctor.
type examination struct {
	*app
	cfg *config.Config
	bad int
}

func (a *app) doctor(ctx context.Context, all bool) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cfg, err := a.load("", nil)
	if err != nil {
		return err
	}
	x := &examination{app: a, cfg: cfg}
	x.head("program")
	x.line("rookery %s, %s", host.Version(), runtime.Version())
	x.line("%s/%s, kernel %s, %d processors", runtime.GOOS, runtime.GOARCH, kernel(), runtime.NumCPU())
	x.settings(all)
	x.model()
	x.sandbox(ctx)
	x.broker(ctx)
	x.store()
	if x.bad > 0 {
		return fmt.Errorf("doctor: %d checks failed, see above", x.bad)
	}
	return nil
}

func (x *examination) head(s string) { say(x.stdout, "%s\n", s) }

func (x *examination) line(format string, args ...any) {
	say(x.stdout, "%s\n", "  "+visibleLine(fmt.Sprintf(format, args...)))
}

// check tells how something went.
func (x *examination) check(what string, err error) bool {
	if err != nil {
		x.bad++
		x.line("FAIL %s: %s%s", what, joined(err), advice(err))
		return false
	}
	x.line("ok   %s", what)
	return true
}

func (x *examination) settings(all bool) {
	x.head("settings (user file " + visibleLine(x.cfg.UserFile()) + ")")
	hidden := 0
	for _, s := range x.cfg.Settings() {
		if s.Origin.Layer == config.LayerDefault && !all {
			hidden++
			continue
		}
		x.line("%s = %s (%s)", s.Key, withoutPasswords(s.Value), s.Origin)
	}
	if hidden > 0 {
		x.line("%d others have their default; --all lists them", hidden)
	}
}

// withoutPasswords hides the password of each URL in a setting.
func withoutPasswords(s string) string {
	fields := strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(" ,[]", r) })
	for _, f := range fields {
		if u, err := url.Parse(f); err == nil && u.User != nil {
			s = strings.ReplaceAll(s, f, u.Redacted())
		}
	}
	return s
}

func (x *examination) model() {
	x.head("model")
	m, err := x.cfg.FindModel("")
	if err == nil && m.Name == config.Demo {
		x.line("ok   demo: a script, no intelligence")
		return
	}
	name := x.cfg.Model
	if err == nil {
		name = fmt.Sprintf("%s at %s", m.Name, withoutPasswords(m.BaseURL))
	}
	x.check("model "+name, err)
}

func (x *examination) broker(ctx context.Context) {
	x.head("broker")
	b, err := x.join(ctx, x.cfg)
	what := "broker of this user, store " + x.storeDir()
	if host.Configured(x.cfg) {
		what = "configured broker"
	}
	if !x.check(what, err) {
		return
	}
	err = b.Setup(ctx, bus.StoreOptions{Replicas: x.cfg.Store.Replicas})
	if !x.check("JetStream: streams and buckets", err) {
		return
	}
	start := time.Now()
	_, err = b.Exists(ctx, "doctor")
	x.check(fmt.Sprintf("reads from the trace, %s", time.Since(start).Round(10*time.Microsecond)), err)
	took, err := b.Probe(ctx)
	x.check(fmt.Sprintf("writes to the trace, %s", took.Round(10*time.Microsecond)), err)
	l := &link{Client: client.New(b), app: x.app, cfg: x.cfg, bus: b}
	f, err := l.fleet(ctx)
	if !x.check("directory", err) {
		return
	}
	x.line("%d orchestrators, %d workers, %d sessions, %d of them running", len(f.Orchestrators), len(f.Workers), f.Sessions, len(f.Running))
	for _, w := range f.Workers {
		x.line("worker %s on %s: sandbox %s, %d slots, %d tools, version %s", w.Worker, w.Host, w.Sandbox, w.Slots, len(w.Tools), w.Version)
		if w.Refused != "" {
			x.check("worker "+string(w.Worker), errors.New(w.Refused))
		}
	}
	if host.Configured(x.cfg) && len(f.Orchestrators) == 0 {
		x.check("orchestrator", client.ErrNoOrchestrator)
	}
}

func (x *examination) storeDir() string {
	if x.cfg.Store.Dir != "" {
		return x.cfg.Store.Dir
	}
	return config.FindPaths().Store
}

// store tells how full the store of this machine's own broker is.
func (x *examination) store() {
	if host.Configured(x.cfg) {
		return
	}
	x.head("store")
	if x.cfg.Store.Durability == "strict" {
		x.line("durability strict: what is stored is on the disk")
	} else {
		x.line("durability fast: a power cut may cost the last second, and a call that ran in it may run again; strict prevents that")
	}
	dir := x.storeDir()
	used, err := size(dir)
	if !x.check("store "+dir, err) {
		return
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); !x.check("disk", err) {
		return
	}
	left := disk.Bavail * uint64(disk.Bsize) //nolint:gosec // a block size is positive
	x.line("%d MiB used, %d MiB left on the disk", used>>20, left>>20)
	if left < lowDisk {
		x.check("room", fmt.Errorf("only %d MiB are left; sessions stop when the disk is full", left>>20))
	}
}

const lowDisk = 256 << 20

func size(dir string) (int64, error) {
	var n int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile
			return nil
		case err != nil:
			return err
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			n += info.Size()
		}
		return nil
	})
	return n, err
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
