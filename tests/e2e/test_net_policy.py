"""The policy of a sandbox's network: what may leave it, and a capture of what did."""
import pytest

import netkit
from netkit import COMMANDS, DNS, ECHO, HOST, METADATA, MIRROR, OTHER, OTHER6, PRIVATE, PRIVATE6, WEB, WEB6

INSIDE = [*PRIVATE, METADATA, "169.254.7.7", "0.0.0.0", HOST, "240.0.0.1", "198.18.0.1"]
INSIDE6 = [PRIVATE6, "fe80::1%eth0", "::ffff:10.9.9.9", "64:ff9b::a09:909", "2002:a09:909::1", netkit.HOST6]

HELLO = """
def hello(name, *alpn):
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(into, out, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        return out.read()
"""


@pytest.fixture(scope="module")
def boxes(net_msb):
    """Creates sandboxes by name on demand; those of a module are kept until its end."""
    made = {}

    def make(name, *options):
        if name not in made:
            net_msb.create(name, "net-guest:1", *options)
            made[name] = options
        assert made[name] == options
        return name

    return make


@pytest.fixture
def probe(net_msb, boxes, internet):
    """Runs probes in a sandbox with these options: (lines, the packets that left the host)."""
    def run(script, *options, box=None):
        fresh = box is None
        name = "fresh" if fresh else boxes(box, *options)
        if fresh:
            net_msb.create(name, "net-guest:1", *options)
        try:
            with internet.capture() as seen:
                out = net_msb.probe(name, HELLO + script)
        finally:
            if fresh:
                net_msb.ok("rm", "-f", "-q", name)
        return out, seen
    return run


EXAMPLE = ("example", "--net-rule", "allow@example.com")


def default(probe, script):
    return probe(script, box="default")


# --- addresses ---


def test_public_is_open_and_nothing_else(probe, internet):
    out, seen = default(probe, f"""
show(get("{WEB}", "a"), get("{WEB6}", "b"), udp("{OTHER}", {ECHO}))
for a in {INSIDE + INSIDE6}:
    show(connect(a))
show(connect(GATEWAY), connect(GATEWAY, 22), connect(GATEWAY, 853), connect("127.0.0.1"))
""")
    assert out[0] == f"world {WEB} a world {WEB6} b ping"
    inside = dict(zip(INSIDE + INSIDE6, out[1:]))
    # 0.0.0.0 and the mapped form are the guest's own, which refuses as well
    assert set(inside.values()) <= {"ECONNREFUSED", "ENETUNREACH"}, inside
    assert all(v == "ECONNREFUSED" for a, v in inside.items() if "." in a), inside
    assert out[-1] == "ECONNREFUSED ECONNREFUSED ECONNREFUSED ECONNREFUSED"
    assert {p.dst for p in seen.packets if p.src in (HOST, netkit.HOST6)} <= {WEB, WEB6, OTHER}
    assert [p for p in seen.packets if p.device == "lo"] == []


def test_denied_datagrams_and_pings_are_refused_at_once(probe):
    out, seen = default(probe, f"""
for a in {[*PRIVATE, METADATA, HOST, PRIVATE6]}:
    show(udp(a, {ECHO}), ping(a))
show(udp(GATEWAY, {ECHO}))
""")
    assert len(out) == len(PRIVATE) + 4
    for line in out[:-1]:
        error, pinged = line.split(" ", 1)
        assert error in ("EHOSTUNREACH", "EACCES", "ECONNREFUSED") and pinged.startswith("unreachable")
    assert out[-1] in ("EHOSTUNREACH", "EACCES", "ECONNREFUSED")
    assert seen.strays() == []


def test_the_first_match_wins(probe):
    out, seen = probe(f"""
show(get("{WEB}", "x"), get("{WEB}", "x", 8080), get("{OTHER}", "x"), get("{MIRROR}", "x"))
show(get("10.9.9.9", "x"), get("192.168.7.7", "x"), get("{WEB6}", "x"), get("{OTHER6}", "x"))
show(udp("{WEB}", {ECHO}), udp("{WEB}", 53), ping("{WEB}"))
""", "--net-rule", f"deny@{WEB}:tcp:8080,allow@93.184.216.0/26:tcp,allow@10.9.9.0/24:tcp:80-90",
        "--net-rule", f"deny@[{OTHER6}],allow@[2606:2800:220:1::/64]:any,allow@{WEB}:udp:{ECHO}")
    assert out[0] == f"world {WEB} x ECONNREFUSED world {OTHER} x ECONNREFUSED"
    assert out[1] == f"world 10.9.9.9 x ECONNREFUSED world {WEB6} x ECONNREFUSED"
    assert out[2].startswith("ping E") and "unreachable" in out[2]
    assert seen.to(MIRROR) == [] and seen.to("192.168.7.7") == [] and seen.to(OTHER6) == []
    assert seen.to(WEB, port=8080) == [] and seen.to(WEB, port=53) == []


