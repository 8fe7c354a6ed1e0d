#!/usr/bin/env python3
"""A rookery worker without rookery: one tool, the NATS protocol and subjects.md.

    worker.py [nats://[user:password@]host:port] [id]

It offers count_words, which needs no workspace, to the pool default. A result that
could not be stored is kept in the working directory and sent at the next start. It
ends when the broker goes away: have a supervisor start it again.
"""

import json
import os
import queue
import signal
import socket
import sys
import threading
import time
import urllib.parse
import uuid

POOL, SLOTS, BOOT = "default", 2, uuid.uuid4().hex[:8]


class Nats:
    """As much of the client protocol as a worker needs."""

    def __init__(self, url):
        u = urllib.parse.urlparse(url)
        self.sock = socket.create_connection((u.hostname or "127.0.0.1", u.port or 4222))
        self.read, self.lock, self.subs = self.sock.makefile("rb"), threading.Lock(), {}
        self.read.readline()  # INFO
        login = {"user": u.username, "pass": u.password} if u.username else {}
        self.send("CONNECT " + json.dumps({"verbose": False, "headers": True, "no_responders": True, "name": "worker.py", **login}))
        self.inbox = "_INBOX." + uuid.uuid4().hex
        self.answers = {}
        self.subscribe(self.inbox + ".*", lambda subject, reply, head, body: self.answers.get(subject, queue.Queue()).put((head, body)))
        threading.Thread(target=self.loop, daemon=True).start()

    def send(self, line, body=None):
        with self.lock:
            self.sock.sendall(line.encode() + b"\r\n" + (b"" if body is None else body + b"\r\n"))

    def subscribe(self, subject, f):
        self.subs[str(len(self.subs) + 1)] = f
        self.send(f"SUB {subject} {len(self.subs)}")

    def publish(self, subject, body, reply="", msg_id=""):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        if not msg_id:
            return self.send(f"PUB {subject} {reply} {len(body)}", body)
        head = f"NATS/1.0\r\nNats-Msg-Id: {msg_id}\r\n\r\n".encode()
        self.send(f"HPUB {subject} {reply} {len(head)} {len(head) + len(body)}", head + body)

    def request(self, subject, body, msg_id="", timeout=5.0):
        """The answer as (head, body); None when none comes in time."""
        reply = f"{self.inbox}.{uuid.uuid4().hex}"
        box = self.answers[reply] = queue.Queue()
        try:
            self.publish(subject, body, reply, msg_id)
            return box.get(timeout=timeout)
        except queue.Empty:
            return None
        finally:
            del self.answers[reply]

    def store(self, subject, body, msg_id):
        """Publishes to a stream until the broker says what became of it."""
        while True:
            got = self.request(subject, body, msg_id)
            if got and not got[0].startswith("NATS/1.0 503"):
                return json.loads(got[1])
            time.sleep(0.2)

    def loop(self):
        while line := self.read.readline():
            word, *rest = line.decode().split()
            if word == "PING":
                self.send("PONG")
            elif word == "-ERR":
                print("worker.py: broker:", line.decode().strip(), file=sys.stderr)
            elif word in ("MSG", "HMSG"):
                head = int(rest[-2]) if word == "HMSG" else 0
                data = self.read.read(int(rest[-1]) + 2)[:-2]
                reply = rest[2] if len(rest) > (4 if word == "HMSG" else 3) else ""
                self.subs[rest[1]](rest[0], reply, data[:head].decode(), data[head:])
        os._exit(1)  # the broker is gone


