"""msb mcp: by hand, message by message, and with the protocol's official clients."""
import base64
import json
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import imagekit
import pytest
from conftest import wait_for

NPM_CACHE = Path.home() / ".cache" / "msb" / "npm"
SDK = "@modelcontextprotocol/sdk@1.32.2"  # the newest one for Node.js 18
CLIENT = "@modelcontextprotocol/client@2.4.0"
STATELESS = {"io.modelcontextprotocol/protocolVersion": "2026-07-28",
             "io.modelcontextprotocol/clientCapabilities": {}}  # fmt: skip


class Server:
    """`msb mcp` behind pipes."""

    def __init__(self, msb, *args):
        self.p = msb.popen("mcp", *args, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE)  # fmt: skip
        self.last_id = 0
        self.notes = []

    def write(self, text):
        self.p.stdin.write(text if isinstance(text, bytes) else text.encode())
        self.p.stdin.flush()

    def send(self, method, params=None, **more):
        message = {"jsonrpc": "2.0", "method": method, **more}
        if params is not None:
            message["params"] = params
        self.write(json.dumps(message) + "\n")

    def read(self):
        line = self.p.stdout.readline()
        assert line.endswith(b"\n"), line
        return json.loads(line)

    def answer(self, wanted):
        while True:
            m = self.read()
            if "id" not in m:
                self.notes.append(m)
            else:
                assert m["id"] == wanted, m
                return m

    def ask(self, method, params=None):
        self.last_id += 1
        self.send(method, params, id=self.last_id)
        return self.answer(self.last_id)

    def start(self, tool, arguments, meta=None):
        self.last_id += 1
        params = {"name": tool, "arguments": arguments}
        if meta:
            params["_meta"] = meta
        self.send("tools/call", params, id=self.last_id)
        return self.last_id

    def call(self, tool, **arguments):
        result = self.answer(self.start(tool, arguments))["result"]
        if result["isError"]:
            return result["content"][0]["text"]
        assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
        return result["structuredContent"]

    def close(self):
        self.p.stdin.close()
        code = self.p.wait()
        assert self.p.stderr.read() == b""
        return code


@pytest.fixture
def server(msb):
    s = Server(msb)
    yield s
    if s.p.poll() is None:
        s.close()


def test_handshake(server):
    m = server.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {},
                                  "clientInfo": {"name": "t", "version": "1"}})  # fmt: skip
    result = m["result"]
    assert result["protocolVersion"] == "2025-06-18" and result["capabilities"]["tools"] is not None
    assert result["serverInfo"]["name"] == "msb"
    server.send("notifications/initialized")
    assert server.ask("ping")["result"] == {}
    # Another one is ours, to take or leave. 2025-03-26 demands batches, which are refused.
    for asked, offered in (("1999-01-01", "2025-11-25"), ("2026-07-28", "2025-11-25"), ("2025-03-26", "2024-11-05"),
                           ("2024-11-05", "2024-11-05"), ("9999-01-01", "2025-11-25")):  # fmt: skip
        m = server.ask("initialize", {"protocolVersion": asked, "capabilities": {}})
        assert m["result"]["protocolVersion"] == offered, asked
    names = [t["name"] for t in server.ask("tools/list")["result"]["tools"]]
    assert names == ["create", "exec", "read_file", "write_file", "list_files", "logs", "list",
                     "stop", "remove"]  # fmt: skip


def test_stateless(server):
    m = server.ask("server/discover", {"_meta": STATELESS})["result"]
    assert m["supportedVersions"][0] == "2026-07-28" and "tools" in m["capabilities"]
    assert m["resultType"] == "complete"
    m = server.ask("tools/list", {"_meta": STATELESS})["result"]
    assert m["resultType"] == "complete" and m["ttlMs"] > 0 and m["cacheScope"] == "public"
    wrong = {"io.modelcontextprotocol/protocolVersion": "2030-01-01"}
    e = server.ask("tools/list", {"_meta": wrong})["error"]
    assert e["code"] == -32022 and e["data"]["requested"] == "2030-01-01"
    assert "2026-07-28" in e["data"]["supported"] and "2025-03-26" not in e["data"]["supported"]