def test_rules_alone_are_an_allowlist_and_a_profile_opens_more(probe, net_msb):
    rule = ("--net-rule", "allow@10.9.9.9")
    lines = f'show(get("10.9.9.9", "x"), get("{WEB}", "x"), get("172.16.5.5", "x"))'
    assert probe(lines, *rule)[0] == ["world 10.9.9.9 x ECONNREFUSED ECONNREFUSED"]
    assert probe(lines, *rule, "--net", "public")[0] == [f"world 10.9.9.9 x world {WEB} x ECONNREFUSED"]
    assert probe(lines, "--net-rule", f"deny@{WEB}", "--net", "all")[0] == \
        ["world 10.9.9.9 x ECONNREFUSED world 172.16.5.5 x"]
    p = net_msb("create", "-n", "said", *rule, check=0)
    assert b"nothing else" in p.stderr, "create must say that rules alone close the rest"
    net_msb.ok("rm", "-f", "-q", "said")


@pytest.mark.parametrize("group,address", [("private", "10.9.9.9"), ("private", f"{PRIVATE6}"),
                                           ("meta", METADATA)])
def test_groups_open_what_they_name(probe, group, address):
    out, _ = probe(f"""
show(get("{address}", "x"), get("{WEB}", "x"), connect("{HOST}"), connect(GATEWAY))
""", "--net", group)
    assert out == [f"world {address} x ECONNREFUSED ECONNREFUSED ECONNREFUSED"]


def test_ingress_rules(net_msb, internet):
    """They match the peer and the guest's port; the outside sees a connection that ends."""
    net_msb.create("picky", "net-guest:1", "-p", f"{HOST}:18200:8080", "-p", f"{HOST}:18201:8081",
                   "--net", "public", "--net-rule", "deny:ingress@any:tcp:8081")
    p = net_msb.start_guest("picky", "serve", 8080)
    assert p.stdout.readline() == b"ready\n"
    with internet.connect(HOST, 18200, internet.world_pid) as s:
        s.sendall(b"x")
        assert s.recv(1) == b"x"
    assert p.wait(20) == 0
    p = net_msb.start_guest("picky", "serve", 8081)
    assert p.stdout.readline() == b"ready\n"
    s = internet.connect(HOST, 18201, internet.world_pid)
    try:
        assert s.recv(1) == b""
    except ConnectionResetError:
        pass
    s.close()
    p.kill()
    p.wait()
    net_msb.ok("rm", "-f", "-q", "picky")


# --- names ---


def test_unlisted_names_do_not_exist_and_cause_no_question(probe, internet):
    out, seen = probe("""
show(resolve("other.org"), resolve("data.tunnel.evil.net"), resolve("sub.example.com"))
show(resolve_tcp("other.org"), resolve("example.com.evil.net"), resolve("xexample.com"))
show(resolve("com"), resolve(""), resolve("10.in-addr.arpa", 12))
show(connect("other.org"))
""", *EXAMPLE[1:], box=EXAMPLE[0])
    assert out[:3] == ["[3] [3] [3]"] * 3
    assert "Name or service" in out[3] or "gaierror" in out[3]
    assert seen.strays() == []
    assert internet.asked("sub.example.com") == []


