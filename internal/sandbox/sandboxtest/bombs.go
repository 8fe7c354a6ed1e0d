package sandboxtest

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/sandbox"
)

// bombTime is when a bomb that nothing stops is given up.
const bombTime = 2 * time.Minute

// Bombs tries to exceed every limit, and expects the session to serve afterwards.
func Bombs(t *testing.T, b sandbox.Backend) {
	t.Helper()
	for name, test := range map[string]func(*bench){
		"Forks": (*bench).testForks, "Threads": (*bench).testThreads, "Memory": (*bench).testMemory, "MemoryOfMany": (*bench).testMemoryOfMany,
		"Files": (*bench).testFiles, "FileSize": (*bench).testFileSize, "Disk": (*bench).testDisk, "Output": (*bench).testOutput,
		"Descriptors": (*bench).testManyDescriptors,
	} {
		t.Run(name, func(t *testing.T) {
			dir := openDir(t)
			spec := sandbox.SessionSpec{
				ID: "bomb", Workspace: dir + "/w", Scratch: dir + "/s/s",
				Limits: sandbox.Limits{Memory: 256 << 20, Pids: 64, Disk: 128 << 20, Output: 1 << 20},
			}
			require.NoError(t, os.MkdirAll(spec.Workspace, 0o755))
			require.NoError(t, os.MkdirAll(spec.Scratch, 0o755))
			s, err := b.Open(t.Context(), spec)
			require.NoError(t, err)
			w := &bench{t: t, backend: b, Session: s, workspace: spec.Workspace}
			t.Cleanup(func() { require.NoError(t, s.Close()) })
			test(w)
			out, r := w.run(sh("echo still here"))
			require.Equal(t, "still here\n", out)
			require.Zero(t, r.Exit)
		})
	}
}

func (b *bench) bomb(script string) (string, sandbox.Result) {
	b.t.Helper()
	spec := sh(script)
	spec.Timeout = bombTime
	out, r := b.run(spec)
	require.NotEqual(b.t, sandbox.TimedOut, r.Reason, "nothing stopped it; it said %.200s", out)
	return out, r
}

func (b *bench) testForks() {
	// What it cannot start it leaves; then it counts what runs.
	out, _ := b.bomb(`i=0; while [ $i -lt 400 ]; do (sleep 20 &) 2>/dev/null || break; i=$((i+1)); done; echo end`)
	require.NotContains(b.t, out, "400")
	_, r := b.run(sandbox.CallSpec{Argv: []string{"bash", "-c", ":(){ :|:& };: ; sleep 1"}, Merge: true, Timeout: 3 * time.Second})
	require.NotEqual(b.t, sandbox.OutOfMemory, r.Reason)
}

func (b *bench) testThreads() {
	out, r := b.bomb(`command -v python3 >/dev/null || exit 9; python3 -c '
import threading, time
try:
    for i in range(1000): threading.Thread(target=time.sleep, args=(3,), daemon=True).start()
    print("all")
except RuntimeError: print("held", flush=True)
import os; os._exit(0)'`)
	if r.Exit != 9 {
		require.Equal(b.t, "held\n", out)
	}
}

func (b *bench) testMemory() {
	_, r := b.bomb(`head -c 2000000000 /dev/zero | tail`)
	require.Equal(b.t, sandbox.OutOfMemory, r.Reason)
}

func (b *bench) testMemoryOfMany() {
	_, r := b.bomb(`for i in 1 2 3 4 5 6; do { head -c 100000000 /dev/zero; sleep 60; } | tail >/dev/null & done; wait`)
	require.Equal(b.t, sandbox.OutOfMemory, r.Reason)
}

func (b *bench) testFiles() {
	out, r := b.bomb(`head -c 400000000 /dev/zero > /tmp/a; echo $?`)
	require.True(b.t, r.Reason == sandbox.OutOfMemory || out != "0\n", "/tmp takes what it is given: %s", out)
	out, r = b.bomb(`rm -f /tmp/a; i=0; while [ $i -lt 200000 ]; do : > /tmp/f$i || exit 7; i=$((i+1)); done; echo all`)
	require.NotEqual(b.t, "all\n", out, "%+v", r)
	_, r = b.run(sh("find /tmp -mindepth 1 -delete"))
	require.Zero(b.t, r.Exit)
}

func (b *bench) testFileSize() {
	_, r := b.bomb(`truncate -s 3G sparse`)
	require.NotZero(b.t, r.Exit)
}

func (b *bench) testDisk() {
	_, r := b.bomb(`i=0; while :; do head -c 10000000 /dev/zero > f$i; i=$(((i+1)%60)); sleep 0.02; done`)
	require.Equal(b.t, sandbox.DiskLimit, r.Reason)
	_, r = b.run(sh("rm -f f*")) // which must be possible
	require.Zero(b.t, r.Exit)
}

func (b *bench) testOutput() {
	out, r := b.bomb("yes")
	require.Equal(b.t, sandbox.OutputLimit, r.Reason)
	require.LessOrEqual(b.t, len(out), 1<<20)
}

func (b *bench) testManyDescriptors() {
	out, _ := b.bomb(`command -v python3 >/dev/null || { echo held; exit; }; python3 -c '
import os
try:
    while True: os.dup(0)
except OSError: print("held")'`)
	require.Equal(b.t, "held\n", out)
}