def test_a_sandbox_from_first_to_last(msb, server):
    name = server.call("create", memory_mib=256, env={"A": "1"})["name"]
    r = server.call("exec", name=name, shell="echo $A $B; cat; pwd; echo oops >&2; exit 3",
                    env={"B": "2"}, stdin="in\n", cwd="/tmp")  # fmt: skip
    assert r == {"exit_code": 3, "stdout": "1 2\nin\n/tmp\n", "stderr": "oops\n",
                 "truncated": False, "timed_out": False}  # fmt: skip
    assert server.call("exec", name=name, command=["echo", "$A", ";"])["stdout"] == "$A ;\n"
    assert [s["name"] for s in server.call("list")["sandboxes"]] == [name]
    assert "oops" in server.call("logs", name=name)["logs"]
    assert server.call("stop", name=name) == {"name": name}
    assert msb.status(name) == "Stopped"
    assert server.call("exec", name=name, command=["true"])["exit_code"] == 0
    assert server.call("remove", name=name) == {"name": name}
    assert server.call("list")["sandboxes"] == []
    assert "there is no sandbox" in server.call("exec", name=name, command=["true"])


def test_files(server):
    name = server.call("create")["name"]
    r = server.call("write_file", name=name, path="/srv/a/b.txt", content="grüße\n", mode="0600")
    assert r["size"] == 8
    server.call("write_file", name=name, path="/srv/a/b.txt", content="more", append=True)
    r = server.call("read_file", name=name, path="/srv/a/b.txt")
    assert r["content"] == "grüße\nmore" and r["size"] == 12 and not r["truncated"]
    raw = bytes(range(256))
    server.call("write_file", name=name, path="/srv/raw", encoding="base64",
                content=base64.b64encode(raw).decode())  # fmt: skip
    r = server.call("read_file", name=name, path="/srv/raw", encoding="base64", offset=16, length=8)
    assert base64.b64decode(r["content"]) == raw[16:24] and r["truncated"]
    r = server.call("read_file", name=name, path="/srv/raw")
    assert "not UTF-8" in r  # and not something that only looks like it
    text = "aé€😀z"
    server.call("write_file", name=name, path="/srv/a/c.txt", content=text)
    for length in (4, 5, 6):
        got, more = "", True
        while more:
            r = server.call("read_file", name=name, path="/srv/a/c.txt", offset=len(got.encode()), length=length)
            got, more = got + r["content"], r["truncated"]
        assert got == text
    # A character that does not fit, and one that the end of the file cuts off.
    assert "not UTF-8" in server.call("read_file", name=name, path="/srv/a/c.txt", offset=1, length=1)
    server.call("exec", name=name, shell="printf 'a\\303' > /srv/a/d.txt")
    assert "not UTF-8" in server.call("read_file", name=name, path="/srv/a/d.txt")
    entries = server.call("list_files", name=name, path="/srv")["entries"]
    assert sorted((x["name"], x["type"]) for x in entries) == [("a", "directory"), ("raw", "file")]
    assert "No such file" in server.call("read_file", name=name, path="/none")
    assert "No such file" in server.call("list_files", name=name, path="/none")
    assert "not valid base64" in server.call("write_file", name=name, path="/x", content="%",
                                             encoding="base64")  # fmt: skip


def test_output_is_bounded(server):
    name = server.call("create")["name"]
    r = server.call("exec", name=name, shell="yes | head -c 3000000", max_output_bytes=1000)
    assert len(r["stdout"]) == 1000 and r["truncated"] and r["exit_code"] == 0
    r = server.call("exec", name=name, shell="printf 'a\\377b\\000c'")
    assert r["stdout"] == "a\ufffdb\0c"


def test_time_limit(server):
    name = server.call("create")["name"]
    r = server.call("exec", name=name, shell="echo begun; sleep 600", timeout_seconds=0.5)
    assert r["timed_out"] and r["exit_code"] == 124 and r["stdout"] == "begun\n"
    r = server.call("exec", name=name, shell="exit 124")
    assert r["exit_code"] == 124 and not r["timed_out"]


def test_calls_run_side_by_side_and_can_be_cancelled(msb, server):
    name = server.call("create")["name"]
    slow = server.start("exec", {"name": name, "shell": "echo up; exec sleep 600"},
                        {"progressToken": "t1"})  # fmt: skip
    note = server.read()
    assert note["method"] == "notifications/progress"
    assert note["params"] == {"progressToken": "t1", "progress": 3, "message": "up"}
    assert server.call("exec", name=name, shell="ps")["stdout"].count("sleep 600") == 1
    server.send("notifications/cancelled", {"requestId": slow, "reason": "test"})
    wait_for(lambda: "sleep 600" not in server.call("exec", name=name, shell="ps")["stdout"])
    server.send("notifications/cancelled", {"requestId": 12345})  # nobody knows it
    assert server.ask("ping")["result"] == {}


