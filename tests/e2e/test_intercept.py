"""Secrets that never enter the guest: real clients in a sandbox, and real servers in a namespace."""
import base64
import contextlib
import hashlib
import json
import os
import pathlib
import re
import subprocess

import pytest

import netkit
import processes
from conftest import Msb, make_home
from imagekit import run
from interceptkit import API, EXPIRED, RAW, SECOND, VALUE, curl, denials, holder, make_box, sh


@pytest.fixture(scope="module")
def box(net_msb, servers):
    return make_box(net_msb)


# --- use ---


def test_the_guest_has_a_placeholder_and_the_server_gets_the_value(box, servers):
    key, second = sh(box, "echo $KEY $SECOND").split()
    assert re.fullmatch(r"msb_[A-Za-z0-9]{40}", key) and key != second
    assert (key, second) == (holder(box), holder(box, "SECOND"))
    assert curl(box, "-H", f"Authorization: Bearer {holder(box)}", "https://api.example.com/echo?a=1")[0] == 200
    target, fields, server = servers.last()
    assert (target, server) == ("/echo?a=1", API)
    assert fields["authorization"] == f"Bearer {VALUE}" and fields["host"] == "api.example.com"
    names = ("X-Api-Key", "api-key", "PRIVATE-TOKEN", "x-own")
    assert curl(box, *(w for n in names for w in ("-H", f"{n}: {key}")), "https://api.example.com/")[0] == 200
    assert [servers.last()[1][n.lower()] for n in names] == [VALUE] * 4


def test_basic_credentials_and_parameters(box, servers):
    assert curl(box, "-u", f"me:{holder(box)}", "https://api.example.com/")[0] == 200
    scheme, code = servers.last()[1]["authorization"].split()
    assert scheme == "Basic" and base64.b64decode(code).decode() == f"me:{VALUE}"
    assert curl(box, f"https://api.example.com/q?x=1&key={holder(box)}&y=2")[0] == 200
    assert servers.last()[0] == f"/q?x=1&key={VALUE}&y=2"


def test_a_port_that_was_named(box, servers):
    assert curl(box, "-H", f"X-Api-Key: {holder(box)}", "https://api.example.com:8443/port")[0] == 200
    target, fields, server = servers.last()
    assert (target, server, fields["host"], fields["x-api-key"]) == ("/port", API, "api.example.com:8443", VALUE)
    assert curl(box, "-H", "Host: api.example.com:8444", "https://api.example.com:8443/port")[0] == 421
    tls = json.loads(box.ok("inspect", "box", "--format", "json"))["config"]["network"]["tls"]
    assert tls["intercepted_ports"] == [443, 8443]


def test_a_path_that_a_secret_is_bound_to(box, servers):
    second = f"Authorization: token {holder(box, 'SECOND')}"
    assert curl(box, "-H", second, "https://git.example.com/repos/acme")[0] == 200
    assert servers.last()[1]["authorization"] == f"token {SECOND}"
    out = box.python("box", RAW + r"""
for path in (b"/", b"/repos", b"/repos/../x", b"/repos/%2e%2e/x", b"/repos//x", b"/other?/repos/"):
    print(ask(b"GET " + path + b" HTTP/1.1\r\nHost: git.example.com\r\nAuthorization: token " +
              os.environ["SECOND"].encode() + b"\r\n\r\n", host="git.example.com"))
""")
    assert "".join(out).count("SECOND is not bound to this method and path") == 2 * 6  # header and body
    assert "".join(out).count("HTTP/1.1 403 Forbidden") == 6


def test_programs_as_they_are(box, servers):
    """Each with its own idea of where certificates are, and of how a request is sent."""
    sh(box, """
        python3 - <<'END'
import os, urllib.request
r = urllib.request.Request("https://api.example.com/py", headers={"X-Api-Key": os.environ["KEY"]}, data=b"x" * 100000)
assert urllib.request.urlopen(r, timeout=60).status == 200
from pip._vendor import requests  # the library as it is; Debian has no other copy in this image
s = requests.Session()
assert [s.get("https://api.example.com/requests", auth=("me", os.environ["KEY"])).status_code for _ in "ab"] == [200, 200]
END
        pip download -q --no-deps --retries 0 --disable-pip-version-check -d /tmp \\
            --index-url https://me:$KEY@api.example.com/pip nothing 2>/dev/null || true
        node -e 'fetch("https://api.example.com/node", {method: "POST", headers: {"x-api-key": process.env.KEY},
            body: "y".repeat(200000)}).then(r => { if (r.status != 200) throw r.status })'
        git -c http.extraHeader="Authorization: Bearer $KEY" ls-remote https://api.example.com/repo 2>/dev/null || true
        wget -q -O /dev/null --header="X-Api-Key: $KEY" https://api.example.com/wget || [ $? = 127 ]
    """)
    heads = {head.split(" ")[1].split("?")[0]: head for _, head, _ in servers.seen()}
    for path in ("/py", "/node", "/repo/info/refs"):
        assert VALUE in heads[path], path
    for path in ("/requests", "/pip/nothing/"):
        assert base64.b64encode(f"me:{VALUE}".encode()).decode() in heads[path], path


