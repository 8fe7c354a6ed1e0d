package sandboxtest

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"rookery/internal/sandbox"
)

// A job is a piece of everyday work: a script that prints ok at its end. Where one
// of the programs that it needs is not in the session, it is told as absent.
type job struct {
	name, needs, script string
	pty                 bool
}

func jobs() []job {
	return []job{
		{name: "who and where", script: `test "$(id -u)" != 0 && test "$(pwd)" = "$PWD" && test -w . && test -w "$HOME" && test -w "$TMPDIR"`},
		{name: "user has a name", needs: "id", script: `id -un && test "$(id -un)" = agent`},
		{name: "pipes", needs: "seq sort head", script: `test "$(seq 1000 | sort -rn | head -1)" = 1000`},
		{name: "here document", needs: "cat", script: "test \"$(cat <<X\nline\nX\n)\" = line"},
		{name: "background and wait", script: `(sleep 0.05; echo x > bg) & wait; test -s bg`},
		{name: "job signals", script: `trap 'echo got > sig' USR1; kill -USR1 $$; test -s sig`},
		{name: "fifo", needs: "mkfifo cat", script: `mkfifo p; (echo hi > p) & test "$(cat p)" = hi`},
		{name: "links", needs: "ln", script: `echo a > a; ln a b; ln -s a c; test "$(cat c)" = a`},
		{name: "modes", needs: "chmod", script: `echo 'echo run' > s; chmod 755 s; sed -i 1i#!/bin/sh s; test "$(./s)" = run`},
		{name: "programs in /tmp", needs: "chmod", script: `printf '#!/bin/sh\necho t\n' > /tmp/t; chmod +x /tmp/t; test "$(/tmp/t)" = t`},
		{name: "shared memory files", script: `echo 1 > /dev/shm/f && test -s /dev/shm/f`},
		{name: "devices", needs: "head wc", script: `test "$(head -c 16 /dev/urandom | wc -c)" = 16; echo x > /dev/null; head -c 1 /dev/zero > z`},
		{name: "standard streams by name", script: `echo err > /dev/stderr; echo out > /dev/stdout; echo in | cat /dev/stdin`},
		{name: "locks", needs: "flock", script: `exec 9>l; flock -n 9`},
		{name: "temporary files", needs: "mktemp", script: `d=$(mktemp -d); echo x > $d/x; test -s $d/x`},
		{name: "archives", needs: "tar gzip", script: `mkdir d; echo x > d/x; tar czf d.tgz d; rm -r d; tar xzf d.tgz; test -s d/x`},
		{name: "many files", needs: "seq", script: `mkdir m; for i in $(seq 500); do echo $i > m/$i; done; test "$(ls m | wc -l)" = 500`},
		{name: "long arguments", script: `a=$(head -c 100000 /dev/zero | tr '\0' a); test ${#a} = 100000; /bin/echo $a > long`},
		{name: "names in other scripts", script: `echo x > 'ä 日本 🙂'; test -s 'ä 日本 🙂'`},
		{name: "time zone", needs: "date", script: `TZ=Asia/Tokyo date +%Z`},
		{name: "processes", needs: "ps", script: `ps -ef | grep -q ps`},
		{name: "host name", needs: "hostname", script: `test "$(hostname)" = sandbox`},
		{name: "localhost has an address", needs: "getent", script: `getent hosts localhost`},
		{name: "memory and processors in /proc", script: `grep -q MemTotal /proc/meminfo && grep -q processor /proc/cpuinfo && test -r /proc/self/status`},
		{name: "awk, sed, perl", needs: "awk sed perl", script: `test "$(echo 1 2 | awk '{print $2}' | sed s/2/3/ | perl -pe 's/3/4/')" = 4`},
		{name: "git", needs: "git", script: `git init -q r && cd r && git config user.email a@b && git config user.name a && echo x > x &&
git add x && git commit -qm one && git checkout -qb two && echo y >> x && git commit -qam two && git log --oneline | wc -l | grep -q 2 && git fsck && git clone -q . ../r2`},
		{name: "make", needs: "make", script: "printf 'all: a b\\na b:\\n\\techo $@ > $@\\n' > Makefile; make -j2 && test -s b"},
		{name: "gcc", needs: "gcc", script: `printf '#include <stdio.h>\nint main(){puts("c");}\n' > c.c; gcc -O1 c.c -o c.out && test "$(./c.out)" = c`},
		{name: "threads in C", needs: "gcc", script: `printf '#include <pthread.h>\nvoid*f(void*a){return a;}int main(){pthread_t t;return pthread_create(&t,0,f,0)||pthread_join(t,0);}' > t.c
gcc t.c -o t.out -pthread && ./t.out`},
		{name: "go", needs: "go gcc", script: `mkdir g && cd g && printf 'module x\ngo 1.21\n' > go.mod && printf 'package main\nfunc main(){println("go")}\n' > m.go &&
GOFLAGS=-mod=mod GOPROXY=off GOTOOLCHAIN=local go build -o x . && test "$(./x 2>&1)" = go`},
		{name: "python", needs: "python3", script: `test "$(python3 -c 'import json,sqlite3,ssl,hashlib; print(json.dumps([1]))')" = '[1]'`},
		{name: "python threads and processes", needs: "python3", script: `cat > mp.py <<X
import multiprocessing as m, threading as t
def f(x): return x * x
if __name__ == "__main__":
    th = [t.Thread(target=f, args=(i,)) for i in range(20)]
    [x.start() for x in th]; [x.join() for x in th]
    with m.Pool(3) as p: assert p.map(f, range(5)) == [0, 1, 4, 9, 16]
    q = m.Queue(); q.put(1); assert q.get() == 1
X
python3 mp.py`},
		{name: "python temporary files and subprocesses", needs: "python3", script: `python3 -c 'import subprocess,tempfile
with tempfile.NamedTemporaryFile() as f: subprocess.run(["ls", f.name], check=True)'`},
		{name: "unix sockets", needs: "python3", script: `python3 -c 'import socket,threading
s=socket.socket(socket.AF_UNIX); s.bind("sock"); s.listen()
threading.Thread(target=lambda: s.accept()[0].send(b"x")).start()
c=socket.socket(socket.AF_UNIX); c.connect("sock"); assert c.recv(1)==b"x"'`},
		{name: "loopback", needs: "python3", script: `python3 -c 'import socket
for f,a in ((socket.AF_INET,"127.0.0.1"),(socket.AF_INET6,"::1")):
    s=socket.socket(f); s.bind((a,0)); s.listen(); c=socket.create_connection(s.getsockname()[:2]); c.close()'`},
		{name: "asynchronous python", needs: "python3", script: `python3 -c 'import asyncio
async def f():
    p = await asyncio.create_subprocess_exec("true"); return await p.wait()
assert asyncio.run(f()) == 0'`},
		{name: "node", needs: "node", script: `test "$(node -e 'const h=require("http").createServer((q,r)=>r.end("n")).listen(0,"localhost",()=>require("http").get({port:h.address().port,host:"localhost"},r=>r.on("data",d=>{process.stdout.write(d);h.close()})))')" = n`},
		{name: "node workers", needs: "node", script: `node -e 'const w=require("worker_threads");if(w.isMainThread){new w.Worker(process.argv[1]||"0",{eval:true}).on("exit",c=>process.exit(c))}'`},
		{name: "curl", needs: "curl python3", script: `python3 -m http.server 8765 --bind 127.0.0.1 > /dev/null 2>&1 & for i in $(seq 100); do kill -0 $!; curl -sf http://127.0.0.1:8765/ > page && break; sleep 0.05; done; test -s page; kill $!`},
		{name: "gdb", needs: "gdb gcc", script: `printf 'int g=7;int main(){return g-7;}' > d.c; gcc -g d.c -o d.out; gdb -q -batch -ex 'break main' -ex run -ex 'print g' ./d.out 2>&1 | grep -q '= 7'`},
		{name: "strace", needs: "strace", script: `strace -f -o tr true && grep -q execve tr`},
		{name: "terminal", needs: "tty stty", pty: true, script: `tty && stty size && test -t 0 -a -t 1`},
		{name: "python's terminal", needs: "python3", pty: true, script: `python3 -c 'import os,sys; assert sys.stdin.isatty() and os.get_terminal_size().columns == 80'`},
		{name: "a new terminal", needs: "python3", script: `python3 -c 'import pty,os; assert os.waitstatus_to_exitcode(pty.spawn(["true"])) == 0'`},
		{name: "job control", needs: "bash", pty: true, script: `set -m; sleep 30 & kill -STOP %1; kill -CONT %1; kill %1; wait %1 || test $? = 143`},
	}
}