def test_sandboxes_go_with_the_server(msb):
    s = Server(msb)
    name = s.call("create")["name"]
    s.start("exec", {"name": name, "command": ["sleep", "600"]})
    s.start("create", {"name": "half-made"})
    assert s.close() == 0
    wait_for(lambda: msb("ls").returncode == 0 and msb.leftovers() == [])
    s = Server(msb)
    s.call("create", name="again")
    s.p.send_signal(signal.SIGTERM)
    assert s.p.wait() == 0
    assert msb.leftovers() == []
    s = Server(msb, "--keep")
    s.call("create", name="kept")
    s.close()
    assert msb.status("kept") == "Running"


def test_other_sandboxes_are_out_of_reach(msb):
    msb.create("private")
    s = Server(msb)
    assert s.call("list")["sandboxes"] == []
    for tool, more in (("exec", {"command": ["true"]}), ("stop", {}), ("remove", {}), ("logs", {}),
                       ("read_file", {"path": "/etc/passwd"})):  # fmt: skip
        assert "there is no sandbox 'private'" in s.call(tool, name="private", **more)
    assert "already exists" in s.call("create", name="private")
    s.close()
    assert msb.status("private") == "Running"
    s = Server(msb, "--all")
    assert s.call("exec", name="private", command=["true"])["exit_code"] == 0
    s.close()
    assert msb.status("private") == "Running"


def test_the_server_decides_what_sandboxes_are(msb):
    s = Server(msb, "--keep", "--", "--memory", "300M", "--label", "team=x")
    s.call("create", name="b", memory_mib=2000)
    s.close()
    config = json.loads(msb.ok("inspect", "b", "--format", "json"))["config"]
    assert config["resources"]["memory_mib"] == 300 and config["labels"]["team"] == "x"


@pytest.mark.parametrize("image", ["/", "./x", "../x", "~/x", "x.tar", "d/x.tgz", "", "-v=/:/host", "--volume=/:/host"])
def test_no_way_to_the_host(msb, server, image):
    text = server.call("create", name="x", image=image)
    assert isinstance(text, str) and msb.leftovers() == []


# --- what it may use of the host ---


class Listener:
    """A server on loopback that counts who comes."""

    def __init__(self):
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.port = self.sock.getsockname()[1]

    def visitors(self):
        self.sock.setblocking(False)
        n = 0
        while True:
            try:
                self.sock.accept()[0].close()
                n += 1
            except BlockingIOError:
                return n


@pytest.mark.parametrize("options", [(), ("--registry", "ghcr.io"), ("--", "--pull", "always"),
                                     ("--", "--pull=always", "--no-net")])
def test_images_make_the_host_talk_to_nobody(msb, options):
    spy = Listener()
    s = Server(msb, *options)
    for host in (f"127.0.0.1:{spy.port}", f"localhost:{spy.port}"):
        text = s.call("create", image=f"{host}/exfil/data:latest")
        assert isinstance(text, str) and "msb mcp --registry" in text, text
    assert spy.visitors() == 0 and msb.leftovers() == []
    s.close()


def test_images_come_from_listed_registries_and_from_the_cache(msb, registry):
    one = registry.push(imagekit.busybox(), "mcp-one:1")
    two = registry.push(imagekit.busybox(), "mcp-two:1")
    s = Server(msb, "--registry", registry.host)
    assert "name" in s.call("create", image=one)
    s.close()
    s = Server(msb)
    assert "name" in s.call("create", image=one)  # it is in the cache now
    assert "msb mcp --registry" in s.call("create", image=two)
    s.close()
    s = Server(msb, "--image", two)  # the user's own choice
    assert "name" in s.call("create") and "name" in s.call("create", image=two)
    s.close()
    p = msb("mcp", "--registry", "https://ghcr.io/", input=b"")
    assert p.returncode == 2 and b"invalid registry" in p.stderr


def test_sandboxes_are_limited(msb):
    s = Server(msb, "--max-sandboxes", "2")
    calls = [s.start("create", {"name": f"n{i}"}) for i in range(5)]
    said = {}
    while len(said) < len(calls):
        m = s.read()
        said[m["id"]] = m["result"]
    refused = [r["content"][0]["text"] for r in said.values() if r["isError"]]
    assert len(refused) == 3 and all("--max-sandboxes" in t for t in refused)
    name = s.call("list")["sandboxes"][0]["name"]
    s.call("stop", name=name)  # which a command would start again: it counts
    assert "--max-sandboxes" in s.call("create")
    s.call("remove", name=name)
    assert "name" in s.call("create")
    s.close()