def test_bodies_in_both_directions(box, servers):
    out = sh(box, """
        head -c 2000000 /dev/zero | tr '\\0' a >/tmp/body
        for args in "-T -" "-T - -H Expect:100-continue" "--data-binary @- -H Transfer-Encoding:chunked" "--data-binary @-"; do
            curl -sS -m 60 $args -H "X-Api-Key: $KEY" https://api.example.com/up </tmp/body
        done
        curl -sS https://api.example.com/big?8000000 | wc -c
        curl -sSI https://api.example.com/big?5 | head -1
        curl -sS https://api.example.com/chunked
    """).splitlines()
    assert [json.loads(line)["n"] for line in out[:4]] == [2000000] * 4
    assert all(VALUE in head for _, head, _ in servers.seen()[-7:-3])
    assert out[4:] == ["8000000", "HTTP/1.1 200 OK", "hello world"]
    p = box("exec", "-q", "box", "--", "curl", "-sS", "https://api.example.com/truncated")
    assert p.returncode in (18, 56), p.stderr  # the client can tell




def test_pipelines_streams_and_web_sockets(box):
    out = box.python("box", RAW + '''
one = b"GET /p%d HTTP/1.1\\r\\n" + HOST + b"X-Api-Key: " + KEY + b"\\r\\n"
text = ask(one % 1 + b"\\r\\n" + one % 2 + b"\\r\\n" + one % 3 + b"Connection: close\\r\\n\\r\\n")
print(text.count("HTTP/1.1 200 OK"))
s = connect()
s.sendall(b"GET /sse HTTP/1.1\\r\\n" + HOST + b"\\r\\n")
got = b""
while b"data: 1" not in got:
    got += s.recv(1000)
print("first event")
s = connect()
s.sendall(b"GET /ws HTTP/1.1\\r\\n" + HOST + b"Upgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
          b"Sec-WebSocket-Key: abc\\r\\nSec-WebSocket-Version: 13\\r\\nAuthorization: Bearer " + KEY + b"\\r\\n\\r\\n")
got = b""
while b"\\r\\n\\r\\n" not in got:
    got += s.recv(1000)
print(got.split(b"\\r\\n")[0].decode())
s.sendall(b"\\x00any bytes\\xff")
print(s.recv(1000))
''')
    assert out == ["3", "first event", "HTTP/1.1 101 Switching Protocols",
                   "b'\\x00any bytes\\xff'"]


def test_http2_where_the_server_speaks_it(box, servers):
    url = "https://h2.example.com"
    out = sh(box, f"""
        w='%{{http_version}} %{{http_code}}\n'
        curl -sS -o /dev/null -w "$w" -H "Authorization: Bearer $KEY" -H "X-Plain: p" {url}/echo
        curl -sS -o /dev/null -w "$w" --http1.1 -H "X-Api-Key: $KEY" {url}/
        curl -sS -o /dev/null -w "$w" -H "X-Api-Key: $KEY" https://api.example.com/
        curl -sS -o /dev/null -w "$w" https://expired.example.com/
        head -c 2000000 /dev/zero | curl -sS -T - {url}/up
        curl -sS {url}/big?8000000 | wc -c
        curl -sS -Z --parallel-max 20 $(for i in $(seq 30); do echo {url}/big?100000; done) | wc -c
        curl -sS -w "$w" -A "$KEY" {url}/
    """).splitlines()
    assert out[:4] == ["2 200", "1.1 200", "1.1 200", "1.1 502"]
    assert json.loads(out[4]) == {"n": 2000000} and out[5:7] == ["8000000", "3000000"]
    assert json.loads(out[7])["error"] == "secret_blocked" and "in header user-agent" in out[7]
    assert out[8] == "2 403"
    head = next(head for _, head, _ in servers.seen() if head.startswith("GET /echo HTTP/2"))
    assert f"authorization: Bearer {VALUE}\r\n" in head and "x-plain: p\r\n" in head
    assert "never-indexed: authorization\r\n" in head


def test_http2_streams(box, servers):
    """Many at once on one connection, with trailers, resets, and requests that are refused among them."""
    before = len(servers.seen())
    out = sh(box, """cat >/tmp/h2.js <<'END'
const http2 = require("http2"), key = process.env.KEY;
const c = http2.connect("https://h2.example.com", {ca: require("fs").readFileSync(process.env.NODE_EXTRA_CA_CERTS)});
const ask = (h, body) => new Promise(done => {
  const r = c.request({":method": body ? "POST" : "GET", ...h}), got = {};
  let text = "";
  r.on("response", x => { got.status = x[":status"]; });
  r.on("trailers", x => { got.trailers = x["grpc-status"]; });
  r.on("data", d => { text += d; });
  r.on("error", e => { got.error = e.code; });
  r.on("close", () => done({...got, n: text.length, text: text.slice(0, 60)}));
  r.end(body);
});
(async () => {
  const all = await Promise.all([
    ask({":path": "/call", "x-api-key": key}, "message".repeat(30000)),
    ask({":path": "/reset"}),
    ask({":path": "/", ":authority": "elsewhere.example.com", "x-api-key": key}),
    ask({":path": "/", cookie: "a=" + key}),
    ask({":path": "/body"}, "x".repeat(50000) + key),
    ask({":path": "/call", "authorization": "Basic " + Buffer.from("me:" + key).toString("base64")}, "last"),
  ]);
  for (const a of all) console.log(JSON.stringify(a));
  c.close();
})();
END
node /tmp/h2.js""").splitlines()
    call, reset, authority, cookie, body, last = (json.loads(line) for line in out)
    assert call["status"] == 200 and call["trailers"] == "0" and call["n"] == 210000
    assert "error" in reset and "status" not in reset
    assert [x["status"] for x in (authority, cookie, body, last)] == [421, 403, 403, 200]
    assert last["text"] == "last" and last["trailers"] == "0"
    heads = [head for _, head, _ in servers.seen()[before:]]
    assert all(h.split(" ")[1] in ("/call", "/reset") for h in heads)
    assert base64.b64encode(f"me:{VALUE}".encode()).decode() in "".join(heads) and f"x-api-key: {VALUE}" in "".join(heads)
    assert any("KEY may not be in header cookie" in r["why"] for r in denials(box))


