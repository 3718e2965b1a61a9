"""Bound secrets and third-party programs: each client unmodified, also against a third-party server."""
import json
import os
import pathlib
import shutil
import subprocess

import pytest

import netkit
from imagekit import cached, run
from interceptkit import VALUE, certify
from netkit import HERE

HTTP1, HTTP2, GRPC, SOCKETS = (f"93.184.216.{i}" for i in range(110, 114))
NAMES = {HTTP1: "one.example.com", HTTP2: "two.example.com", GRPC: "grpc.example.com", SOCKETS: "ws.example.com"}
PACKAGES = pathlib.Path("/usr/lib/python3/dist-packages")
BEARER = f"Bearer {VALUE}"


def needs(*packages):
    for p in packages:
        if not (PACKAGES / p).exists():
            pytest.skip(f"Python's {p} is not installed")


def libraries(d):
    """What grpc's module is linked with, which the image lacks."""
    module, = (PACKAGES / "grpc" / "_cython").glob("cygrpc*.so") if (PACKAGES / "grpc").exists() else [None]
    for line in run("ldd", module).splitlines() if module else ():
        name, _, where = line.partition("=>")
        if where and not name.strip().startswith(("libc.", "libm.", "ld-")):
            shutil.copy(where.split()[0], d / name.strip())
    return d


class World:
    def __init__(self, net, d):
        self.tls, self.calls = d / "seen", d / "calls"
        certify(d, net.ca, "good", NAMES.values())
        for address in NAMES:
            net.in_world("ip", "addr", "add", f"{address}/24", "dev", "w0")
        net.set_hosts("".join(f"{a} {n}\n" for a, n in NAMES.items()))
        servers = [f"grpc={GRPC}"] * (PACKAGES / "grpc").exists()
        servers += [f"web-socket={SOCKETS}"] * (PACKAGES / "websockets").exists()
        for command in (["tlsworld.py", d, f"{HTTP1}=good.pem", f"{HTTP2}=good.pem+h2"],
                        ["callworld.py", d / "good.pem", self.calls, *servers]):
            p = net.start(*net.enter(net.world_pid), netkit.PYTHON, HERE / command[0], *command[1:], stdout=subprocess.PIPE)
            assert p.stdout.readline() == b"ready\n"

    def head(self, line):
        """Of the last request that begins with it."""
        heads = [json.loads(text)[1] for text in self.tls.read_text().splitlines()]
        return [h for h in heads if h.startswith(line)][-1]

    def called(self, kind):
        return [what for k, what in map(json.loads, self.calls.read_text().splitlines()) if k == kind]


@pytest.fixture(scope="module")
def world(internet, tmp_path_factory):
    return World(internet, tmp_path_factory.mktemp("calls"))


@pytest.fixture(scope="module")
def box(net_msb, world, tmp_path_factory):
    npm = shutil.which("npm")
    modules = pathlib.Path(npm).resolve().parents[2] if npm else PACKAGES  # npm/bin/npm-cli.js
    net_msb.ok("secret", "set", "KEY", input=VALUE.encode())
    net_msb.create("clients", "net-guest:1", "-m", "768M", "-v", f"{PACKAGES}:/opt/python:ro",
                   "-v", f"{libraries(tmp_path_factory.mktemp('lib'))}:/opt/lib:ro", "-v", f"{modules}:/opt/node:ro",
                   "-e", "NODE_PATH=/opt/node",
                   "--secret", "KEY@*.example.com", "--tls-upstream-ca-cert", str(net_msb.net.ca))
    return net_msb


def python(m, script):
    return m.python("clients", "import sys\nsys.path.append('/opt/python')\n" + script)


def test_httpx(box, world):
    needs("httpx", "h2")
    out = python(box, """
import httpx, os
for http2, host in ((False, "one"), (True, "two"), (False, "two")):
    with httpx.Client(http2=http2, headers={"Authorization": "Bearer " + os.environ["KEY"]}) as c:
        r = c.post(f"https://{host}.example.com/httpx", content=b"x" * 100000)
        print(r.http_version, r.status_code, r.json()["n"])
        print(c.get(f"https://{host}.example.com/", headers={"User-Agent": os.environ["KEY"]}).status_code)
""")
    assert out == ["HTTP/1.1 200 100000", "403", "HTTP/2 200 100000", "403", "HTTP/1.1 200 100000", "403"]
    assert BEARER in world.head("POST /httpx HTTP/1.1") and BEARER in world.head("POST /httpx HTTP/2")