def test_memory_cpus_and_lifetime_are_limited(msb):
    s = Server(msb, "--keep", "--max-memory", "1G", "--max-cpus", "1.5", "--max-lifetime", "2h")
    assert "--max-memory" in s.call("create", memory_mib=1025)
    assert "--max-cpus" in s.call("create", cpus=2)
    s.call("create", name="a", memory_mib=600)
    assert "--max-memory" in s.call("create", memory_mib=500)
    assert "--max-cpus" in s.call("create", memory_mib=64)
    s.close()
    config = json.loads(msb.ok("inspect", "a", "--format", "json"))["config"]
    assert config["lifecycle"]["max_duration_secs"] == 7200
    s = Server(msb, "--keep", "--max-lifetime", "2h", "--", "--max-duration", "3h")  # the user's
    s.call("create", name="b")
    s.close()
    config = json.loads(msb.ok("inspect", "b", "--format", "json"))["config"]
    assert config["lifecycle"]["max_duration_secs"] == 10800
    p = msb("mcp", "--max-memory", "100M", input=b"")
    assert p.returncode == 2 and b"--max-memory" in p.stderr


def test_unknown_arguments_are_refused(msb, server):
    for tool, arguments in (("create", {"memory": "1G"}), ("create", {"volume": "/:/host"}),
                            ("list", {"all": True}), ("create", {"im\x1bage": "x"})):  # fmt: skip
        text = server.call(tool, **arguments)
        assert "unknown argument" in text and "\x1b" not in text, text
    assert msb.leftovers() == []


def test_files_are_in_the_audit_log(msb, server):
    name = server.call("create")["name"]
    server.call("write_file", name=name, path="/root/a", content="secret text")
    server.call("read_file", name=name, path="/root/a")
    server.call("read_file", name=name, path="/root/none")
    server.call("list_files", name=name, path="/root")
    lines = [json.loads(l) for l in msb.ok("audit", "--format", "json").splitlines()]
    files = [(l["event"], l["path"], "error" in l) for l in lines if "path" in l]
    assert files == [("write-file", "/root/a", False), ("read-file", "/root/a", False),
                     ("read-file", "/root/none", True), ("list-files", "/root", False)]  # fmt: skip
    assert "secret text" not in (msb.home / "audit.log").read_text()


@pytest.mark.parametrize("arguments,message", [
    ({}, "the argument 'name' is missing"),
    ({"name": 3}, "the argument 'name' must be a string"),
    ({"name": "../x"}, "sandbox name"),
    ({"name": "b"}, "either 'command'"),
    ({"name": "b", "command": [], "shell": None}, "a list of 1 to"),
    ({"name": "b", "command": "ls -l"}, "pass a command line as 'shell'"),
    ({"name": "b", "command": ["a", 1]}, "a list of strings"),
    ({"name": "b", "command": ["a"], "shell": "b"}, "either 'command'"),
    ({"name": "b", "command": ["a"], "timeout_seconds": 0}, "timeout_seconds"),
    ({"name": "b", "command": ["a"], "timeout_seconds": "x"}, "timeout_seconds"),
    ({"name": "b", "command": ["a"], "max_output_bytes": 1.5}, "must be a whole number"),
    ({"name": "b", "command": ["a"], "env": {"A": 1}}, "must map names to strings"),
    ({"name": "b", "command": ["a\0b"]}, "a list of strings"),
])  # fmt: skip
def test_bad_arguments(msb, arguments, message):
    msb.create("b")
    s = Server(msb, "--all")
    assert message in s.call("exec", **arguments)
    s.close()


def not_allowed(argument):
    """Values that the schema of an argument excludes."""
    yield "text" if argument["type"] == "object" else {"a": "b"}
    if "minimum" in argument:
        yield from (argument["minimum"] - 1, argument["minimum"] + 0.5)
    if "maximum" in argument:
        yield argument["maximum"] * 2.0
    if "exclusiveMinimum" in argument:
        yield argument["exclusiveMinimum"]
    if "minLength" in argument:
        yield ""
    if "enum" in argument:
        yield "none of them"
    if "items" in argument:
        yield from ([], [1])


def test_arguments_are_held_to_their_schema(server):
    for tool in server.ask("tools/list")["result"]["tools"]:
        for name, argument in tool["inputSchema"].get("properties", {}).items():
            for value in not_allowed(argument):
                said = server.call(tool["name"], **{name: value})
                assert f"the argument '{name}' " in said, (tool["name"], name, value)