def test_a_client_without_http1_needs_a_server_with_http2(box):
    out = box.python("box", RAW + """
for host in ("api.example.com", "expired.example.com", "h2.example.com"):
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2"])
    try:
        s = context.wrap_socket(socket.create_connection((host, 443)), server_hostname=host)
        print(s.selected_alpn_protocol())
    except ssl.SSLError as e:
        print("refused", e.reason in (None, "TLSV1_ALERT_NO_APPLICATION_PROTOCOL"))
""")
    assert out == ["refused True", "h2", "h2"]


def test_many_connections_at_once(box):
    out = box.python("box", RAW + """
import concurrent.futures
def one(i):
    return ask(b"GET /many HTTP/1.1\\r\\n" + HOST + b"X-Api-Key: " + KEY + b"\\r\\nConnection: close\\r\\n\\r\\n")
with concurrent.futures.ThreadPoolExecutor(40) as pool:
    print(sum("HTTP/1.1 200 OK" in text for text in pool.map(one, range(40))))
""")
    assert out == ["40"]


def test_readers_that_do_not_read_cost_no_memory(box):
    """Downloads that wait for their client, while another one goes through."""
    out = box.python("box", RAW + """
slow = [connect() for _ in range(4)]
for s in slow:
    s.sendall(b"GET /big?50000000 HTTP/1.1\\r\\n" + HOST + b"\\r\\n")
    s.recv(1)
print(len(ask(b"GET /big?3000000 HTTP/1.1\\r\\n" + HOST + b"Connection: close\\r\\n\\r\\n")) > 3000000)
""")
    peak = int(re.search(r"^VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{box.interceptor}/status").read_text(), re.M)[1])
    assert out == ["True"] and peak < 32 * 1024


def test_other_connections_are_left_alone(box):
    """Their certificate is the server's own."""
    out = sh(box, "echo | openssl s_client -connect other.org:443 -servername other.org 2>/dev/null | "
                  "openssl x509 -noout -issuer")
    assert "msb test CA" in out
    out = sh(box, "echo | openssl s_client -connect api.example.com:443 -servername api.example.com 2>/dev/null | "
                  "openssl x509 -noout -issuer -ext subjectAltName")
    assert "O = msb" in out and "DNS:api.example.com" in out


# --- where the value is ---


