"""The policy with real programs on both sides: what a guest tries, and what leaves the sandbox."""
import json
import os
import pathlib
import subprocess

import pytest

from test_stack import can_run

HERE = pathlib.Path(__file__).parent
STACK = os.environ.get("TAP_STACK", "build/tests/net/tap_stack")

pytestmark = pytest.mark.skipif(not can_run(), reason="needs root and /dev/net/tun")

GUEST = (HERE / "probes.py").read_text()


def run(rules, script, *options):
    """Runs a script in the guest; the lines it printed, and what the world outside has seen."""
    p = subprocess.run(["/usr/bin/python3", str(HERE / "world.py"), os.path.abspath(STACK), "--rules",
                        rules, "--resolver", "93.184.216.53:53", *options, "--", "/usr/bin/python3",
                        "-c", GUEST + script], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       text=True, timeout=90)
    assert p.returncode == 0, p.stderr
    world = json.loads(p.stdout.splitlines()[-1])
    assert world["code"] == 0, (p.stderr, world)
    return world["out"], world


def test_a_listed_name_and_nothing_else():
    out, world = run("allow@example.com", """
show(get("93.184.216.34", "example.com"))   # before it was resolved here
show(resolve("example.com"))
show(get("93.184.216.34", "example.com"))
show(get("93.184.216.34", "other.org"))     # another name at the same address
show(get("93.184.216.35", "example.com"))   # another address
show(resolve("other.org"), resolve("secret.tunnel.example.net"))
show(get("10.9.9.9", "example.com"), get("10.0.2.2", "example.com"))
""")
    assert out == ["ECONNREFUSED", "[0, '93.184.216.34']", "example.com", "ECONNRESET",
                   "ECONNREFUSED", "[3] [3]", "ECONNREFUSED ECONNREFUSED"]
    assert world["asked"] == ["example.com"]  # no packet for a name that is not listed
    assert world["connections"] == ["93.184.216.34"]  # and no request that was denied


def test_rebinding():
    out, world = run("allow@*.example.com", """
show(resolve("rebind.example.com"))
show(get("127.0.0.1", "x", 81))  # the guest's own loopback
show(resolve_tcp("big.example.com"))
show(get("93.184.216.34", "big.example.com"))
""")
    assert out == ["[3]", "ECONNREFUSED", "[0, '93.184.216.34']", "big.example.com"]
    assert world["asked"] == ["rebind.example.com", "big.example.com"]


def test_public_by_default_is_public():
    out, _ = run("allow@public", """
show(get("93.184.216.34", "anything.at.all"), get("93.184.216.35", "x"))
show(get("10.9.9.9", "x"), get("10.0.2.2", "x"), get("169.254.169.254", "x"))
show(resolve("other.org"))
show(get("93.184.216.2", "x"))              # public, but the host's own
""")
    assert out == ["anything.at.all x", "ECONNREFUSED ECONNREFUSED ECONNREFUSED",
                   "[0, '93.184.216.35']", "ECONNREFUSED"]


def test_the_host_only_if_a_rule_says_so():
    out, _ = run("allow@host:tcp:80", """
show(resolve("host.microsandbox.internal"))
show(get("10.0.2.2", "the-host"), get("93.184.216.34", "x"), get("93.184.216.2", "own"))
""")
    assert out == ["[0, '10.0.2.2']", "the-host ECONNREFUSED own"]


@pytest.mark.parametrize("strict", [False, True])
def test_flows_that_show_no_name(strict):
    out, _ = run("allow@example.com", """
show(resolve("example.com"))
show(talk("93.184.216.34", b"GET / HTTP/1.0\\r\\n\\r\\n"))
""", *(["--strict"] if strict else []))
    assert out[1] == ("ECONNRESET" if strict else "HTTP/1.0 200")


def test_a_name_split_over_segments():
    out, world = run("allow@example.com", """
show(resolve("example.com"))
for host in ("example.com", "other.org"):
    request = f"GET / HTTP/1.0\\r\\nHost: {host}\\r\\n\\r\\n"
    show(talk("93.184.216.34", *(c.encode() for c in request)))
""")
    assert out[1:] == ["HTTP/1.0 200", "ECONNRESET"]
    assert world["connections"] == ["93.184.216.34"]


@pytest.mark.parametrize("strict", [False, True])
def test_a_hello_that_hides_its_name(strict):
    """An encrypted ClientHello: the name it shows counts, and is not enough where names must be seen."""
    out, _ = run("allow@example.com", """
import ssl, struct
def hello(name, encrypted):
    into, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        ssl.create_default_context().wrap_bio(into, sent, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        pass
    m = sent.read()[9:]  # behind the headers of record and handshake
    at = 35 + m[34]
    at += 2 + struct.unpack_from("!H", m, at)[0]
    at += 1 + m[at]
    more = bytes.fromhex("fe0d0008") + bytes(8) if encrypted else b""
    ext = m[at + 2:] + more
    m = m[:at] + struct.pack("!H", len(ext)) + ext
    return b"\\x16\\3\\1" + struct.pack("!H", len(m) + 4) + b"\\1" + struct.pack("!I", len(m))[1:] + m
show(resolve("example.com"))
for name in ("example.com", "other.org"):
    for encrypted in (False, True):
        show(talk("93.184.216.34", hello(name, encrypted) + b"\\r\\n\\r\\n"))
show(talk("93.184.216.34", bytes.fromhex("1503010002015a") + hello("other.org", False)))  # behind an alert
show(talk("93.184.216.34", b"\\x16\\0" + hello("other.org", False)[2:]))  # in a record of another version
""", *(["--strict"] if strict else []))
    assert [x == "ECONNRESET" for x in out[1:]] == [False, strict, True, True, True, True], out