def test_bad_messages(server):
    for line, code in ((b"{", -32700), (b"[]", -32600), (b"1", -32600), (b"\xff\xfe", -32700),
                       (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
                       (b'{"jsonrpc":"2.0","id":1}', -32600),
                       (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600),
                       (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":3}', -32602),
                       (b'{"jsonrpc":"2.0","id":1,"method":"nope"}', -32601),
                       (b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}', -32602),
                       (b"[" * 100000, -32700)):  # fmt: skip
        server.write(line + b"\n")
        assert server.read()["error"]["code"] == code, line[:80]
    server.write(b"\n\r\n" + b"x" * (9 << 20) + b"\n")
    assert server.read()["error"]["message"] == "the message is too long"
    assert server.ask("ping")["result"] == {}
    e = server.ask("tools/call", {"name": "no\x1bpe"})["error"]
    assert e["code"] == -32602 and "\x1b" not in e["message"]


def test_standard_input_must_be_a_stream(msb):
    p = msb("mcp", stdin=subprocess.DEVNULL)
    assert p.returncode == 1 and b"must be a pipe or a socket" in p.stderr


def test_options_of_sandboxes_are_looked_at_first(msb):
    p = msb("mcp", "--net-rule", "allow@example.com")
    assert p.returncode == 2 and b"go after '--': msb mcp -- --net-rule ..." in p.stderr
    p = msb("mcp", "--", "--nmae", "x", input=b"")
    assert p.returncode == 2 and b"a similar argument exists: '--name'" in p.stderr
    p = msb("mcp", "--", "image", input=b"")
    assert p.returncode == 2 and b"--image" in p.stderr


# --- the official clients -------------------------------------------------------------------------


def packages(name):
    """A directory with an npm package in it, fetched once."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("there is no Node.js with npm here")
    directory = NPM_CACHE / name.replace("/", "-").strip("@")
    if not (directory / "node_modules").exists():
        fresh = directory.with_suffix(f".{os.getpid()}")
        fresh.mkdir(parents=True)
        p = subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--prefix", fresh, name],
                           capture_output=True, text=True, timeout=300)  # fmt: skip
        if p.returncode:
            shutil.rmtree(fresh)
            pytest.skip(f"npm cannot install {name}: {p.stderr.strip().splitlines()[-1:]}")
        fresh.rename(directory)
    return directory


class Official:
    def __init__(self, msb, package, mode, *args):
        self.p = subprocess.Popen(
            ["node", Path(__file__).with_name("mcp_client.mjs"), packages(package), mode,
             msb.exe, "mcp", *args],
            env=msb.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
        self.seq = 0

    def send(self, **request):
        self.seq += 1
        self.p.stdin.write(json.dumps({"seq": self.seq, **request}).encode() + b"\n")
        self.p.stdin.flush()
        return self.seq

    def read(self):
        return json.loads(self.p.stdout.readline())

    def ask(self, **request):
        seq = self.send(**request)
        m = self.read()
        assert m["seq"] == seq and "error" not in m, m
        return m["result"]

    def call(self, tool, **arguments):
        return self.ask(op="call", tool=tool, arguments=arguments)

    def close(self):
        self.ask(op="close")
        self.p.stdin.close()
        assert self.p.wait(timeout=30) == 0


def node_major():
    text = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout
    return int(text.strip("v\n").split(".")[0])


@pytest.mark.parametrize("package,mode", [(SDK, "handshake"), (CLIENT, "stateless")])
def test_official_client(msb, package, mode):
    if mode == "stateless" and shutil.which("node") and node_major() < 20:
        pytest.skip("the client of the stateless revision needs Node.js 20")
    c = Official(msb, package, mode)
    assert c.ask(op="server")["version"]["name"] == "msb"
    assert len(c.ask(op="tools")) == 9
    name = c.call("create")["structuredContent"]["name"]
    r = c.call("exec", name=name, shell="echo one; sleep 0.5; echo two")
    assert r["structuredContent"]["stdout"] == "one\ntwo\n"
    assert r["progress"][0]["message"] == "one"
    c.call("write_file", name=name, path="/srv/x", content="hello")
    assert c.call("read_file", name=name, path="/srv/x")["structuredContent"]["content"] == "hello"
    assert c.call("exec", name="nobody", command=["true"])["isError"]
    c.send(op="call", tool="exec", arguments={"name": name, "shell": "exec sleep 600"}, key="k")
    wait_for(lambda: b"sleep" in msb("exec", name, "--", "ps").stdout)
    slow = c.seq
    c.send(op="abort", key="k")
    answers = {m["seq"]: m for m in (c.read(), c.read())}
    assert "the test says so" in answers[slow]["error"]
    wait_for(lambda: b"sleep" not in msb("exec", name, "--", "ps").stdout)
    c.close()
    wait_for(lambda: msb.leftovers() == [])