def test_an_allowed_name_only_where_it_was_resolved(probe, internet):
    before = len(internet.requests())
    out, seen = probe(f"""
show(get("{WEB}", "example.com"), get("{WEB6}", "example.com"))   # known by heart
show(resolve("example.com"), resolve("EXAMPLE.com", AAAA))
show(get("{WEB}", "example.com"), get("{WEB6}", "Example.COM:80"))
show(get("{WEB}", "other.org"), get("{WEB}", "www.example.com"), get("{OTHER}", "example.com"))
show(tls("{WEB}", "example.com"), tls("{WEB}", "other.org"), tls("{WEB6}", "www.example.com"))
show(udp("{WEB}", 443), udp("{WEB}", 53), connect("{DNS}", 853), connect("{DNS}", 443))
show(resolve("other.org", server="{DNS}"), resolve_tcp("other.org", server="{DNS}"))
""", "--net-rule", "allow@example.com")
    assert out[0] == "ECONNREFUSED ECONNREFUSED"
    assert out[1] == f"[0, '{WEB}'] [0, '{WEB6}']"
    assert out[2] == f"world {WEB} example.com world {WEB6} Example.COM:80"
    assert out[3] == "ECONNRESET ECONNRESET ECONNREFUSED"
    assert out[4] == "HTTP/1.1 200 ECONNRESET ECONNRESET"
    assert "ping" not in out[5] and "ok" not in out[5]
    assert "[0" not in out[6]
    assert seen.to(OTHER, OTHER6) == []
    assert {p.dport for p in seen.to(DNS)} == {53}  # our own questions
    assert seen.to(DNS, port=53) and not seen.with_bytes(b"\x05other\x03org")
    assert not seen.with_bytes(b"other.org") and not seen.with_bytes(b"www.example.com")
    assert {r[1].lower() for r in internet.requests()[before:]} == {"example.com", "example.com:80"}


def test_an_address_known_by_heart_sends_nothing(probe, internet):
    """Resolved in another sandbox, on the host, and in no other way here."""
    probe('show(resolve("example.com"))', *EXAMPLE[1:], box=EXAMPLE[0])
    internet.in_host("getent", "hosts", "example.com")
    out, seen = probe(f"""
show(connect("{WEB}", 443), connect("{WEB}"), connect("{WEB6}", 443), udp("{WEB}", {ECHO}))
""", "--net-rule", "allow@example.com")
    assert out[0].startswith("ECONNREFUSED ECONNREFUSED ECONNREFUSED E")
    assert seen.strays() == []


def test_suffixes_and_first_match_of_names(probe):
    out, seen = probe("""
for n in ("example.com", "four.example.com", "www.example.com", "deep.www.example.com",
          "alias.example.com", "elsewhere.example.com", "other.org"):
    show(resolve(n))
""", "--net-rule", "deny@*.www.example.com,deny@other.org,allow@*.example.com")
    assert out == [f"[0, '{WEB}']", f"[0, '{WEB}']", "[3]", "[3]", f"[0, '{WEB}']", "[3]", "[3]"]
    assert not seen.with_bytes(b"\x03www\x07example")


def test_deny_of_a_name_holds_under_public(probe):
    out, seen = probe(f"""
show(resolve("other.org"), resolve("four.example.com"), get("{WEB}", "x"))
# By address: what the first bytes say counts, wherever they go.
for a in ("{OTHER}", "{OTHER6}", "{WEB}"):
    show(get(a, "other.org"), tls(a, "other.org"), tls(a, "Deep.Other.ORG"), get(a, "other.org", 8080))
    show(get(a, "fine.net"), tls(a, "fine.net"), tls(a, None, host="fine.net"))
show(talk("{OTHER}", b"GET / HTTP/1.1\\r\\nHost: fine.net\\r\\nHost: other.org\\r\\n\\r\\n"))
show(talk("{WEB}", b"ECHO\\nother", port={COMMANDS}, size=5), udp("{WEB}", {ECHO}), udp("{WEB}", 443))
""", "--net", "public", "--net-rule", "deny@*.other.org")
    assert out[0] == f"[3] [0, '{WEB}'] world {WEB} x"
    for i, a in enumerate((OTHER, OTHER6, WEB)):
        assert out[1 + 2 * i] == "ECONNRESET ECONNRESET ECONNRESET ECONNRESET"
        assert out[2 + 2 * i] == f"world {a} fine.net HTTP/1.1 200 HTTP/1.1 200"
    assert out[7] == "ECONNRESET"
    tcp, udp, quic = out[8].split()
    assert (tcp, udp) == ("other", "ping") and quic.startswith("E")  # QUIC would hide the name
    assert not seen.with_bytes(b"other.org") and not seen.with_bytes(b"Other.ORG")
    assert seen.to(WEB, port=443) and not [p for p in seen.to(WEB, port=443) if p.proto == 17]


