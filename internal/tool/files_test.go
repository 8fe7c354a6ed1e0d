package tool_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"rookery/internal/tool"
	"rookery/protocol"
)

func TestRead_LinesWithNumbers(t *testing.T) {
	b := setup(t)
	b.write("a.txt", "one\ntwo\nthree")
	require.Equal(t, "     1\tone\n     2\ttwo\n     3\tthree\n", b.ok("read_file", object{"path": "a.txt"}))
	require.Equal(t, "     2\ttwo\n[more lines follow: go on with offset 3]", b.ok("read_file", object{"path": "./a.txt", "offset": 2, "limit": 1}))
	require.Equal(t, "     3\tthree\n", b.ok("read_file", object{"path": filepath.Join(b.dir, "a.txt"), "offset": 3}))
	require.Equal(t, "a.txt has 3 lines, offset 4 is past its end", b.fails("read_file", object{"path": "a.txt", "offset": 4}))
	b.write("empty", "")
	require.Equal(t, "[empty file]", b.ok("read_file", object{"path": "empty"}))
	b.write("crlf", "a\r\nb\r\n")
	require.Equal(t, "     1\ta\n     2\tb\n[lines end with CRLF]", b.ok("read_file", object{"path": "crlf"}))
}

func TestRead_StopsAtALineWithinTheCap(t *testing.T) {
	b := setup(t)
	b.write("a.txt", strings.Repeat(strings.Repeat("ä", 90)+"\n", 1000))
	call := b.call("read_file", object{"path": "a.txt"})
	call.MaxOutput = 1000
	out := b.run(call).Output
	require.NotContains(t, out, "truncated")
	require.True(t, strings.HasSuffix(out, "[more lines follow: go on with offset 9]"), out)
}

func TestRead_LongLinesAreCut(t *testing.T) {
	b := setup(t)
	b.write("min.js", strings.Repeat("x", 5_000_000)+"\nlast\n")
	out := b.ok("read_file", object{"path": "min.js"})
	require.Contains(t, out, strings.Repeat("x", 2000)+" [line cut: 4998000 more bytes]\n     2\tlast\n")
	require.Less(t, len(out), 2100)
}

func TestRead_BadBytes(t *testing.T) {
	b := setup(t)
	b.write("latin1", "caf\xe9\n")
	require.Equal(t, "     1\tcaf\ufffd\n", b.ok("read_file", object{"path": "latin1"}))
	b.write("bin", "ELF\x00\x01")
	require.Equal(t, "bin is a binary file of 5 bytes", b.fails("read_file", object{"path": "bin"}))
	b.write("i.png", "\x89PNG\r\n\x1a\n\x00")
	require.Equal(t, "i.png is a PNG image of 9 bytes: use read_image", b.fails("read_file", object{"path": "i.png"}))
}

func TestRead_EndlessFiles(t *testing.T) {
	b := setup(t)
	sparse, err := os.Create(filepath.Join(b.dir, "sparse"))
	require.NoError(t, err)
	_, err = sparse.WriteString(strings.Repeat("text\n", 4000))
	require.NoError(t, err)
	require.NoError(t, sparse.Truncate(1<<40))
	require.NoError(t, sparse.Close())
	peak := peakHeap(t)
	require.Contains(t, b.ok("read_file", object{"path": "sparse", "limit": 2}), "     2\ttext\n")
	whole := b.ok("read_file", object{"path": "sparse", "offset": 4000, "limit": 9})
	require.True(t, strings.HasPrefix(whole, "  4000\ttext\n  4001\t\ufffd"), whole[:100])
	require.Contains(t, whole, "[line 4001 does not end within 64 MiB")
	require.Contains(t, b.fails("read_file", object{"path": "sparse", "offset": 9999}), "not within the first 64 MiB")
	require.Contains(t, b.fails("edit_file", object{"path": "sparse", "old_string": "text", "new_string": "x"}), "larger than")
	require.Equal(t, "[no match]", b.ok("search_files", object{"pattern": "nosuch"}))
	require.Less(t, peak(), uint64(64<<20))
}

