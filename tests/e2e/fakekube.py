"""As much of a Kubernetes API server as the SDK uses, over TLS, for tests without a cluster.

A pod is a pid namespace on this machine with the container's command as its first process; an exec runs in there for
real, and its streams go through the channel protocol (v4 or v5) as a kubelet's do. Images and secrets are names that
are known or not. `FakeKube(directory)` is an asynchronous context manager; it lives in the caller's loop.
"""
import asyncio
import base64
import datetime
import hashlib
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import ssl
import struct
import subprocess
import sys
import urllib.parse
import uuid

import imagekit

TOKEN = "t0ken"
IMAGES = ("python:3.11-slim", "alpine:3")
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
# By their places: a pod has a PATH of its own.
UNSHARE, NSENTER, SETSID = (shutil.which(name) or name for name in ("unshare", "nsenter", "setsid"))
ENTER = [NSENTER, "--pid", "--mount"]


def works():
    """Whether pid namespaces can be made here."""
    probe = ["unshare", "--pid", "--mount", "--fork", "--mount-proc", "true"]
    return subprocess.run(probe, capture_output=True).returncode == 0


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Refused(Exception):
    def __init__(self, code, reason, message, kind=""):
        self.code = code
        self.doc = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message,
                    "code": code, "details": {"kind": kind}}


def matches(labels, selector):
    for term in filter(None, selector.split(",")):
        key, equals, value = term.partition("=")
        if key not in labels or (equals and labels[key] != value):
            return False
    return True


def merge(into, patch):
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