def in_file(path, data):
    """Whether a file, which may be mostly holes, has these bytes in it."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        at = os.lseek(fd, 0, os.SEEK_DATA)
        tail = b""
        while piece := os.pread(fd, 1 << 20, at):
            if data in tail + piece:
                return True
            tail, at = piece[-len(data):], os.lseek(fd, at + len(piece), os.SEEK_DATA)
    except OSError:  # there is no more data, or it has none
        pass
    finally:
        os.close(fd)
    return False


def in_memory(pid, data):
    """Whether a process has these bytes in memory of its own, or in a file that it has mapped or open."""
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        at, mode, _, _, inode, *_ = line.split()
        begin, end = (int(x, 16) for x in at.split("-"))
        if mode[0] != "r" or inode != "0" or end - begin > 1 << 28 or "[v" in line:
            continue
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as f:
            f.seek(begin)
            try:
                if data in f.read(end - begin):
                    return True
            except OSError:
                pass
    return any(in_file(f"/proc/{pid}/fd/{fd}", data) for fd in os.listdir(f"/proc/{pid}/fd")
               if os.path.isfile(f"/proc/{pid}/fd/{fd}"))


def test_the_value_is_nowhere_else(box):
    """Neither in the guest, its memory and its disk, nor on the host, but in the store and the interceptor."""
    value = VALUE.encode()
    home = pathlib.Path(box.home)
    assert curl(box, "-H", f"X-Api-Key: {holder(box)}", "https://api.example.com/")[0] == 200
    files = [f for d in home.iterdir() if d.name != "cache" for f in d.rglob("*") if f.is_file()]
    assert [f.relative_to(home).parts for f in files if in_file(f, value)] == [("secrets", "KEY")]
    assert VALUE not in box.ok("inspect", "box", "--format", "json") + box.ok("audit", "--since", "1h")
    monitor = processes.lock_holder(home / "sandboxes" / "box" / "lock")
    ours = processes.tree(monitor)
    assert len(ours) > 2 and not [pid for pid in ours if in_memory(pid, value)]
    assert in_memory(box.interceptor, value)  # the search finds what there is
    sh(box, "printf marker | sha256sum | head -c 64 >/dev/shm/marker")
    marker = hashlib.sha256(b"marker").hexdigest().encode()
    assert [pid for pid in ours if in_memory(pid, marker)]  # ... also in the guest's memory
    for p in pathlib.Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError):  # it has ended
                assert value not in (p / name).read_bytes(), p


def test_the_interceptor_can_do_nothing_else(box):
    proc = pathlib.Path(f"/proc/{box.interceptor}")
    status = (proc / "status").read_text()
    assert re.search(r"^Seccomp:\s+2$", status, re.M) and re.search(r"^CapEff:\s+0+$", status, re.M)
    assert re.search(r"^NoNewPrivs:\s+1$", status, re.M)
    assert os.listdir(proc / "root") == []
    kinds = {os.readlink(proc / "fd" / fd).split(":")[0] for fd in os.listdir(proc / "fd")}
    assert kinds <= {"/dev/null", "/null", "socket", "anon_inode"}
    assert re.search(r"^Max core file size\s+0\s", (proc / "limits").read_text(), re.M)


# --- refusals, before anything starts ---


@pytest.mark.parametrize("args, sentence", [
    (["--secret", "KEY"], "does not have the form NAME@HOST"),
    (["--secret", "KEY@*"], "every host"),
    (["--secret", "KEY@10.0.0.1"], "is an address"),
    (["--secret", "KEY@localhost"], "is not a host name"),
    (["--secret", "KEY@a.example.com,in=bodies"], "expected in=header:NAME, in=query:NAME or in=body"),
    (["--secret", "KEY@a.example.com,in=header:Host"], "no secret can be in this header"),
    (["--secret", "KEY@a.example.com,placeholder=short"], "a placeholder has"),
    (["--secret", "KEY@a.example.com,sign=gcp"], "unknown option"),
    (["--secret", "KEY@a.example.com", "--no-net"], "has no network"),
    (["--secret", "KEY@a.example.com", "--tls-intercept-port", "80"], "neither 53 nor 80"),
    (["--secret", "KEY@*.example.com", "--tls-bypass", "a.example.com"], "secret KEY is bound to"),
    (["--secret", "KEY@a.example.com", "--tls-no-verify-upstream-for", "*.example.com"],
     "secret KEY is bound to a.example.com, and an impostor of that host would get the value"),
    (["--secret", "KEY@a.example.com", "--no-block-quic"], "QUIC to it cannot be intercepted"),
    (["--secret", "KEY@a.example.com", "--tls-intercept-ca-cert", "/etc/passwd"], "give both or neither"),
    (["--secret", "KEY@a.example.com", "--secret-env", "KEY"], "cannot be both"),
    (["--secret", "NOSUCH@a.example.com"], "there is no secret 'NOSUCH'"),
    (["--secret", "LINES@a.example.com"], "line break"),
], ids=lambda a: a[1] if isinstance(a, list) else None)
def test_what_could_not_work_does_not_start(net_msb, box, args, sentence):
    net_msb.env["LINES"] = "two\nlines"
    p = net_msb("create", "-n", "refused", *args)
    assert p.returncode != 0
    first = p.stderr.decode().splitlines()[0]
    assert first.startswith("error:") and sentence in first
    assert "refused" not in net_msb.ok("ls", "-a", "-q").split()


def test_a_violation_can_end_the_sandbox(net_msb, box):
    net_msb.create("strict", "net-guest:1", "--secret", "KEY@api.example.com", "--on-secret-violation",
                   "block-and-terminate", "--tls-upstream-ca-cert", str(net_msb.net.ca))
    net_msb("exec", "-q", "strict", "--", "bash", "-c", 'curl -sS -A "$KEY" https://api.example.com/')
    netkit.wait_for(lambda: "a secret was about to go where it may not" in net_msb.ok("inspect", "strict"), timeout=30)


@pytest.fixture(scope="module")
def changing(net_msb, servers):
    """A sandbox without secrets, but with an interceptor."""
    net_msb.create("changing", "net-guest:1", "--tls-upstream-ca-cert", str(net_msb.net.ca),
                   "--tls-intercept", "elsewhere.example.com")
    return net_msb


def ask(m, variable, host="api.example.com"):
    """The status of a request with that variable of the guest in it."""
    return m.ok("exec", "-q", "changing", "--", "bash", "-c", f'curl -sS -m 60 -o /dev/null -w "%{{http_code}}" '
                f'-H "X-Api-Key: ${variable}" https://{host}/')


def test_secrets_are_bound_to_a_running_sandbox(changing, servers):
    changing.ok("secret", "set", "ROTATED", input=b"old-value")
    changing.env["PASSING"] = "from-the-environment"
    changing.ok("modify", "changing", "--secret", "ROTATED@api.example.com", "--secret", "PASSING@git.example.com")
    del changing.env["PASSING"]  # what stays as it was need not be there again
    assert ask(changing, "ROTATED") == "200" and servers.last()[1]["x-api-key"] == "old-value"
    changing.ok("secret", "set", "ROTATED", input=b"new-value")
    assert ask(changing, "ROTATED") == "200" and servers.last()[1]["x-api-key"] == "new-value"
    changing.ok("modify", "changing", "--secret", "ROTATED@git.example.com")
    assert ask(changing, "ROTATED", "git.example.com") == "200" and servers.last()[1]["x-api-key"] == "new-value"
    assert ask(changing, "PASSING", "git.example.com") == "200"
    assert servers.last()[1]["x-api-key"] == "from-the-environment"
    status = json.loads(changing.ok("modify", "changing", "--secret-rm", "ROTATED", "--dry-run", "--format", "json"))
    assert [c["disposition"] for c in status["changes"]] == ["live"]
    old = holder(changing, "ROTATED", "changing")
    changing.ok("modify", "changing", "--secret-rm", "ROTATED")
    assert changing("exec", "-q", "changing", "--", "sh", "-c", 'test -z "$ROTATED"').returncode == 0
    before = len(servers.seen())
    changing.ok("exec", "-q", "changing", "--", "curl", "-sS", "-k", "-H", f"X-Api-Key: {old}", "https://git.example.com/")
    assert len(servers.seen()) == before + 1 and servers.last()[1]["x-api-key"] == old  # a text like any other
    p = changing("modify", "changing", "--secret-rm", "ROTATED")
    assert p.returncode != 0 and b"is not bound" in p.stderr


def test_values_in_bodies_and_in_responses(changing, servers):
    changing.ok("secret", "set", "BODY", input=b'in "bodies"&more')
    changing.ok("modify", "changing", "--secret", "BODY@api.example.com,in=body,scrub=response")
    changing.ok("secret", "set", "HEADERS", input=b"only-in-headers")
    changing.ok("modify", "changing", "--secret", "HEADERS@api.example.com")
    out = changing.python("changing", RAW.replace('os.environ["KEY"]', 'os.environ["BODY"]') + r'''
def post(body, *fields):
    return ask(b"POST /reflect HTTP/1.1\r\n" + HOST + b"Connection: close\r\n" + b"\r\n".join(fields) + b"\r\n\r\n" + body)
def sized(body, *fields):
    return post(body, b"Content-Length: %d" % len(body), *fields)
JSON = b"Content-Type: application/json"
long = b"x" * 100000
chunks = b"5\r\nhello\r\n" + b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (KEY[:7], KEY[7:], KEY)) + b"0\r\n\r\n"
for text in (sized(b'{"k":"' + KEY + b'"}', JSON), sized(b"k=" + KEY, b"Content-Type: application/x-www-form-urlencoded"),
             sized(KEY + long, JSON), post(chunks, b"Transfer-Encoding: chunked"),
             sized(KEY, b"Expect: 100-continue"), sized(b"", b"X-Api-Key: " + KEY, b"Accept-Encoding: gzip"),
             sized(os.environ["HEADERS"].encode())):
    head, body = text.split("\r\n\r\n", 1)
    print(head.split("\r\n")[0], text.count(KEY.decode()), "bodies" in text, "transfer-encoding: chunked" in text.lower())
s = connect()
s.sendall(b"PUT / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % len(KEY))
print(s.recv(100).decode().split("\r\n")[0])
s.sendall(KEY)
print(s.recv(100).decode().split("\r\n")[0])
''')
    # The guest sees its placeholder again, but where the value is written with an escape.
    assert out[:4] == ["HTTP/1.1 200 OK 0 True True"] * 3 + ["HTTP/1.1 200 OK 2 False True"]
    assert out[4:6] == ["HTTP/1.1 200 OK 1 False True", "HTTP/1.1 200 OK 2 False True"]
    assert out[6].startswith("HTTP/1.1 403 Forbidden") and out[7:] == ["HTTP/1.1 100 Continue", "HTTP/1.1 200 OK"]
    bodies = [body for _, head, body in servers.seen() if "POST /reflect" in head]
    value = 'in "bodies"&more'
    assert bodies[0] == '{"k":"in \\"bodies\\"&more"}' and bodies[1] == "k=in%20%22bodies%22%26more"
    assert bodies[2].startswith(value.replace('"', '\\"') + "xxx") and bodies[3] == "hello" + 2 * value
    assert bodies[4:] == [value, ""] and servers.seen()[-1][2] == value
    assert not any("accept-encoding" in head.lower() for _, head, _ in servers.seen()[-7:])
    changing.ok("modify", "changing", "--secret-rm", "BODY", "--secret-rm", "HEADERS")


def test_plain_http_only_where_that_is_said(changing, servers):
    changing.ok("secret", "set", "PLAIN", input=b"plain-value")
    changing.ok("secret", "set", "TLSONLY", input=b"not-for-http")
    changing.ok("modify", "changing", "--secret", "TLSONLY@api.example.com")
    run_in = ["exec", "-q", "changing", "--", "bash", "-c"]
    changing.ok(*run_in, 'curl -sS -m 60 -H "X-Api-Key: $TLSONLY" http://api.example.com/untouched')
    assert servers.last()[1]["x-api-key"] == holder(changing, "TLSONLY", "changing")  # it is not intercepted
    changing.ok("modify", "changing", "--secret", "PLAIN@api.example.com,allow-plaintext")
    out = changing.ok(*run_in, """w='%{http_code}\n'
        curl -sS -m 60 -o /dev/null -w "$w" -H "X-Api-Key: $PLAIN" -T - http://api.example.com/plain </etc/passwd
        curl -sS -m 60 -H "X-Api-Key: $TLSONLY" http://api.example.com/
        curl -sS -m 60 -o /dev/null -w "$w" -H "X-Api-Key: $PLAIN" https://api.example.com/tls
        curl -sS -m 60 http://api.example.com/big?3000000 | wc -c""").splitlines()
    assert out[0] == "200" and "TLSONLY may not go over http://" in out[1] and out[2:] == ["200", "3000000"]
    heads = [head for _, head, _ in servers.seen()[-3:]]
    assert [h.split(" ")[1] for h in heads] == ["/plain", "/tls", "/big?3000000"]
    assert all("plain-value" in h for h in heads[:2]) and not any("not-for-http" in h for h in heads)
    changing.ok("modify", "changing", "--secret-rm", "PLAIN", "--secret-rm", "TLSONLY")