SHOWN = {
    "other host": b"GET / HTTP/1.1\r\nHost: other.org\r\n\r\n",
    "empty lines first": b"\r\n\r\nGET / HTTP/1.1\r\nHost: other.org\r\n\r\n",
    "absolute target": b"GET http://other.org/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
    "connect": b"CONNECT other.org:443 HTTP/1.1\r\nHost: example.com\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: example.com\r\nHost: other.org\r\n\r\n",
    "folded": b"GET / HTTP/1.1\r\nHost: example.com\r\n other.org\r\n\r\n",
    "space": b"GET / HTTP/1.1\r\nHost : other.org\r\n\r\n",
    "blank first": b" GET / HTTP/1.1\r\nHost: other.org\r\n\r\n",
    "tabs": b"GET\t/\tHTTP/1.1\r\nHost: other.org\r\n\r\n",
    "vertical tabs": b"GET\v/\vHTTP/1.1\r\nHost: other.org\r\n\r\n",
    "returns": b"GET\r/\rHTTP/1.1\nHost: other.org\r\n\r\n",
    "next lines": b"GET\x85/\x85HTTP/1.1\r\nHost: other.org\r\n\r\n",
    "an address": f"GET / HTTP/1.1\r\nHost: {WEB}\r\n\r\n".encode(),
}


def test_requests_that_mean_another_host_are_cut(probe, internet):
    before = len(internet.requests())
    out, seen = probe(f"""
resolve("example.com")
for request in {list(SHOWN.values())}:
    show(talk("{WEB}", request), talk("{WEB}", *(request[i:i + 1] for i in range(len(request)))))
show(talk("{WEB}", b"GET / HTTP/1.1\\r\\nHost: example.com\\r\\n\\r\\n"))
""", *EXAMPLE[1:], box=EXAMPLE[0])
    assert dict(zip(SHOWN, out)) == {k: "ECONNRESET ECONNRESET" for k in SHOWN}
    assert out[-1] == "HTTP/1.1 200"
    assert not seen.with_bytes(b"other.org")
    assert len(internet.requests()) == before + 1


def test_server_names_of_tls(probe):
    """Split anywhere, over segments and over records, missing, doubled, broken: only the listed one."""
    out, seen = probe(f"""
resolve("example.com")
def records(hello, size):
    body = hello[5:]
    return b"".join(hello[:3] + struct.pack("!H", len(body[i:i + size])) + body[i:i + size]
                    for i in range(0, len(body), size))
good, bad, none = hello("example.com"), hello("other.org"), hello(None)
for h in (good, bad):
    show(*(repr(talk("{WEB}", *p, port=443, size=2)) for p in (
        [h], [h[i:i + 1] for i in range(len(h))], [records(h, 40)], [records(h, 7)],
        [h[:60], h[60:]])))
show(repr(talk("{WEB}", none, port=443, size=2)))
lies = good[:3] + b"\\xff\\xff" + good[5:]
show(talk("{WEB}", lies, port=443), talk("{WEB}", good[:200] + b"\\xff" * 400, port=443))
""", *EXAMPLE[1:], box=EXAMPLE[0])
    assert out[0].split() == [repr("\x16\x03")] * 5
    assert out[1].split() == [repr("ECONNRESET")] * 5
    assert out[2] == repr("\x16\x03")  # shows no name: let through, unless strict
    assert out[3] == "ECONNRESET ECONNRESET"
    assert not seen.with_bytes(b"other.org")


def test_strict_demands_a_name(probe):
    out, seen = probe(f"""
resolve("example.com")
show(get("{WEB}", "example.com"), tls("{WEB}", "example.com"))
show(tls("{WEB}", None, host="example.com"), talk("{WEB}", b"GET / HTTP/1.0\\r\\n\\r\\n"))
show(talk("{WEB}", b"ECHO\\nsome other protocol", port={COMMANDS}))
show(udp("{WEB}", {ECHO}), udp("{WEB6}", {ECHO}), udp("{WEB}", 443), ping("{WEB}"), ping("{WEB6}"))
""", "--net-rule", "allow@example.com", "--net-strict")
    assert out[0] == f"world {WEB} example.com HTTP/1.1 200"
    assert out[1] == "ECONNRESET ECONNRESET"
    assert out[2].startswith("ECONNRESET")
    udp4, udp6, quic, ping = out[3].split(" ", 3)
    assert all(e in ("EHOSTUNREACH", "EACCES", "ECONNREFUSED") for e in (udp4, udp6, quic)), out[3]
    assert ping.count("unreachable") == 2
    assert not seen.with_bytes(b"some other protocol")
    assert [p for p in seen.to(WEB, WEB6) if p.proto != 6] == []