class Worker:
    tool = {
        "name": "count_words", "description": "Count the words of a text, line by line.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    }

    def __init__(self, nats, wid):
        self.nats, self.wid, self.running, self.taken, self.draining = nats, wid, {}, set(), threading.Event()

    def sign_on(self):
        me = {"worker": self.wid, "boot": BOOT, "host": socket.gethostname(), "pools": [POOL], "slots": SLOTS, "sandbox": "none", "tools": [self.tool]}
        while True:
            self.lease()
            got = self.nats.request("rk.orch.register." + self.wid, me)
            if got and not got[0] and json.loads(got[1]).get("code") == "accepted":
                return
            time.sleep(0.5)

    def lease(self):
        self.nats.publish("$KV.rk_nodes.w." + self.wid, {"kind": "w", "id": self.wid, "boot": BOOT})

    def live(self):
        for n in range(10**9):
            self.nats.publish("rk.hb." + self.wid, self.state())
            if n % 2 == 0:  # every 4 s; a lease expires after 10 s
                self.lease()
            time.sleep(2)

    def state(self):
        running = list(self.running)
        return {"worker": self.wid, "boot": BOOT, "slots": SLOTS, "free": SLOTS - len(running), "running": running, "draining": self.draining.is_set()}

    def control(self, subject, reply, _, body):
        verb, ask = subject.split(".")[-1], json.loads(body or b"{}")
        answer = {"ok": True, "boot": BOOT, "info": self.state()}
        keys = {d: f"{ask.get('session')}/{d}" for d in ask.get("dispatch") or []}
        if verb == "status":
            answer["calls"] = {d: "running" if k in self.running else "unknown" for d, k in keys.items()}
        elif verb == "cancel":
            for k, stop in list(self.running.items()):
                if k in keys.values() or not keys and k.startswith(ask.get("session", "") + "/"):
                    stop.set()
        elif verb == "drain":
            self.draining.set()
        else:
            answer.update(ok=False, error="this worker has no workspaces")
        if reply.startswith(("_INBOX", "_R_.")):
            self.nats.publish(reply, answer)

    def slot(self, n):
        box, inbox = queue.Queue(), f"{self.nats.inbox}-{n}"
        self.nats.subscribe(inbox, lambda *message: box.put(message))
        while not self.draining.is_set():
            self.nats.publish(f"$JS.API.CONSUMER.MSG.NEXT.CALL.p_{POOL}", {"batch": 1, "expires": 2_000_000_000}, inbox)
            try:
                _, ack, _, body = box.get(timeout=5)
            except queue.Empty:
                continue
            if ack:  # else the broker says that nothing came
                self.take(json.loads(body), ack)

    def take(self, call, ack):
        key, tail = f"{call['session']}/{call['dispatch']}", f"{call['session']}.{call['dispatch']}"
        if call["tool"] != self.tool["name"]:
            return self.nats.publish(ack, b"-NAK")  # for another worker of the pool
        again = key in self.taken
        self.taken.add(key)
        claim = {"worker": self.wid, "boot": BOOT, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        mine = not again and "error" not in self.nats.store(f"rk.res.p.{POOL}.{tail}.c", claim, f"{key}/c/{BOOT}")
        self.nats.publish(ack, b"+ACK")
        if mine:
            stop = self.running[key] = threading.Event()
            result = {"worker": self.wid, "boot": BOOT, "sandbox": "none", **self.count(json.loads(call["arguments"]), tail, stop)}
            self.deliver({"subject": f"rk.res.w.{self.wid}.{tail}.d", "id": f"{key}/d/{BOOT}", "body": result})
            del self.running[key]

    def count(self, arguments, tail, stop):
        """The tool itself: a line of output for each line of the text."""
        output = ""
        for n, line in enumerate(str(arguments.get("text", "")).splitlines(), 1):
            if stop.is_set():
                return {"output": output + "[interrupted: tool aborted by user]", "stop_reason": "aborted"}
            piece = f"line {n}: {len(line.split())} words\n"
            self.nats.publish(f"rk.tool.{self.wid}.{tail}", {"boot": BOOT, "offset": len(output.encode()), "text": piece})
            output += piece
        return {"output": output or "[no output]", "stop_reason": "completed"}

    def deliver(self, result):
        """Keeps a result until it is stored, over restarts, too."""
        name = "result-" + uuid.uuid4().hex + ".json"
        with open(name + ".tmp", "w") as f:
            json.dump(result, f)
            os.fsync(f.fileno())
        os.rename(name + ".tmp", name)
        self.send(name)

    def send(self, name):
        with open(name) as f:
            result = json.load(f)
        self.nats.store(result["subject"], result["body"], result["id"])
        os.remove(name)


def main():
    nats = Nats(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222")
    worker = Worker(nats, sys.argv[2] if len(sys.argv) > 2 else "python-" + socket.gethostname().split(".")[0][:20])
    signal.signal(signal.SIGTERM, lambda *_: worker.draining.set())
    nats.subscribe(f"rk.ctl.{worker.wid}.*", worker.control)
    threading.Thread(target=worker.live, daemon=True).start()
    for name in os.listdir("."):
        if name.startswith("result-") and name.endswith(".json"):
            worker.send(name)
    worker.sign_on()
    print("worker.py: signed on as", worker.wid, flush=True)
    slots = [threading.Thread(target=worker.slot, args=[n]) for n in range(SLOTS)]
    for s in slots:
        s.start()
    for s in slots:
        s.join()


if __name__ == "__main__":
    main()