def test_aws_requests_are_signed_again(net_msb, servers):
    """Unmodified boto3, with a placeholder key, and a bucket that checks every signature."""
    packages = pathlib.Path("/usr/lib/python3/dist-packages")
    if not (packages / "boto3").exists():
        pytest.skip("python3-boto3 is not installed")
    net_msb.ok("secret", "set", "CLOUD", input=b"AKIDTEST:test/secret+key")
    net_msb.create("aws", "net-guest:1", "-m", "512M", "-v", f"{packages}:/opt/packages:ro", "--secret",
                   "CLOUD@s3.example.com,api.example.com,sign=aws", "--tls-upstream-ca-cert", str(net_msb.net.ca))
    out = net_msb.ok("exec", "-q", "-e", "PYTHONPATH=/opt/packages", "aws", "--", "python3", "-c", """
import os, urllib.request, boto3
from botocore.config import Config
assert os.environ["CLOUD"] == os.environ["AWS_ACCESS_KEY_ID"]
def client(**s3):
    return boto3.client("s3", endpoint_url="https://s3.example.com", region_name="eu-test-1",
                        config=Config(s3={"addressing_style": "path", **s3}, retries={"max_attempts": 1}))
for s3 in (client(payload_signing_enabled=True), client()):
    s3.put_object(Bucket="bucket", Key="a b/c+d", Body=b"x" * 300000, Metadata={"m": "two  words"})
    print(len(s3.get_object(Bucket="bucket", Key="a b/c+d", ResponseContentType="a/b c")["Body"].read()),
          s3.head_object(Bucket="bucket", Key="a b/c+d")["ContentLength"])
q = boto3.client("sts", endpoint_url="https://api.example.com", region_name="eu-test-1",
                 config=Config(retries={"max_attempts": 1}))
try:
    q.get_caller_identity()
except Exception as e:
    print(type(e).__name__)
r = urllib.request.Request("https://s3.example.com/bucket/x", headers={"Authorization": "Bearer " + os.environ["CLOUD"]})
try:
    urllib.request.urlopen(r)
except urllib.error.HTTPError as e:
    print(e.code, "CLOUD may not be in header" in e.read().decode())
""", timeout=120).splitlines()
    assert out[:2] == ["300000 300000"] * 2 and out[3] == "403 True", out
    _, head, body = next(s for s in servers.seen() if "GetCallerIdentity" in s[2])
    assert "Credential=AKIDTEST/" in head and "/eu-test-1/sts/aws4_request" in head and "test/secret" not in head + body