// Work does everyday work in a session and prints what became of it. known names
// jobs that the backend admits not to do.
func Work(t *testing.T, b sandbox.Backend, known ...string) {
	t.Helper()
	w := openSession(t, b, "work", openDir(t))
	var table strings.Builder
	done, absent := 0, 0
	var broken []string
	admitted := map[string]bool{}
	for _, k := range known {
		admitted[k] = true
	}
	for i, j := range jobs() {
		if missing := w.missing(j.needs); missing != "" {
			absent++
			fmt.Fprintf(&table, "  absent    %s (no %s)\n", j.name, missing)
			continue
		}
		out, ok := w.job(i, j)
		switch {
		case ok:
			done++
		case admitted[j.name]:
			fmt.Fprintf(&table, "  admitted  %s\n", j.name)
		default:
			broken = append(broken, fmt.Sprintf("%s: %.300s", j.name, out))
		}
	}
	t.Logf("everyday work\n%s  %d done, %d absent", table.String(), done, absent)
	require.Empty(t, broken)
}

func (b *bench) missing(programs string) string {
	for p := range strings.FieldsSeq(programs) {
		if _, r := b.run(sandbox.CallSpec{Argv: []string{"sh", "-c", "command -v " + p}, Merge: true}); r.Exit != 0 {
			return p
		}
	}
	return ""
}