func TestFiles_OnlyRegularOnesAreOpened(t *testing.T) {
	b := setup(t)
	require.NoError(t, syscall.Mkfifo(filepath.Join(b.dir, "fifo"), 0o644))
	l, err := net.Listen("unix", filepath.Join(b.dir, "sock"))
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	require.NoError(t, os.Mkdir(filepath.Join(b.dir, "dir"), 0o755))
	require.NoError(t, os.Symlink("/dev/zero", filepath.Join(b.dir, "zero")))
	for name, want := range map[string]string{
		"fifo": "fifo is a named pipe", "sock": "sock is a socket", "dir": "dir is a directory", "zero": "outside the workspace", "nosuch": "nosuch does not exist",
	} {
		require.Contains(t, b.fails("read_file", object{"path": name}), want)
		require.Contains(t, b.fails("edit_file", object{"path": name, "old_string": "a", "new_string": "b"}), want)
		if name != "nosuch" {
			require.Contains(t, b.fails("write_file", object{"path": name, "content": "x"}), want)
		}
	}
	require.Equal(t, "[no match]", b.ok("search_files", object{"pattern": "."}))
	require.Equal(t, "dir/\nfifo [named pipe]\nsock [socket]\nzero -> /dev/zero", b.ok("list_files", object{}))
}

func TestFiles_StayInTheWorkspace(t *testing.T) {
	b := setup(t)
	outside := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o644))
	require.NoError(t, os.Symlink(outside, filepath.Join(b.dir, "link")))
	rel, err := filepath.Rel(b.dir, outside)
	require.NoError(t, err)
	require.NoError(t, os.Symlink(rel, filepath.Join(b.dir, "rel")))
	for _, path := range []string{outside + "/secret", rel + "/secret", "link/secret", "rel/secret", "/etc/passwd", "../" + filepath.Base(outside)} {
		for name, args := range map[string]object{
			"read_file": {"path": path}, "write_file": {"path": path, "content": "x"},
			"edit_file": {"path": path, "old_string": "secret", "new_string": "x"}, "list_files": {"path": path},
			"search_files": {"path": path, "pattern": "."},
		} {
			require.Contains(t, b.fails(name, args), "outside the workspace", "%s %s", name, path)
		}
	}
	require.Equal(t, "[no match]", b.ok("search_files", object{"pattern": "secret"}))
	text, err := os.ReadFile(filepath.Join(outside, "secret"))
	require.NoError(t, err)
	require.Equal(t, "secret", string(text))
}

func TestWrite(t *testing.T) {
	b := setup(t)
	require.Equal(t, "made a/b/c.txt (3 bytes)", b.ok("write_file", object{"path": "a/b/c.txt", "content": "one"}))
	require.Equal(t, "one", b.read("a/b/c.txt"))
	require.NoError(t, os.Chmod(filepath.Join(b.dir, "a/b/c.txt"), 0o750))
	require.Equal(t, "replaced a/b/c.txt (0 bytes)", b.ok("write_file", object{"path": "a/b/c.txt", "content": ""}))
	info, err := os.Stat(filepath.Join(b.dir, "a/b/c.txt"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o750), info.Mode())
	require.Zero(t, info.Size())

	require.NoError(t, os.Symlink("b/c.txt", filepath.Join(b.dir, "a/link")))
	b.ok("write_file", object{"path": "a/link", "content": "through"})
	require.Equal(t, "through", b.read("a/b/c.txt"))
	require.Equal(t, "a/b/\na/b/c.txt\na/link -> b/c.txt", b.ok("list_files", object{"path": "a"}))

	require.NoError(t, os.Symlink("loop", filepath.Join(b.dir, "loop")))
	require.Contains(t, b.fails("write_file", object{"path": "loop", "content": ""}), "loop of symbolic links")
	require.Contains(t, b.fails("write_file", object{"path": "a/b/c.txt/d", "content": ""}), "a directory")
	require.Contains(t, b.fails("write_file", object{"path": ".", "content": ""}), "is a directory")
}