def test_strict_opens_other_protocols_that_a_rule_names(probe, net_msb):
    rules = ("--net-rule", f"allow@example.com,allow@example.com:udp:{ECHO}", "--net-strict")
    out, _ = probe(f"""
resolve("example.com")
show(udp("{WEB}", {ECHO}), ping("{WEB}"))
""", *rules)
    assert out[0].startswith("ping unreachable")
    net_msb.create("said", "net-guest:1", *rules)
    explain = ("net", "explain", "said", "example.com:99", "--udp")
    assert "--net-strict" in net_msb(*explain).stdout.decode()
    net_msb.ok("stop", "-q", "-f", "said")
    assert "--net-strict" in net_msb(*explain).stdout.decode()
    net_msb.ok("rm", "-f", "-q", "said")


def test_protocols_without_names_pass_when_not_strict(probe):
    out, _ = probe(f"""
resolve("example.com")
show(talk("{WEB}", b"ECHO\\nother", port={COMMANDS}, size=5), udp("{WEB}", {ECHO}))
""", *EXAMPLE[1:], box=EXAMPLE[0])
    assert out == ["other ping"]


# --- answers that lie ---


REBINDING = ["zero", "loop", "ten", "link", "meta", "inward", "mixed"]
REBINDING6 = ["ula", "mapped", "nat64", "loop6"]


@pytest.mark.parametrize("options", [(), ("--net-rule", "allow@*.example.com")], ids=["public", "named"])
def test_rebinding(probe, options):
    box = "default" if not options else "suffix"
    out, seen = probe(f"""
for n in {REBINDING}:
    show(n, resolve(n + ".example.com"), resolve_tcp(n + ".example.com"))
for n in {REBINDING6}:
    show(n, resolve(n + ".example.com", AAAA))
show(connect("10.9.9.9"), connect("{METADATA}"), connect(GATEWAY))
""", *options, box=box)
    assert out[:-1] == [f"{n} [3] [3]" for n in REBINDING] + [f"{n} [0]" for n in REBINDING6]
    assert out[-1] == "ECONNREFUSED ECONNREFUSED ECONNREFUSED"
    assert seen.to("10.9.9.9", METADATA) == [] and [p for p in seen.packets if p.device == "lo"] == []


def test_only_the_family_that_lies_is_dropped(probe):
    out, _ = default(probe, """
show(resolve("half.example.com"), resolve("half.example.com", AAAA), resolve("six.example.com", AAAA))
show(get("half.example.com", "half.example.com"), get("six.example.com", "six"))
""")
    assert out == [f"[0, '{WEB}'] [0] [0, '{WEB6}']",
                   f"world {WEB} half.example.com world {WEB6} six"]


@pytest.mark.parametrize("text", ["2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.16689662"])
def test_odd_spellings_of_the_metadata_address(probe, text):
    """The guest's own library reads them; and no name server is asked whether it can."""
    out, seen = default(probe, f'show(get("{text}", "x"))')
    assert out == ["ECONNREFUSED"] and seen.strays() == []


def test_a_name_that_changes_its_mind(net_msb, boxes, internet):
    """First public, then private: the second answer is dropped; and never is the first one's address
    opened for a name that was not asked for."""
    box = boxes("suffix", "--net-rule", "allow@*.example.com")
    lines = 'show(resolve("flip.example.com")); show(get("{}", "flip.example.com"))'
    internet.set_hosts(f"{OTHER} flip.example.com\n")
    assert net_msb.probe(box, lines.format(OTHER)) == [f"[0, '{OTHER}']", f"world {OTHER} flip.example.com"]
    internet.set_hosts("10.9.9.9 flip.example.com\n")
    assert net_msb.probe(box, lines.format("10.9.9.9")) == ["[3]", "ECONNREFUSED"]
    internet.set_hosts("")


def test_private_answers_if_a_rule_names_the_address(probe):
    out, _ = probe("""
show(resolve("ten.example.com"), get("10.9.9.9", "ten.example.com"), resolve("meta.example.com"))
""", "--net-rule", "allow@*.example.com,allow@10.9.9.9")
    assert out == ["[0, '10.9.9.9'] world 10.9.9.9 ten.example.com [3]"]
    out, _ = probe('show(resolve("ten.example.com"), connect("10.9.9.9"))', "--no-dns-rebind-protection")
    assert out == ["[0, '10.9.9.9'] ECONNREFUSED"]