def test_a_change_that_cannot_be_made_changes_nothing(changing, servers):
    changing.ok("secret", "set", "STAYS", input=b"stays")
    changing.ok("modify", "changing", "--secret", "STAYS@api.example.com")
    p = changing("modify", "changing", "--secret", "NOSUCH@api.example.com", "--secret-rm", "STAYS")
    assert p.returncode != 0 and b"there is no secret 'NOSUCH'" in p.stderr
    assert ask(changing, "STAYS") == "200" and servers.last()[1]["x-api-key"] == "stays"
    assert "STAYS@" in changing.ok("inspect", "changing") and "NOSUCH" not in changing.ok("inspect", "changing")


def test_a_command_mints_values(changing, servers, tmp_path):
    def value():
        assert ask(changing, "MINTED") == "200"
        return servers.last()[1]["x-api-key"]

    count = tmp_path / "count"
    command = f"echo x >>{count}; echo $OWN-$(wc -l <{count})"
    changing.env["OWN"] = "minted"
    changing.ok("secret", "set", "MINTED", "--command", command, "--ttl", "1h")
    changing.ok("modify", "changing", "--secret", "MINTED@api.example.com")
    del changing.env["OWN"]
    assert not count.exists()  # it is run when a request needs it
    assert [value(), value()] == ["minted-1"] * 2
    changing.env["OWN"] = "again"
    changing.ok("secret", "set", "MINTED", "--command", command, "--ttl", "1s")
    assert value() == "again-2"
    netkit.wait_for(lambda: value() == "again-3", timeout=30)
    for command, why in (("exit 3", "failed (exit code 3)"), ("yes", "prints too much"), ("true", "a value that is empty"),
                         ("printf 'a\\nb'", "a line break")):
        changing.ok("secret", "set", "MINTED", "--command", command)
        out = changing.ok("exec", "-q", "changing", "--", "bash", "-c", 'curl -sS -H "X-Api-Key: $MINTED" '
                          'https://api.example.com/')
        assert '"error":"secret_unavailable"' in out and why in out, out
    p = changing("exec", "-q", "--secret-env", "MINTED", "changing", "--", "true")
    assert p.returncode != 0 and b"is minted by a command" in p.stderr
    changing.ok("secret", "set", "MINTED", "--command", "echo value-by-$PPID")
    last = value()
    minter = pathlib.Path("/proc") / last.split("-")[-1]
    assert minter.exists() and b"OWN=" not in (minter / "environ").read_bytes()
    assert in_memory(minter.name, b"value-by-$PPID") and not in_memory(minter.name, last.encode())
    changing.ok("modify", "changing", "--secret-rm", "MINTED")
    netkit.wait_for(lambda: not minter.exists(), timeout=30)