def test_a_web_socket(box, world):
    needs("websockets")
    out = python(box, """
import asyncio, os, websockets
async def talk():
    async with websockets.connect("wss://ws.example.com/", extra_headers={"Authorization": "Bearer " + os.environ["KEY"]}) as s:
        for text in ("one", "two" * 40000):
            await s.send(text)
            print(len(await s.recv()))
        await s.send(os.environ["KEY"].encode())  # what is inside is nobody's business
        print((await s.recv()).decode() == os.environ["KEY"])
    try:
        await websockets.connect("wss://ws.example.com/", subprotocols=[os.environ["KEY"]])
    except websockets.InvalidStatusCode as e:
        print(e.status_code)
asyncio.run(talk())
""")
    assert out == [str(9 + 3), str(9 + 120000), "True", "403"]
    assert world.called("web-socket") == [BEARER]


def test_grpc_in_both_directions(box, world):
    """Each message is answered before the next one is sent: nothing waits for the end of a body."""
    needs("grpc")
    out = box.ok("exec", "-q", "-e", "LD_LIBRARY_PATH=/opt/lib", "-e", "PYTHONPATH=/opt/python", "clients", "--", "python3",
                 "-c", """
import grpc, os, queue
roots = open(os.environ["SSL_CERT_FILE"], "rb").read()
token = grpc.access_token_call_credentials(os.environ["KEY"])
creds = grpc.composite_channel_credentials(grpc.ssl_channel_credentials(roots), token)
with grpc.secure_channel("grpc.example.com:443", creds) as channel:
    say = queue.Queue()
    call = channel.stream_stream("/test.Echo/Talk")(iter(say.get, None), timeout=60)
    for text in (b"one", b"two", b"x" * 100000):
        say.put(text)
        print(len(next(call)))
    say.put(None)
    print(list(call), call.code().name, dict(call.trailing_metadata())["x-said"])
    elsewhere = channel.stream_stream("/test.Echo/Talk")(iter([os.environ["KEY"].encode()]), timeout=60)
    try:
        print(list(elsewhere))
    except grpc.RpcError as e:
        print(e.code().name)
""", timeout=120).splitlines()
    assert out == ["12", "12", "100009", "[] OK all", "PERMISSION_DENIED"], out
    assert set(world.called("grpc")) == {BEARER}


def test_npm_with_a_token(box, world):
    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    out = box.ok("exec", "-q", "clients", "--", "bash", "-ec", """
        cd /root
        echo '//one.example.com/npm/:_authToken=${KEY}' >.npmrc
        node /opt/node/npm/bin/npm-cli.js view thing version --registry https://one.example.com/npm/ --no-update-notifier
    """, timeout=120)
    assert out.split() == ["1.2.3"] and f"authorization: {BEARER}" in world.head("GET /npm/thing")


GO = """package main
import ("fmt"; "io"; "net/http"; "os"; "strings")
func main() {
    for _, url := range []string{"https://one.example.com/go", "https://two.example.com/go"} {
        q, _ := http.NewRequest("POST", url, strings.NewReader(strings.Repeat("x", 100000)))
        q.Header.Set("Authorization", "Bearer " + os.Getenv("KEY"))
        r, err := http.DefaultClient.Do(q)
        if err != nil { fmt.Println(err); os.Exit(1) }
        body, _ := io.ReadAll(r.Body)
        fmt.Println(r.Proto, r.StatusCode, strings.TrimSpace(string(body)))
    }
}
"""


def test_go(box, world):
    if not shutil.which("go"):
        pytest.skip("go is not installed: with its packages it takes half a gigabyte")

    def build(d):
        (d / "main.go").write_text(GO)
        env = {**os.environ, "CGO_ENABLED": "0", "GOCACHE": str(d / "cache")}
        run("go", "build", "-o", d / "client", d / "main.go", env=env)
        shutil.rmtree(d / "cache")

    client = cached("go-client", [GO], build) / "client"
    box.ok("cp", client, "clients:/root/client")
    assert box.ok("exec", "-q", "clients", "--", "/root/client", timeout=120).splitlines() == [
        'HTTP/1.1 200 {"n": 100000}', 'HTTP/2.0 200 {"n": 100000}']
    assert BEARER in world.head("POST /go HTTP/1.1") and BEARER in world.head("POST /go HTTP/2")
