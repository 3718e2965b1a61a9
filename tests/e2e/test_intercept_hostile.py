"""Bound secrets, and the attempts of hostile guests and servers to see a value or to have it sent elsewhere."""
import gzip
import pathlib
import re

import pytest

from interceptkit import ELSEWHERE, RAW, curl, denials, holder, make_box, sh
from netkit import WEB


@pytest.fixture(scope="module")
def box(net_msb, servers):
    return make_box(net_msb)


def test_a_placeholder_elsewhere_is_not_sent(box, servers):
    before = len(servers.seen())
    out = box.python("box", RAW + r"""
for field in (b"User-Agent: %s", b"Referer: https://%s/", b"Cookie: a=%s", b"Origin: https://%s", b"%s: x",
              b"Sec-WebSocket-Protocol: %s", b"Idempotency-Key: %s", b"Access-Control-Request-Headers: %s",
              b"X-Other: %s"):
    text = ask(b"OPTIONS /trace HTTP/1.1\r\n" + HOST + field % KEY + b"\r\n\r\n")
    print(text.split("\r\n")[0], "KEY may not be in" in text, '"error":"secret_blocked"' in text)
text = ask(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1000\r\n\r\n" + b"a" * 500 + KEY + b"b" * 500)
print(text.split("\r\n")[0], "KEY may not be in the body" in text)
half = KEY[:20] + b"\r\n%x\r\n" % (len(KEY) - 20) + KEY[20:]
text = ask(b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n14\r\n" + half + b"\r\n0\r\n\r\n")
print(text.split("\r\n")[0], "KEY may not be in the body" in text)
text = ask(b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-Api-Key: " + KEY + b"\r\n\r\n")
print(text.split("\r\n")[0], "KEY may not be in trailers" in text)
""")
    assert out == ["HTTP/1.1 403 Forbidden True True"] * 9 + ["HTTP/1.1 403 Forbidden True"] * 3
    assert len(servers.seen()) == before


def test_a_placeholder_in_a_path_or_to_another_host_is_not_sent(box, servers):
    before = len(servers.seen())
    key = holder(box)
    assert curl(box, f"https://api.example.com/{key}")[0] == 403
    assert curl(box, f"https://api.example.com/?other={key}")[0] == 403
    status, body = curl(box, "-H", f"Authorization: Bearer {key}", "https://elsewhere.example.com/")
    assert status == 403 and "KEY is not bound to elsewhere.example.com" in body
    assert curl(box, "-u", f"a:{key}", "https://elsewhere.example.com/")[0] == 403
    assert len(servers.seen()) == before
    # A redirect takes the header along: it is the client's request, and stopped like any other.
    status, body = curl(box, "-L", "--location-trusted", "-H", f"X-Api-Key: {key}", "https://api.example.com/redirect")
    assert status == 403 and "elsewhere" in body
    said = [r["why"] for r in denials(box)]
    assert any("KEY is not bound to elsewhere.example.com" in w for w in said)
    assert any("KEY may not be in the path" in w for w in said)
    assert "is not bound to elsewhere" in box.ok("audit")


def test_ambiguous_requests_are_refused(box, servers):
    before = len(servers.seen())
    out = box.python("box", RAW + r'''
AUTH = b"X-Api-Key: " + KEY + b"\r\n"
for data in [
    b"GET / HTTP/1.1\r\nHost: elsewhere.example.com\r\n" + AUTH + b"\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + HOST + AUTH + b"\r\n",
    b"GET / HTTP/1.1\r\n" + AUTH + b"\r\n",
    b"GET https://elsewhere.example.com/ HTTP/1.1\r\n" + HOST + AUTH + b"\r\n",
    b"CONNECT elsewhere.example.com:443 HTTP/1.1\r\n" + HOST + AUTH + b"\r\n",
    b"POST / HTTP/1.1\r\n" + HOST + AUTH + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\na",
    b"POST / HTTP/1.1\r\n" + HOST + AUTH + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\n" + HOST + AUTH + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\n" + HOST + AUTH + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + b"X: a\r\n folded\r\n" + AUTH + b"\r\n",
    b"GET / HTTP/1.1\n" + HOST + AUTH + b"\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + b"X: a\rb\r\n" + AUTH + b"\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 70000 + b"\r\n" + AUTH + b"\r\n",
    b"GET / HTTP/2.0\r\n" + HOST + AUTH + b"\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]:
    print(ask(data).split("\r\n")[0])
''')
    assert all(re.match(r"HTTP/1.1 4(00|21) ", line) for line in out) and len(out) == 15, out
    assert len(servers.seen()) == before