def test_bindings_change_with_a_restart(net_msb, servers):
    """Of a sandbox that was started without an interceptor."""
    net_msb.ok("secret", "set", "FIRST", input=b"first-value")
    net_msb.create("plain", "net-guest:1", "--tls-upstream-ca-cert", str(net_msb.net.ca))
    p = net_msb("modify", "plain", "--secret", "FIRST@api.example.com")
    assert p.returncode != 0 and b"--restart" in p.stderr
    net_msb.ok("modify", "plain", "--secret", "FIRST@api.example.com", "--restart")
    net_msb.ok("exec", "-q", "plain", "--", "bash", "-c", 'curl -sS -H "X-Api-Key: $FIRST" https://api.example.com/')
    assert servers.last()[1]["x-api-key"] == "first-value"


def test_one_authority_for_all_sandboxes_and_its_key_is_private(net_msb, box):
    ca = pathlib.Path(net_msb.home) / "ca"
    assert (ca / "ca.key").stat().st_mode & 0o777 == 0o600
    before = (ca / "ca.crt").read_bytes()
    net_msb.ok("run", "-q", "--secret", "KEY@api.example.com", "--", "true")
    assert (ca / "ca.crt").read_bytes() == before
    (ca / "ca.key").chmod(0o644)
    p = net_msb("run", "-q", "--secret", "KEY@api.example.com", "--", "true")
    (ca / "ca.key").chmod(0o600)
    assert p.returncode != 0 and b"can be read by others" in p.stderr


def test_an_authority_that_was_tampered_with_is_not_replaced_behind_the_guest(net_msb, box):
    """The guest boots while the key has not been read yet; its connections are refused, with the reason."""
    key = pathlib.Path(net_msb.home) / "ca" / "ca.key"
    good = key.read_bytes()
    key.write_bytes(b"no key")
    try:
        net_msb.create("tampered", "net-guest:1", "--secret", "KEY@api.example.com", "--tls-upstream-ca-cert",
                       str(net_msb.net.ca))
        p = net_msb("exec", "-q", "tampered", "--", "curl", "-sS", "https://api.example.com/")
        assert p.returncode == 35, p.stderr  # the handshake ends
        assert "is not the one that guests were given" in net_msb.ok("net", "log", "tampered")
        assert key.read_bytes() == b"no key"
    finally:
        key.write_bytes(good)
    net_msb.ok("rm", "-q", "-f", "tampered")


# --- an authority of the user's own ---