# --- questions as a tunnel ---


def test_kinds_of_questions_are_limited(probe, internet):
    out, seen = default(probe, """
for kind in (TXT, ANY, 10, 252, 251, 99, 250, 65280):
    show(resolve("txt.example.com", kind))
show(resolve("example.com", HTTPS), resolve("example.com", 64), resolve("example.com", 15)[0])
""")
    assert set(out[:-1]) == {"[5]"}
    assert out[-1] == "[0] [0] 0"
    assert internet.asked("txt.example.com") == []


def test_many_questions_are_slowed_down(probe, internet):
    out, _ = probe("""
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((GATEWAY, 53))
s.settimeout(30)
codes = {}
for i in range(1000):
    s.send(question(f"{'x' * 60}.{i}.tunnel.example.com"))
    m = s.recv(4096)
    codes[m[3] & 15] = codes.get(m[3] & 15, 0) + 1
show(codes.get(5, 0), sum(codes.values()), resolve("elsewhere.net"))
""", "--net-rule", "allow@*.example.com")
    refused, answered, other = out[0].split(" ", 2)
    assert int(refused) > 100 and int(answered) == 1000
    assert other == "[3]"  # what needs no upstream is still answered


def test_names_over_tcp_and_large_answers(probe):
    out, _ = default(probe, """
show(resolve("big.example.com")[-1], len(resolve_tcp("big.example.com")))
s = socket.create_connection((GATEWAY, 53))
for n in ("four.example.com", "alias.example.com", "nope.example.com"):  # one connection, several questions
    q = question(n)
    s.sendall(struct.pack("!H", len(q)) + q)
f = s.makefile("rb")
show(sorted(str(parse(f.read(struct.unpack("!H", f.read(2))[0]))) for _ in range(3)))
""")
    assert out[0] == "truncated 41"
    assert out[1] == str(sorted([f"[0, '{WEB}']", f"[0, '{WEB}']", "[3]"]))


def test_malformed_questions(probe):
    out, seen = default(probe, r"""
import os, random
random.seed(5)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((GATEWAY, 53))
q = question("example.com")
for m in (b"", b"\0", q[:11], q[:12], q[:-1], q[:2] + b"\x84\0" + q[4:], q[:4] + b"\0\5" + q[6:],
          q[:12] + b"\xc0\x0c" + q[-4:], q[:12] + b"\x3f" + b"a" * 63 + b"\0" + q[-4:],
          q[:12] + b"\x40a\0" + q[-4:], q[:12] + (b"\x3f" + b"a" * 63) * 5 + b"\0" + q[-4:], q + bytes(4000)):
    s.send(m)
for _ in range(300):
    m = bytearray(q + bytes(20))
    for _ in range(4):
        m[random.randrange(len(m))] = random.randrange(256)
    s.send(m)
t = socket.create_connection((GATEWAY, 53))
t.sendall(b"\xff\xff" + bytes(3000))
u = [socket.create_connection((GATEWAY, 53)) for _ in range(10)]
for x in u:
    x.sendall(b"\0")
time.sleep(0.1)
show(resolve("four.example.com"), resolve_tcp("four.example.com"))
""")
    assert out == [f"[0, '{WEB}'] [0, '{WEB}']"]


# --- limits ---


def test_too_many_connections_are_refused(net_msb):
    net_msb.create("few", "net-guest:1", "--max-connections", "5")
    out = net_msb.probe("few", f"""
held, errors = [], []
for i in range(8):
    try:
        held.append(socket.create_connection(("{WEB}", {COMMANDS}), timeout=30))
    except OSError as e:
        errors.append(trouble(e))
show(len(held), errors)
for i, s in enumerate(held):  # those that there are go on
    s.sendall(b"ECHO\\n%d" % i)
    assert s.recv(1) == b"%d" % i
for s in held:
    s.close()
for _ in range(100):
    if connect("{WEB}", {COMMANDS}) == "ok":
        show("again")
        break
    time.sleep(0.1)
""")
    assert out == ["5 ['ECONNREFUSED', 'ECONNREFUSED', 'ECONNREFUSED']", "again"]
    net_msb.ok("rm", "-f", "-q", "few")