def test_chunks_that_make_no_sense_end_the_connection(box):
    out = box.python("box", RAW + r'''
HEAD = b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
for body in [b"5;x=y\r\nhello\r\n0\r\n\r\n", b"5\r\nhelloXX0\r\n\r\n", b"-1\r\n", b"fffffffffffffffff\r\n", b"\r\n",
             b"5\nhello\r\n0\r\n\r\n", b"0\r\nX : y\r\n\r\n"]:
    print(ask(HEAD + body).split("\r\n")[0])
''')
    assert out == ["HTTP/1.1 400 Bad Request"] * 7


def test_responses_that_make_no_sense_do_not_reach_the_guest(box):
    out = box.python("box", RAW + r"""
for path in (b"two-lengths", b"both", b"folded", b"bare-lf", b"upgrade", b"noise"):
    text = ask(b"GET /evil/" + path + b" HTTP/1.1\r\n" + HOST + b"\r\n")
    print(text.split("\r\n")[0], '"error":"bad_response"' in text)
# An answer that nobody has asked for must not become that of the next request.
text = ask(b"GET /evil/two-answers HTTP/1.1\r\n" + HOST + b"\r\n")
print("ok" in text, "poison" in text)
""")
    assert out[:6] == ["HTTP/1.1 502 Bad Gateway True"] * 6 and out[6] == "True False", out


def test_an_upgrade_that_the_server_does_not_make_is_no_tunnel(box, servers):
    """What follows the request is the next one, held to the same rules; and what is compressed is not looked into."""
    before = len(servers.seen())
    out = box.python("box", RAW + r"""
import gzip
UPGRADE = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: abc\r\nSec-WebSocket-Version: 13\r\n"
text = ask(b"GET /none HTTP/1.1\r\n" + HOST + UPGRADE + b"\r\n" +
           b"GET /tunnel HTTP/1.1\r\n" + HOST + b"User-Agent: " + KEY + b"\r\n\r\n")
print(text.split("\r\n")[0], " 101 " in text)
body = gzip.compress(KEY)
text = ask(b"POST /gzip HTTP/1.1\r\n" + HOST + b"Content-Encoding: gzip\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" %
           len(body) + body)
print(text.split("\r\n")[0])
""")
    assert out == ["HTTP/1.1 200 OK False", "HTTP/1.1 200 OK"], out
    assert [head.split(" ")[1] for _, head, _ in servers.seen()[before:]] == ["/none", "/gzip"]
    assert gzip.decompress(servers.seen()[-1][2].encode("latin-1")).decode() == holder(box)


def test_servers_that_are_not_who_they_should_be(box, servers):
    before = len(servers.seen())
    for host, why in (("expired", "expired"), ("wrong", "mismatch")):
        status, body = curl(box, "-H", f"X-Api-Key: {holder(box)}", f"https://{host}.example.com/")
        assert status == 502 and "is not trusted" in body and why in body
    assert len(servers.seen()) == before


def test_names_and_addresses_have_to_agree(box, servers):
    before = len(servers.seen())
    out = box.python("box", RAW + f'''
def fails(f):
    try:
        f()
        return False
    except OSError:
        return True
print(fails(lambda: connect("{ELSEWHERE}", "api.example.com")))  # not an address of that name
print(fails(lambda: connect("{WEB}", "api.example.com")))
print(fails(lambda: connect("rebound.example.com")))  # a private address
text = ask(b"GET / HTTP/1.1\\r\\nHost: elsewhere.example.com\\r\\n\\r\\n")
print(text.split("\\r\\n")[0])
context = ssl.create_default_context()
s = context.wrap_socket(socket.create_connection(("api.example.com", 443)), server_hostname="api.example.com")
s.sendall(b"GET / HTTP/1.1\\r\\n" + HOST + b"\\r\\n")
s.recv(1)
again = context.wrap_socket(socket.create_connection(("api.example.com", 443)), server_hostname="api.example.com",
                            session=s.session)
print(again.session_reused)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((socket.gethostbyname("api.example.com"), 443))
s.settimeout(20)
try:
    s.send(b"QUIC")
    s.recv(10)
except OSError as e:
    print(type(e).__name__)
''')
    assert out[:5] == ["True", "True", "True", "HTTP/1.1 421 Misdirected Request", "False"], out
    assert out[5:] and "Timeout" not in out[5]  # an ICMP error, at once
    assert len(servers.seen()) == before + 1