def make_ca(d, name, *options, kind="ec", extensions=("basicConstraints=critical,CA:TRUE",)):
    """(certificate, key): files."""
    kinds = {"ec": ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"), "ed25519": ("-newkey", "ed25519")}
    config = d / "openssl.cnf"  # what the host's own would add is left out
    config.write_text("[req]\ndistinguished_name=dn\n[dn]\n")
    extensions = (w for x in extensions for w in ("-addext", x))
    key, cert = d / f"{name}.key", d / f"{name}.crt"
    run("openssl", "req", "-x509", "-config", config, *kinds[kind], "-subj", f"/CN=authority {name}",
        "-keyout", key, "-out", cert, *(options or ("-nodes",)), *extensions)
    key.chmod(0o600)
    return cert, key


def own_options(cert, key):
    return "--tls-intercept-ca-cert", str(cert), "--tls-intercept-ca-key", str(key)


@pytest.fixture(scope="module")
def own(net_msb, servers, tmp_path_factory):
    """A sandbox that trusts an authority of the user's own, and has no secret. Its key is in both files."""
    d = tmp_path_factory.mktemp("own")
    cert, key = make_ca(d, "own", "-nodes", extensions=("basicConstraints=critical,CA:TRUE,pathlen:1",
                                                        "keyUsage=keyCertSign", "subjectKeyIdentifier=hash"))
    net_msb.own_cert, net_msb.own_key = cert.read_text(), key.read_text()
    cert.write_text(net_msb.own_key + net_msb.own_cert)
    before = set(processes.named("msb-intercept"))
    net_msb.create("own", "net-guest:1", *own_options(cert, key), "--no-block-quic", "--tls-intercept", "expired.example.com",
                   "--tls-intercept", "wrong.example.com", "--tls-no-verify-upstream-for", "expired.example.com")
    net_msb.own_interceptor, = set(processes.named("msb-intercept")) - before
    return net_msb


def test_the_guest_trusts_the_authority_that_was_given(own, servers):
    out = own.ok("exec", "-q", "own", "--", "bash", "-c", """
        curl -sS -o /dev/null -w '%{http_code}\\n' https://expired.example.com/unverified
        curl -sS https://wrong.example.com/
        echo | openssl s_client -connect expired.example.com:443 -servername expired.example.com 2>/dev/null |
            grep -o 'i:.*' | tail -1
        cat /etc/ssl/certs/ca-certificates.crt""", timeout=120)
    status, wrong, issuer, bundle = out.split("\n", 3)
    assert status == "200" and servers.last()[0] == "/unverified" and servers.last()[2] == EXPIRED
    assert "the certificate of wrong.example.com is not trusted" in wrong
    assert "authority own" in issuer
    assert own.own_cert.strip() in bundle and "PRIVATE KEY" not in bundle
    ours = pathlib.Path(own.home) / "ca" / "ca.crt"
    assert not ours.exists() or ours.read_text().strip() not in bundle


def test_its_key_is_nowhere_else(own):
    lines = own.own_key.splitlines()[1:-1]
    der = base64.b64decode("".join(lines))
    number = der[der.index(b"\x04\x20") + 2:][:32]
    home = pathlib.Path(own.home)
    ours = processes.tree(processes.lock_holder(home / "sandboxes" / "own" / "lock"))
    assert len(ours) > 2
    for data in (lines[0].encode(), number):
        assert not [pid for pid in {*ours, own.own_interceptor} if in_memory(pid, data)]
        assert not [f for d in home.iterdir() if d.name != "cache" for f in d.rglob("*") if f.is_file() and in_file(f, data)]
    assert lines[0] not in own.ok("inspect", "own", "--format", "json") + own.ok("audit", "--since", "1h")


def test_quic_where_it_is_allowed(own):
    out = own.python("own", """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((socket.gethostbyname("expired.example.com"), 443))
s.settimeout(60)
s.send(b"QUIC")
print(s.recv(10).decode())
""")
    assert out == ["QUIC"]
    tls = json.loads(own.ok("inspect", "own", "--format", "json"))["config"]["network"]["tls"]
    assert tls["block_quic_on_intercept"] is False and tls["intercept_ca"]["key_path"].endswith("own.key")
    assert tls["scoped_verify_upstream"] == [{"pattern": "expired.example.com", "verify": False}]


def test_no_secret_is_bound_to_what_is_not_protected(own):
    own.ok("secret", "set", "KEY", input=VALUE.encode())
    for host, sentence in (("expired.example.com", b"an impostor of that host"),
                           ("api.example.com", b"QUIC to it cannot be intercepted")):
        for how in ((), ("--restart",), ("--next-start",)):
            p = own("modify", "own", "--secret", f"KEY@{host}", *how)
            assert p.returncode != 0 and sentence in p.stderr, p.stderr


def test_an_authority_that_cannot_be_one(net_msb, box, tmp_path):
    good, key = make_ca(tmp_path, "good")
    other = make_ca(tmp_path, "other")[1]
    leaf = make_ca(tmp_path, "leaf", extensions=("basicConstraints=CA:FALSE",))
    silent = make_ca(tmp_path, "silent", extensions=("basicConstraints=critical,CA:TRUE", "keyUsage=digitalSignature"))
    short = make_ca(tmp_path, "short", extensions=("basicConstraints=critical,CA:TRUE,pathlen:0",))
    locked = make_ca(tmp_path, "locked", "-passout", "pass:secret")
    run("openssl", "x509", "-in", good, "-signkey", key, "-days", -1, "-out", tmp_path / "old.crt")
    shown = tmp_path / "shown.key"
    shown.write_bytes(key.read_bytes())
    shown.chmod(0o640)
    for cert, secret, sentence in (
        (good, other, "is not that of the certificate"), (*leaf, "is not that of an authority"),
        (*silent, "is not that of an authority"), (*short, "pathlen:0"), (tmp_path / "old.crt", key, "has expired"),
        (good, shown, "is not yours alone"), (*locked, "no unencrypted private key"),
        (good, tmp_path / "none", "cannot find"), (key, key, "no certificate found in"), (tmp_path, key, "cannot read")):
        p = net_msb("create", "-n", "refused", "--secret", "KEY@api.example.com", *own_options(cert, secret))
        first = p.stderr.decode().splitlines()[0]
        assert p.returncode != 0 and first.startswith("error:") and sentence in first, (sentence, first)
    assert "refused" not in net_msb.ok("ls", "-a", "-q").split()


def test_a_secret_with_an_authority_that_says_little(net_msb, box, servers, tmp_path):
    """One with a key of another kind, and without an identifier; and a change, for which it issues again."""
    pair = make_ca(tmp_path, "ed", kind="ed25519")
    net_msb.create("ed", "net-guest:1", "--secret", "KEY@git.example.com", *own_options(*pair),
                   "--tls-upstream-ca-cert", str(net_msb.net.ca))
    net_msb.ok("modify", "ed", "--secret", "KEY@api.example.com")
    net_msb.ok("exec", "-q", "ed", "--", "bash", "-c", 'curl -sSf -H "X-Api-Key: $KEY" https://api.example.com/ed')
    assert servers.last()[0] == "/ed" and servers.last()[1]["x-api-key"] == VALUE


def test_a_host_that_refuses_the_interceptor_its_namespaces(tmp_path, shared_cache):
    """A network namespace, which the monitor does not ask for."""
    if os.environ.get("MSB_JAIL") or subprocess.run(["unshare", "-Ur", "true"], capture_output=True).returncode != 0:
        pytest.skip("the jail is given, or this user may not make namespaces at all")
    m = Msb(make_home(tmp_path, shared_cache), {"KEY": VALUE})
    limit = "echo 0 >/proc/sys/user/max_net_namespaces && exec \"$@\""
    m.command = lambda args: ["unshare", "-Ur", "sh", "-c", limit, "sh", m.exe, *map(str, args)]
    run_it = ("run", "--secret", "KEY@api.example.com", "--", "sh", "-c", "echo $KEY")
    for made in (False, True):  # without an authority, and with one
        assert (m.home / "ca" / "ca.crt").exists() == made
        p = m("run", "--jail", "full", *run_it[1:])
        assert p.returncode == 1 and b"refuses namespaces to the process" in p.stderr, p.stderr
        p = m(*run_it)
        assert p.returncode == 0 and p.stdout.startswith(b"msb_") and b"runs in a reduced jail" in p.stderr, p.stderr
    assert m.ok("ls", "-a", "-q") == ""