func TestWrite_ReadersSeeOldOrNew(t *testing.T) {
	b := setup(t)
	old, young := strings.Repeat("a", 100_000), strings.Repeat("b", 100_000)
	b.write("f", old)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			b.tools.Execute(t.Context(), b.session, b.call("write_file", object{"path": "f", "content": young}), func(string) {})
		})
		wg.Go(func() {
			text, err := os.ReadFile(filepath.Join(b.dir, "f"))
			if err != nil || string(text) != old && string(text) != young {
				t.Error("torn file", err, len(text))
			}
		})
	}
	wg.Wait()
	require.Equal(t, "f", b.ok("list_files", object{}), "no temporary file stays")
}

func TestEdit(t *testing.T) {
	b := setup(t)
	b.write("a.go", "package a\n\nfunc f() {\n\treturn\n}\n\nfunc g() {\n\treturn\n}\n")
	out := b.ok("edit_file", object{"path": "a.go", "old_string": "func f() {\n\treturn\n", "new_string": "func f() {\n\tpanic(1)\n"})
	require.Equal(t, "--- a/a.go\n+++ b/a.go\n@@ -1,7 +1,7 @@\n package a\n \n func f() {\n-\treturn\n+\tpanic(1)\n }\n \n func g() {\n", out)
	require.Contains(t, b.read("a.go"), "panic(1)")
	b.write("b", "x x\nx\n")
	require.Contains(t, b.fails("edit_file", object{"path": "b", "old_string": "x", "new_string": "y"}), "occurs 3 times in b (lines 1, 1, 2)")
	require.Contains(t, b.ok("edit_file", object{"path": "b", "old_string": "x", "new_string": "y", "replace_all": true}), "-x x\n+y y\n-x\n+y\n")
	require.Equal(t, "y y\ny\n", b.read("b"))
	require.Contains(t, b.fails("edit_file", object{"path": "b", "old_string": "y", "new_string": "y"}), "the same")
}

func TestEdit_NearMisses(t *testing.T) {
	b := setup(t)
	b.write("a.py", "import os\n\ndef f(a):\n    if a:\n        return 1\n    return 2\n")
	edit := func(old string) string {
		return b.fails("edit_file", object{"path": "a.py", "old_string": old, "new_string": "new"})
	}
	require.Contains(t, edit("def f(a):\n  if a:\n    return 1"), "Lines 3-5 have all of its lines but for white space:\n     3\tdef f(a):\n     4\t    if a:\n")
	require.Contains(t, edit("def f(b):\n    if a:\n        return 1\n"), "have 2 of its 3 lines")
	require.Contains(t, edit("IMPORT OS"), "Line 1 is similar")
	require.Contains(t, edit("nothing like it"), "read the file again")
	require.NotContains(t, b.read("a.py"), "new")
}