def test_tls_that_is_too_old_hidden_or_begun_again(box, servers):
    before = len(servers.seen())
    out = sh(box, """
        to="-connect api.example.com:443 -servername api.example.com"
        for v in -tls1 -tls1_1; do
            echo | openssl s_client $to $v -cipher ALL:@SECLEVEL=0 2>&1 | grep -c 'alert number 70' || true  # its version
        done
        (echo R; cat) </dev/null | openssl s_client $to -tls1_2 2>&1 | grep -c 'no renegotiation' || true
        curl -sS -H "X-Api-Key: $KEY" https://old.example.com/
    """).splitlines()
    assert out[:3] == ["1", "1", "1"] and "TLS with old.example.com failed" in out[3], out
    out = box.python("box", RAW + r"""
def hello(version):
    context = ssl.create_default_context()
    context.maximum_version = version
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(into, out, server_hostname="api.example.com").do_handshake()
    except ssl.SSLWantReadError:
        return bytearray(out.read())
def put(data, at, n, more):
    data[at:at + n] = (int.from_bytes(data[at:at + n], "big") + more).to_bytes(n, "big")
# With an encrypted ClientHello in it, whose name nobody sees: that in the open counts, and is looked into.
data = hello(ssl.TLSVersion.TLSv1_2)
ech = b"\xfe\x0d\x00\x20" + b"\x00" * 32
at = 43 + 1 + data[43]  # after the session's number: ciphers, compression, then extensions
at += 2 + int.from_bytes(data[at:at + 2], "big")
at += 1 + data[at]
for where, n in ((3, 2), (6, 3), (at, 2)):
    put(data, where, n, len(ech))
s = socket.create_connection(("api.example.com", 443), timeout=60)
s.sendall(data + ech)
got = b""
while b"msb sandbox" not in got:  # our certificate, which TLS 1.2 shows to everybody
    piece = s.recv(65536)
    assert piece, got
    got += piece
print("looked into")
for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
    s = connect(maximum_version=version)
    s.sendall(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
    s.recv(1)
    print(s.version(), s.session.has_ticket if s.session else False)
""")
    assert out == ["looked into", "TLSv1.2 False", "TLSv1.3 False"], out
    assert len(servers.seen()) == before + 2


def test_floods_of_http2_end_their_connection_only(box, servers):
    out = box.python("box", RAW + r"""
import struct
context = ssl.create_default_context()
context.set_alpn_protocols(["h2"])
def frame(kind, flags, stream, data=b""):
    return struct.pack(">I", len(data))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + data
def flood(make, last=b""):
    # Whether the connection ends, rather than that a ping at the end is answered.
    s = context.wrap_socket(socket.create_connection(("h2.example.com", 443), timeout=60), server_hostname="h2.example.com")
    s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
    try:
        for i in range(1000):
            s.sendall(b"".join(make(k) for k in range(i * 100, i * 100 + 100)))
        s.sendall(last + frame(6, 0, 0, b"alive???"))
        got = b""
        while b"alive???" not in got:
            piece = s.recv(65536)
            if not piece:
                return True
            got = got[-8:] + piece
    except TimeoutError:
        raise
    except OSError:
        return True
    return False
GET = b"\x82\x87\x84\x41\x0eh2.example.com"  # GET https /, authority
print(flood(lambda i: frame(1, 1, 1, GET) if i == 0 else frame(9, 0, 1), frame(9, 4, 1)))  # CONTINUATION
print(flood(lambda i: frame(1, 5, 2 * i + 1, GET) + frame(3, 0, 2 * i + 1, struct.pack(">I", 8))))  # resets
print(flood(lambda i: frame(4, 0, 0)))  # settings
def patient(data, n):
    # The same of one that reads the answers, so that they do not pile up.
    s = context.wrap_socket(socket.create_connection(("h2.example.com", 443), timeout=60), server_hostname="h2.example.com")
    s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
    try:
        for i in range(300):
            s.sendall(data * n + frame(6, 0, 0, b"alive%03d" % i))
            got = b""
            while b"alive%03d" % i not in got:
                piece = s.recv(65536)
                if not piece:
                    return True
                got += piece
    except TimeoutError:
        raise
    except OSError:
        return True
    return False
print(patient(frame(6, 0, 0, b"flooding"), 900))
print(patient(frame(4, 0, 0), 900))
""")
    assert out == ["True"] * 5, out
    assert curl(box, "-H", f"X-Api-Key: {holder(box)}", "https://h2.example.com/after")[0] == 200
    peak = int(re.search(r"^VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{box.interceptor}/status").read_text(), re.M)[1])
    assert peak < 32 * 1024


def test_a_client_that_trusts_somebody_else_is_in_the_log(box):
    p = box("exec", "-q", "box", "--", "curl", "-sS", "--cacert", "/etc/ssl/certs/ISRG_Root_X1.pem",
            "https://api.example.com/")
    assert p.returncode == 60
    assert any("does not accept msb's certificate" in r["why"] for r in denials(box))