// jobTime is when a job that hangs is given up: the longest compiles a runtime.
const jobTime = 5 * time.Minute

func (b *bench) job(i int, j job) (string, bool) {
	shell := "sh"
	if strings.Contains(j.needs, "bash") {
		shell = "bash"
	}
	dir := fmt.Sprintf("job%d", i)
	_, r := b.run(sandbox.CallSpec{Argv: []string{"mkdir", "-p", dir}, Merge: true})
	require.Zero(b.t, r.Exit)
	spec := sandbox.CallSpec{Argv: []string{shell, "-ec", j.script + "\necho ok"}, Dir: dir, Merge: true, Timeout: jobTime}
	if j.pty {
		spec.PTY = &sandbox.Size{Rows: 24, Cols: 80}
	}
	out, r := b.run(spec)
	return fmt.Sprintf("%+v %s", r, out), r.Exit == 0 && strings.HasSuffix(strings.TrimSpace(out), "ok")
}

// ServerAndClient starts a server in one call and talks to it from the next.
func ServerAndClient(t *testing.T, b sandbox.Backend) {
	t.Helper()
	w := openSession(t, b, "server", openDir(t))
	server := w.start(sandbox.CallSpec{Argv: []string{"./" + probeName, "serve"}, Merge: true})
	out, _ := server.Output()
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	address := strings.Fields(line)[0]
	h := host{TCP: address}
	w.describe(h)
	text, r := w.run(sandbox.CallSpec{Argv: []string{"./" + probeName, "connect", address}, Merge: true})
	require.Zero(t, r.Exit, text)
	server.Kill(sandbox.Killed)
	_, _ = io.Copy(io.Discard, out)
	_, err = server.Wait()
	require.NoError(t, err)
	_, r = w.run(sandbox.CallSpec{Argv: []string{"./" + probeName, "connect", address}, Merge: true})
	require.NotZero(t, r.Exit, "the server's port outlives it")
}