class FakeKube:
    def __init__(self, directory, version=(1, 34), protocols=("v5.channel.k8s.io", "v4.channel.k8s.io")):
        self.directory, self.version, self.protocols = directory, version, protocols
        self.store = {"pods": {}, "networkpolicies": {}, "persistentvolumeclaims": {}}
        self.inits = {}      # pod name -> Init
        self.secrets = {}    # name -> {key: value}
        self.requests = []   # "METHOD path?query"
        self.headers = []
        self.trouble = []    # HTTP status codes that come first
        self.cut_answers = 0  # so many answers to POST get lost
        self.hang_ups = []   # the next commands do not run: their connections end, with these close frames or none
        self.connections = set()  # of commands
        self.linger = 0.05   # how long a deleted pod takes to be gone; None: until remove() is called
        self.hold = set()    # images whose pods stay Pending
        self.tokens = {TOKEN}
        self.number = 0
        self.watchers = set()
        self.tasks = set()
        self.broken = []     # errors of this server's own, which fail the test that uses it

    # --- its life ---

    async def __aenter__(self):
        if not (self.directory / "tls.pem").exists():
            imagekit.make_ca(self.directory)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.directory / "tls.pem", self.directory / "tls.key")
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0, ssl=context)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc):
        self.server.close()
        for name in list(self.inits):
            self.end(name)
        if self.tasks:
            _, late = await asyncio.wait(self.tasks, timeout=0.2)
            for task in late:  # watches
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        if self.broken:
            raise AssertionError("the fake API server broke") from self.broken[0]

    def kubeconfig(self, **user):
        """Written as JSON, which needs no parser for YAML."""
        path = self.directory / "kubeconfig.json"
        ca = base64.b64encode((self.directory / "ca.pem").read_bytes()).decode()
        path.write_text(json.dumps({
            "clusters": [{"name": "c", "cluster": {"server": f"https://localhost:{self.port}",
                                                   "certificate-authority-data": ca}}],
            "users": [{"name": "u", "user": user or {"token": TOKEN}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "test"}}],
            "current-context": "x"}))
        return str(path)

    # --- HTTP ---

    async def serve(self, reader, writer):
        task = asyncio.current_task()
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, target, _ = head[0].split(" ")
            headers = {k.lower(): v.strip() for k, v in (x.split(":", 1) for x in head[1:] if x)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.requests.append(f"{method} {target}")
            self.headers.append(headers)
            parts = urllib.parse.urlsplit(target)
            query = urllib.parse.parse_qsl(parts.query, keep_blank_values=True)
            await self.route(method, urllib.parse.unquote(parts.path), query, headers, body, reader, writer)
        except Refused as e:
            self.answer(writer, e.code, e.doc)
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        except Exception as e:
            self.broken.append(e)
        finally:
            try:
                await writer.drain()
                writer.close()
            except (OSError, asyncio.CancelledError):
                pass

    @staticmethod
    def answer(writer, code, doc):
        data = doc if isinstance(doc, bytes) else json.dumps(doc).encode()
        writer.write(f"HTTP/1.1 {code} x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)

    async def route(self, method, path, query, headers, body, reader, writer):
        if headers.get("authorization") not in {f"Bearer {t}" for t in self.tokens}:
            raise Refused(401, "Unauthorized", "Unauthorized")
        if self.trouble:
            raise Refused(self.trouble.pop(0), "ServiceUnavailable", "try again")
        asked = dict(query)
        if path == "/version":
            return self.answer(writer, 200, {"major": str(self.version[0]), "minor": f"{self.version[1]}+"})
        match = re.match(r"/apis?/(?:v1|networking\.k8s\.io/v1)/namespaces/test/(\w+)(?:/([^/]+))?(?:/(\w+))?\Z", path)
        if not match or match[1] not in self.store:
            raise Refused(403, "Forbidden", f"not allowed: {path}")
        kind, name, sub = match.groups()
        if name and name not in self.store[kind]:
            raise Refused(404, "NotFound", f'{kind} "{name}" not found', kind)
        if sub == "exec":
            return await self.exec(name, query, headers, reader, writer)
        if sub == "log":
            lines = b"".join(f"line {i}\n".encode() for i in range(1, 4))
            tail = int(asked.get("tailLines", "3"))
            return self.answer(writer, 200, b"".join(lines.splitlines(True)[3 - min(tail, 3):]))
        if method == "GET" and asked.get("watch"):
            return await self.watch(kind, asked, writer)
        found = self.change(method, kind, name, asked, json.loads(body) if body else {})
        if method == "POST" and self.cut_answers:
            self.cut_answers -= 1
            return writer.transport.abort()
        self.answer(writer, 200, found)

    def change(self, method, kind, name, asked, doc):
        store = self.store[kind]
        if method == "POST":
            return self.create(kind, doc)
        if method == "GET" and name:
            return store[name]
        if method == "GET":
            found = [x for x in store.values() if matches(x["metadata"].get("labels", {}), asked.get("labelSelector", ""))]
            begin, size = int(asked.get("continue", "0")), min(int(asked.get("limit", "500")), 2)
            more = {"continue": str(begin + size)} if begin + size < len(found) else {}
            return {"items": found[begin:begin + size], "metadata": more}
        if method == "PATCH":
            merge(store[name], doc)
            self.touch(kind, store[name])
            return store[name]
        uid = doc.get("preconditions", {}).get("uid", store[name]["metadata"].get("uid"))
        if uid != store[name]["metadata"].get("uid"):
            raise Refused(409, "Conflict", "another uid", kind)
        gone = store[name]
        if kind == "pods" and not gone["metadata"].get("deletionTimestamp"):
            gone["metadata"]["deletionTimestamp"] = now()
            self.touch(kind, gone)
            if self.linger is not None:
                asyncio.get_running_loop().call_later(self.linger, self.remove, name)
        elif kind != "pods":
            del store[name]
        return gone

    def create(self, kind, doc):
        name = doc["metadata"]["name"]
        if name in self.store[kind]:
            raise Refused(409, "AlreadyExists", f'{kind} "{name}" already exists', kind)
        doc["metadata"].update(uid=uuid.uuid4().hex, creationTimestamp=now())
        self.store[kind][name] = doc
        if kind == "pods":
            doc["status"] = {"phase": "Pending"}
            asyncio.get_running_loop().call_later(0.02, self.kubelet, name, doc["metadata"]["uid"])
        self.touch(kind, doc)
        return doc

    # --- watches ---

    def touch(self, kind, doc, event="MODIFIED"):
        self.number += 1
        doc["metadata"]["resourceVersion"] = str(self.number)
        for queue in self.watchers:
            queue.put_nowait((kind, event, json.loads(json.dumps(doc))))

    async def watch(self, kind, asked, writer):
        queue = asyncio.Queue()
        self.watchers.add(queue)
        name = asked["fieldSelector"].split("=")[1]
        try:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            have = self.store[kind].get(name)
            if have is None:  # it went between the look and the watch
                return
            if have["metadata"]["resourceVersion"] != asked.get("resourceVersion"):
                queue.put_nowait((kind, "MODIFIED", have))
            for _ in range(2):  # then it ends: watches do
                while True:
                    what, event, doc = await queue.get()
                    if (what, doc["metadata"]["name"]) == (kind, name):
                        break
                line = json.dumps({"type": event, "object": doc}).encode() + b"\n"
                for piece in (line[:10], line[10:]):
                    writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                await writer.drain()
            writer.write(b"0\r\n\r\n")
        finally:
            self.watchers.discard(queue)

    # --- pods ---

    def kubelet(self, name, uid):
        pod = self.store["pods"].get(name)
        if not pod or pod["metadata"]["uid"] != uid:
            return
        container = pod["spec"]["containers"][0]
        waiting = None
        if container["image"] in self.hold:
            return
        if container["image"] not in IMAGES:
            waiting = {"reason": "ErrImagePull", "message": "not found"}
        env = dict(os.environ, LC_ALL="C.UTF-8", PATH=self.path())
        for entry in container.get("env", ()):
            ref = entry.get("valueFrom", {}).get("secretKeyRef")
            value = self.secrets.get(ref["name"], {}).get(ref["key"]) if ref else entry["value"].replace("$$(", "$(")
            if value is None:
                waiting = {"reason": "CreateContainerConfigError", "message": f'secret "{ref["name"]}" not found'}
            else:
                env[entry["name"]] = value
        if waiting:
            pod["status"] = {"phase": "Pending", "containerStatuses": [{"name": container["name"], "state": {"waiting": waiting}}]}
        else:
            self.begin(name, pod, container, env)
        self.touch("pods", pod)

    def path(self):
        """Images of Python have a `python`; this machine may not."""
        bin = self.directory / "bin"
        if not bin.exists():
            bin.mkdir()
            (bin / "python").symlink_to(sys.executable)
        return f"{bin}:{os.environ['PATH']}"

    def begin(self, name, pod, container, env):
        """Its namespaces take a moment: as a kubelet does, this says that it runs when it does."""
        cwd = container.get("workingDir", "/")
        process = subprocess.Popen([UNSHARE, "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "--",
                                    "sh", "-c", 'echo; exec "$@" >&2', "sh", *container["command"]], env=env, cwd=cwd,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
        self.inits[name] = Init(process, env, cwd)
        asyncio.get_running_loop().add_reader(process.stdout, self.begun, name, pod)

    def begun(self, name, pod):
        init = self.inits[name]
        asyncio.get_running_loop().remove_reader(init.process.stdout)
        if init.process.stdout.read(1):
            pid = init.process.pid
            init.first = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
            pod["status"] = {"phase": "Running", "podIP": "10.1.2.3", "startTime": now(), "containerStatuses": [
                {"name": pod["spec"]["containers"][0]["name"], "state": {"running": {}}}]}
            self.touch("pods", pod)
        self.poll(name, pod)

    def poll(self, name, pod):
        """Its first process ends: so has the pod."""
        deadline = pod["spec"].get("activeDeadlineSeconds")
        if name not in self.inits or self.store["pods"].get(name) is not pod:
            return
        process = self.inits[name].process
        if deadline == 1:
            process.kill()
        if process.poll() is None:
            asyncio.get_running_loop().call_later(0.02, self.poll, name, pod)
            return
        state = {"terminated": {"exitCode": process.returncode, "reason": "Completed"}}
        pod["status"].update(phase="Succeeded", containerStatuses=[{"name": pod["spec"]["containers"][0]["name"],
                                                                    "state": state}])
        self.touch("pods", pod)

    def die(self, name):
        """Its first process is killed."""
        self.inits[name].process.kill()
        self.inits[name].process.wait()
        self.poll(name, self.store["pods"][name])

    def end(self, name):
        process = self.inits.pop(name).process
        asyncio.get_running_loop().remove_reader(process.stdout)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # with what it has just forked, and not yet tied to its own life
        process.wait()
        process.stdout.close()

    def remove(self, name):
        pod = self.store["pods"].pop(name, None)
        if name in self.inits:
            self.end(name)
        if pod:
            self.touch("pods", pod, "DELETED")

    # --- exec ---

    async def exec(self, name, query, headers, reader, writer):
        asked = dict(query)
        argv = [v for k, v in query if k == "command"]
        pod = self.store["pods"][name]
        if "running" not in pod["status"].get("containerStatuses", [{"state": {}}])[0]["state"]:
            raise Refused(400, "BadRequest", "container sandbox is not running")
        offered = [p.strip() for p in headers["sec-websocket-protocol"].split(",")]
        chosen = next(p for p in self.protocols if p in offered)
        accept = base64.b64encode(hashlib.sha1(headers["sec-websocket-key"].encode() + GUID).digest()).decode()
        writer.write(f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                     f"Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {chosen}\r\n\r\n".encode())
        run = Exec(self, self.inits[name], argv, asked.get("tty") == "true", chosen, reader, writer)
        if self.hang_ups:
            words = self.hang_ups.pop(0)
            return run.send(None, words, opcode=8) if words else None
        self.connections.add(writer)
        try:
            await run.go()
        finally:
            self.connections.discard(writer)

    def cut(self):
        """Cuts the connections of all commands; they go on, as those of a kubelet do."""
        for writer in self.connections:
            writer.transport.abort()


class Init:
    """A pod's first process."""

    def __init__(self, process, env, cwd):
        self.process, self.env, self.cwd = process, env, cwd  # its unshare
        self.first = None  # its own pid on this machine, when it runs


class Exec:
    """One command: as a kubelet has it, it goes on when the connection ends, and only its input does."""

    def __init__(self, kube, init, argv, tty, protocol, reader, writer):
        self.init, self.argv, self.tty, self.protocol = init, argv, tty, protocol
        self.reader, self.writer = reader, writer

    def send(self, channel, data, opcode=2):
        if self.writer.transport.is_closing():
            return
        data = bytes([channel]) + data if channel is not None else data
        size = bytes([len(data)]) if len(data) < 126 else bytes([126]) + struct.pack(">H", len(data))
        self.writer.write(bytes([0x80 | opcode]) + size + data)

    async def go(self):
        argv = [*ENTER, "--target", self.init.first, f"--wd={self.init.cwd}", SETSID,
                *(["--ctty"] if self.tty else []), *self.argv]
        for channel in (1, 2):  # a kubelet sends these
            self.send(channel, b"")
        self.send(None, b"", opcode=9)
        if self.tty:
            await self.terminal(argv, self.init.env)
        else:
            await self.pipes(argv, self.init.env)

    async def pipes(self, argv, env):
        child = await asyncio.create_subprocess_exec(*argv, env=env, stdin=-1, stdout=-1, stderr=-1, limit=1 << 20)

        def write(data):
            if not child.stdin.is_closing():
                child.stdin.write(data)

        # A program need not read all that is sent to it: asyncio reports an error that nobody looks at.
        closed = asyncio.ensure_future(child.stdin.wait_closed())
        closed.add_done_callback(lambda done: done.cancelled() or done.exception())
        inbound = asyncio.ensure_future(self.inbound(write, child.stdin.close))
        outs = [asyncio.ensure_future(self.copy(r, c)) for r, c in ((child.stdout, 1), (child.stderr, 2))]
        await asyncio.gather(*outs)
        await self.finish(await child.wait(), inbound)

    async def terminal(self, argv, env):
        ours, theirs = pty.openpty()
        child = await asyncio.create_subprocess_exec(*argv, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def readable():
            try:
                data = os.read(ours, 4096)
            except OSError:
                data = b""
            if data:
                self.send(1, data)
            else:
                loop.remove_reader(ours)
                ended.set()

        def resize(doc):
            import fcntl
            import termios
            fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", doc["Height"], doc["Width"], 0, 0))

        loop.add_reader(ours, readable)
        inbound = asyncio.ensure_future(self.inbound(lambda data: os.write(ours, data), lambda: None, resize))
        await ended.wait()
        await self.finish(await child.wait(), inbound)
        os.close(ours)

    async def copy(self, stream, channel):
        while True:
            data = await stream.read(30000)
            if not data:
                return
            self.send(channel, data)
            if not self.writer.transport.is_closing():
                try:
                    await self.writer.drain()
                except OSError:
                    pass

    async def finish(self, code, inbound):
        code = 128 - code if code < 0 else code
        doc = {"metadata": {}, "status": "Success"} if code == 0 else {
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "message": f"exit code {code}",
            "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]}}
        self.send(3, json.dumps(doc).encode())
        self.send(None, struct.pack(">H", 1000), opcode=8)
        if inbound.done():
            inbound.result()  # its errors are ours
        inbound.cancel()

    async def inbound(self, write, close, resize=None):
        """What the client sends, and its end."""
        try:
            while True:
                head = await self.reader.readexactly(2)
                assert head[1] & 0x80, "clients mask"
                size = head[1] & 0x7F
                if size >= 126:
                    size = int.from_bytes(await self.reader.readexactly({126: 2, 127: 8}[size]), "big")
                key = await self.reader.readexactly(4)
                data = bytes(b ^ key[i % 4] for i, b in enumerate(await self.reader.readexactly(size)))
                opcode = head[0] & 0x0F
                if opcode == 8:
                    break
                if opcode == 2 and data[0] == 0:
                    write(data[1:])
                elif opcode == 2 and data[0] == 4 and resize:
                    resize(json.loads(data[1:]))
                elif opcode == 2 and data[0] == 255:
                    assert self.protocol == "v5.channel.k8s.io" and data[1:] == b"\0"
                    close()
        except (OSError, EOFError):
            pass
        close()
