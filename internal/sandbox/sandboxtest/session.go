package sandboxtest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/stretchr/testify/require"

	"rookery/internal/sandbox"
)

func (b *bench) testInvalid() {
	t := b.t
	for want, spec := range map[string]sandbox.CallSpec{
		"no program":                            {},
		"argument 2 contains a NUL byte":        {Argv: []string{"sh", "-c", "echo \x00"}},
		`"A" contains a NUL byte`:               {Argv: []string{"true"}, Env: []string{"A=\x00"}},
		`"NOEQUALS" is not NAME=value`:          {Argv: []string{"true"}, Env: []string{"NOEQUALS"}},
		"working directory contains a NUL byte": {Argv: []string{"true"}, Dir: "a\x00"},
	} {
		_, err := b.Start(t.Context(), spec)
		require.ErrorIs(t, err, sandbox.ErrInvalid)
		require.ErrorContains(t, err, want)
	}
	_, err := b.Start(t.Context(), sandbox.CallSpec{Argv: []string{"no-such-program"}})
	require.ErrorIs(t, err, sandbox.ErrNotFound)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("not any more"))
	_, err = b.Start(ctx, sh("true"))
	require.ErrorContains(t, err, "not any more")
}

func (b *bench) testDir() {
	t := b.t
	require.NoError(t, os.Mkdir(filepath.Join(b.workspace, "sub"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(b.workspace, "file"), nil, 0o644))
	require.NoError(t, os.Symlink("/", filepath.Join(b.workspace, "out")))
	inside := b.Paths().Workspace
	for _, dir := range []string{"sub", filepath.Join(inside, "sub")} {
		spec := sh("pwd")
		spec.Dir = dir
		out, _ := b.run(spec)
		require.Equal(t, filepath.Join(inside, "sub")+"\n", out)
	}
	for _, dir := range []string{"missing", "file", "..", "/", "out"} {
		spec := sh("pwd")
		spec.Dir = dir
		_, err := b.Start(t.Context(), spec)
		require.Error(t, err, dir)
	}
}

func (b *bench) testParallel() {
	t := b.t
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			c, err := b.Start(t.Context(), sh("echo $$ | wc -l"))
			if err != nil {
				t.Error(err)
				return
			}
			out, _ := c.Output()
			text, err := io.ReadAll(out)
			if _, waitErr := c.Wait(); err != nil || waitErr != nil || strings.TrimSpace(string(text)) != "1" {
				t.Error(string(text), err, waitErr)
			}
		})
	}
	wg.Wait()
}

func (b *bench) testOps() {
	t := b.t
	require.NoError(t, os.WriteFile(filepath.Join(b.workspace, "a"), []byte("text"), 0o644))
	out, err := b.Do(t.Context(), "read", json.RawMessage(`"a"`))
	require.NoError(t, err)
	require.JSONEq(t, `"text"`, string(out))
	for op, want := range map[string]string{"read": "escapes", "panic": "broke", "big": "too large", "none": "unknown file operation"} {
		_, err := b.Do(t.Context(), op, json.RawMessage(`"../../etc/passwd"`))
		require.ErrorContains(t, err, want)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("not any more"))
	_, err = b.Do(ctx, "read", json.RawMessage(`"a"`))
	require.ErrorContains(t, err, "not any more")
}

func (b *bench) testClose() {
	t := b.t
	c := b.start(sh(hold))
	for {
		if _, err := b.Do(t.Context(), "read", json.RawMessage(`"held"`)); err == nil {
			break
		}
		require.NoError(t, t.Context().Err())
	}
	require.NoError(t, b.Close())
	require.NoError(t, b.Close())
	r, err := c.Wait()
	require.NoError(t, err)
	require.Equal(t, sandbox.WorkerStopped, r.Reason)
	b.free("lock")
	_, err = b.Start(t.Context(), sh("true"))
	require.ErrorIs(t, err, sandbox.ErrClosed)
	_, err = b.Do(t.Context(), "read", nil)
	require.ErrorIs(t, err, sandbox.ErrClosed)
}

func (b *bench) testUsage() {
	t := b.t
	_, r := b.run(sh("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"))
	require.Positive(t, r.Usage.CPU)
	require.Positive(t, r.Usage.PeakMem)
	require.NoError(t, b.Close()) // after which the sum is complete
	require.GreaterOrEqual(t, b.Usage().CPU, r.Usage.CPU)
}