func TestEdit_KeepsLineEndsAndMode(t *testing.T) {
	b := setup(t)
	b.write("dos", "a\r\nb\r\nc\r\n")
	require.NoError(t, os.Chmod(filepath.Join(b.dir, "dos"), 0o700))
	b.ok("edit_file", object{"path": "dos", "old_string": "a\nb\n", "new_string": "x\ny\n"})
	require.Equal(t, "x\r\ny\r\nc\r\n", b.read("dos"))
	info, err := os.Stat(filepath.Join(b.dir, "dos"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode())
}

func TestEdit_ParallelEditsAreNotLost(t *testing.T) {
	b := setup(t)
	b.write("f", "a\nb\nc\nd\ne\nf\n")
	var wg sync.WaitGroup
	for _, c := range "abcdef" {
		wg.Go(func() {
			b.tools.Execute(t.Context(), b.session, b.call("edit_file", object{"path": "f", "old_string": string(c), "new_string": strings.ToUpper(string(c))}), func(string) {})
		})
	}
	wg.Wait()
	require.Equal(t, "A\nB\nC\nD\nE\nF\n", b.read("f"))
}

func tree(b *bench) {
	for name, text := range map[string]string{
		".gitignore": "*.log\n/build/\n!keep.log\n", "main.go": "package main // needle\n", "x.log": "needle\n", "keep.log": "needle\n",
		"build/out.go": "needle\n", "cmd/a/a.go": "one\nNeedle here\n", "cmd/a/.gitignore": "gen.go\n", "cmd/a/gen.go": "needle\n",
		"cmd/gen.go": "needle\n", ".git/config": "needle\n", ".github/ci.yml": "on: push\n", "bin": "needle\x00\n",
	} {
		b.write(name, text)
	}
}

func TestList(t *testing.T) {
	b := setup(t)
	tree(b)
	require.Equal(t, strings.Join([]string{
		".github/", ".github/ci.yml", ".gitignore", "bin", "cmd/", "cmd/a/", "cmd/a/.gitignore", "cmd/a/a.go", "cmd/gen.go", "keep.log", "main.go",
	}, "\n"), b.ok("list_files", object{}))
	require.Equal(t, "cmd/a/a.go\ncmd/gen.go\nmain.go", b.ok("list_files", object{"glob": "*.go"}))
	require.Equal(t, "cmd/a/a.go", b.ok("list_files", object{"path": "cmd", "glob": "a/**/*.go"}))
	require.Equal(t, "cmd/a/.gitignore\ncmd/a/a.go", b.ok("list_files", object{"path": "cmd/a"}), "ignore files above and at the start count")
	require.Contains(t, b.ok("list_files", object{"ignored": true}), "build/out.go")
	require.NotContains(t, b.ok("list_files", object{"depth": 1}), "cmd/a")
	require.Equal(t, "[nothing found]", b.ok("list_files", object{"glob": "*.rs"}))
	require.Contains(t, b.fails("list_files", object{"glob": "[a"}), "not valid")
	require.Contains(t, b.fails("list_files", object{"path": "main.go"}), "main.go")
}

func TestList_BoundedUpperLevelsFirst(t *testing.T) {
	b := setup(t)
	for _, d := range []string{"a", "b", "c"} {
		for _, f := range []string{"1", "2", "3"} {
			b.write(d+"/"+f, "")
		}
	}
	b.write("bad\nname", "")
	require.Equal(t, "a/\nbad\\nname\nb/\nc/\n[first 4 entries: narrow by path, glob or depth]",
		strings.Replace(b.ok("list_files", object{"limit": 4}), "b/\nbad\\nname", "bad\\nname\nb/", 1))
	call := b.call("list_files", object{})
	call.MaxOutput = 110
	require.Contains(t, b.run(call).Output, "entries: narrow by")
	require.NotContains(t, b.run(call).Output, "truncated")
}

func TestSearch(t *testing.T) {
	b := setup(t)
	tree(b)
	require.Equal(t, "keep.log:1:needle\nmain.go:1:package main // needle\ncmd/gen.go:1:needle", b.ok("search_files", object{"pattern": "needle"}))
	require.Equal(t, "cmd/a/a.go:2:Needle here", b.ok("search_files", object{"pattern": "^needle h", "ignore_case": true}))
	require.Equal(t, "main.go\ncmd/gen.go", b.ok("search_files", object{"pattern": "needle", "glob": "*.go", "files_only": true}))
	require.Equal(t, "x.log:1:needle", b.ok("search_files", object{"pattern": "n.+e$", "path": "x.log"}), "a named file is searched")
	require.Equal(t, "keep.log:1:needle\n[first 1 matches: narrow by path, glob or pattern]", b.ok("search_files", object{"pattern": "needle", "limit": 1}))
	require.Equal(t, "keep.log:1:needle", b.ok("search_files", object{"pattern": "needle", "glob": "!*.go"}))
	require.Equal(t, "main.go:1:package main // needle\ncmd/gen.go:1:needle", b.ok("search_files", object{"pattern": "needle", "type": "go"}))
	require.Equal(t, "cmd/gen.go:1:needle", b.ok("search_files", object{"pattern": "needle", "type": "go", "glob": "cmd/*"}))
	require.Contains(t, b.fails("search_files", object{"pattern": "x", "type": "cobol"}), "type cobol is not known; known are c, cpp,")
	require.Equal(t, "[no match]", b.ok("search_files", object{"pattern": "nosuch"}))
	require.Contains(t, b.fails("search_files", object{"pattern": "a("}), "not a regular expression")
	require.Contains(t, b.fails("search_files", object{"pattern": "a", "path": "nosuch"}), "nosuch does not exist")
}

func TestSearch_LinesAround(t *testing.T) {
	b := setup(t)
	b.write("f", "1\n2\n3\nhit a\n5\nhit b\n7\n8\n9\n10\n11\nhit c\n13")
	b.write("g", "hit d\n2\n3\n")
	require.Equal(t, strings.Join([]string{
		"f-2-2", "f-3-3", "f:4:hit a", "f-5-5", "f:6:hit b", "f-7-7", "f-8-8", "--", "f-10-10", "f-11-11", "f:12:hit c", "f-13-13", "--", "g:1:hit d", "g-2-2", "g-3-3",
	}, "\n"), b.ok("search_files", object{"pattern": "hit", "context": 2}))
	require.Equal(t, "f-3-3\nf:4:hit a\nf-5-5\nf:6:hit b\nf-7-7\n[first 2 matches: narrow by path, glob or pattern]",
		b.ok("search_files", object{"pattern": "hit", "context": 1, "limit": 2}))
	require.Equal(t, "f\ng", b.ok("search_files", object{"pattern": "hit", "context": 2, "files_only": true}))
}

func TestSearch_LongLinesShowTheMatch(t *testing.T) {
	b := setup(t)
	b.write("min.js", strings.Repeat("x", 200_000)+"needle"+strings.Repeat("y", 200_000))
	out := b.ok("search_files", object{"pattern": "needle"})
	require.Contains(t, out, "needle")
	require.Less(t, len(out), 500)
}

// A directory may hold very many files: a walk of it is bounded and quick enough.
func TestFiles_HundredThousandFiles(t *testing.T) {
	b := setup(t)
	const dirs, each = 100, 1000
	for d := range dirs {
		dir := filepath.Join(b.dir, fmt.Sprintf("d%02d", d))
		require.NoError(t, os.Mkdir(dir, 0o755))
		first := filepath.Join(dir, "f0000")
		require.NoError(t, os.WriteFile(first, []byte("seed\n"), 0o600))
		for f := 1; f < each; f++ {
			require.NoError(t, os.Link(first, filepath.Join(dir, fmt.Sprintf("f%04d", f))))
		}
	}
	peak := peakHeap(t)
	out := b.ok("list_files", object{})
	require.Equal(t, 500, strings.Count(out, "\n"))
	require.Contains(t, out, "[first 500 entries")
	require.Equal(t, "d42/f0042", b.ok("list_files", object{"glob": "d42/f0042"}))
	require.Contains(t, b.ok("search_files", object{"pattern": "seed", "files_only": true, "limit": 3}), "d00/f0002\n[first 3 matches")
	require.Equal(t, "[no match]", b.ok("search_files", object{"pattern": "nosuch"}))
	require.Less(t, peak(), uint64(128<<20))
}

func TestFiles_CancelledWalkEnds(t *testing.T) {
	b := setup(t)
	for i := range 30 {
		b.write(strings.Repeat("d/", i)+"f", "x")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(tool.ErrInterrupted)
	for _, name := range []string{"search_files", "list_files"} {
		res := b.runIn(ctx, b.call(name, object{"pattern": "x"}), func(string) {})
		if name == "list_files" {
			res = b.runIn(ctx, b.call(name, object{}), func(string) {})
		}
		require.Equal(t, protocol.Aborted, res.StopReason)
	}
}
