"""The network of a sandbox while it runs: what it decided, what it would decide, other rules, other ports."""
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import time

import pytest

from conftest import wait_for
from netkit import ECHO, OTHER, WEB

HOST = "host.microsandbox.internal"
DENIED = 3


def stderr(p):
    return p.stderr.decode(errors="replace")


def log(m, name, *args):
    return [json.loads(line) for line in m.ok("net", "log", name, "--json", *args).splitlines()]


def logged(m, box, **want):
    """Waits for a record with these members, and returns the last one."""
    def look():
        return [r for r in log(m, box) if all(r.get(k) == v for k, v in want.items())]
    return wait_for(look, timeout=20)[-1]


def explain(m, name, *target):
    p = m("net", "explain", name, *target, "--format", "json")
    assert p.returncode in (0, DENIED), stderr(p)
    said = json.loads(p.stdout)
    assert (said["verdict"] == "allow") == (p.returncode == 0)
    return said


def rules(m, name):
    return json.loads(m.ok("net", "show", name, "--format", "json"))["rules"]


# --- in an internet of its own ------------------------------------------------------------------


@pytest.fixture(scope="module")
def box(net_msb):
    net_msb.create("ctl", "net-guest:1", "-m", "256M", "--net-rule", "allow@example.com:tcp:80")
    return net_msb


def allowlist(m):
    m.ok("net", "set", "ctl", "-q", "--net-rule", "allow@example.com:tcp:80")


def make_decisions(m):
    """One of each kind, all of them logged; what the guest saw."""
    allowlist(m)
    before = len(log(m, "ctl"))
    out = m.probe("ctl", f"""
show(get("example.com", "example.com"), connect("{OTHER}", 443), resolve("other.org"), udp("{OTHER}", {ECHO}))
""")
    wait_for(lambda: any(r["kind"] == "ended" for r in log(m, "ctl")[before:]), timeout=20)
    return out


def test_decisions_are_logged_with_their_rule(box):
    out = make_decisions(box)
    assert "world" in out[0] and "ECONNREFUSED" in out[0]
    r = logged(box, "ctl", kind="flow", verdict="allow", address=WEB)
    assert (r["direction"], r["proto"], r["port"], r["name"]) == ("egress", "tcp", 80, "example.com")
    assert r["why"] == "allowed by rule 1: allow@example.com:tcp:80"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", r["t"])
    r = logged(box, "ctl", kind="ended", address=WEB)
    assert r["to_host"] > 10 and r["to_guest"] > 10 and r["ms"] >= 0 and "verdict" not in r
    logged(box, "ctl", kind="shown", verdict="allow", name="example.com")
    logged(box, "ctl", kind="question", verdict="allow", name="example.com")
    r = logged(box, "ctl", kind="question", verdict="deny", name="other.org")
    assert r["why"] == "denied: no rule allows it"
    r = logged(box, "ctl", kind="flow", verdict="deny", proto="tcp", address=OTHER)
    assert r["port"] == 443 and r["why"] == "denied: no rule allows it"
    logged(box, "ctl", kind="flow", verdict="deny", proto="udp", address=OTHER, port=ECHO)


def test_log_for_people(box):
    make_decisions(box)
    text = box.ok("net", "log", "ctl").splitlines()
    assert text[0].split() == ["TIME", "KIND", "VERDICT", "PROTO", "PEER", "WHY"]
    assert any(re.search(rf" flow +deny +tcp +-> {OTHER}:443 +denied: no rule allows it$", line) for line in text)
    assert any(re.search(r" question +deny +- +\? other\.org +denied", line) for line in text)
    assert any(re.search(rf" ended .*-> example\.com {WEB}:80 .*: .* out, .* in, ", line) for line in text)
    denied = log(box, "ctl", "--denied")
    assert denied and all(r["verdict"] == "deny" for r in denied)
    assert len(log(box, "ctl", "--tail", "2")) == 2
    middle = log(box, "ctl")[3]["t"]
    # The log may grow between two looks: how often something was repeated comes later.
    wait_for(lambda: log(box, "ctl", "--tail", "2") == log(box, "ctl")[-2:])
    wait_for(lambda: log(box, "ctl", "--format", "json") == log(box, "ctl"))
    wait_for(lambda: log(box, "ctl", "--since", middle) == [r for r in log(box, "ctl") if r["t"] >= middle])


def test_log_follows(box):
    allowlist(box)
    box.probe("ctl", f'show(connect("{OTHER}", 4320))')
    wait_for(lambda: any(r.get("port") == 4320 for r in log(box, "ctl", "--denied")))
    p = box.popen("net", "log", "-f", "--denied", "--json", "--tail", "1", "ctl", stdout=subprocess.PIPE)
    try:
        assert p.stdout.readline()  # from here on it follows
        box.probe("ctl", f'show(connect("{OTHER}", 4321))')
        later = iter(lambda: json.loads(p.stdout.readline()), None)  # also how often others were repeated
        assert next(r for r in later if r.get("port") == 4321)["verdict"] == "deny"
    finally:
        p.kill()
        p.communicate()


# What is asked, and how a program would try it.
TARGETS = [("http://example.com/", "example.com", 80), ("https://example.com/", "example.com", 443),
           ("example.com:80", "example.com", 80), ("other.org:80", "other.org", 80), (f"{WEB}:80", WEB, 80),
           (f"{OTHER}:80", OTHER, 80), ("10.9.9.9:80", "10.9.9.9", 80), (f"{HOST}:80", HOST, 80),
           ("http://www.example.com", "www.example.com", 80)]  # fmt: skip


def test_explain_agrees_with_what_happens(box):
    allowlist(box)
    box.probe("ctl", 'show(resolve("example.com"))')
    said = [explain(box, "ctl", target) for target, _, _ in TARGETS]
    out = box.probe("ctl", f"""
for host, port in {[t[1:] for t in TARGETS]}:
    try:
        addr = socket.getaddrinfo(host, port, socket.AF_INET)[0][4][0]
        show("addr", connect(addr, port))
    except OSError as e:
        show("noname", "-")
""")
    for (target, host, _), s, line in zip(TARGETS, said, out):
        known, how = line.split()
        assert (how == "ok") == (s["verdict"] == "allow"), (target, s, line)
        if "name" in s:
            assert (s["name"]["verdict"] == "allow") == (known == "addr"), (target, s, line)
        if host == "example.com":
            assert [p["address"] for p in s["pinned"] if "." in p["address"]] == [WEB]
    assert [s["verdict"] for s in said].count("allow") == 3


def test_narrower_and_wider(box):
    box.ok("net", "set", "ctl", "-q", "--net", "public")
    assert rules(box, "ctl") == ["allow@public"]
    assert box.probe("ctl", f'show(connect("{WEB}"), connect("{OTHER}"))') == ["ok ok"]
    box.ok("net", "set", "ctl", "-q", "--add", "--net-rule", f"deny@{OTHER}")
    assert rules(box, "ctl") == [f"deny@{OTHER}", "allow@public"]
    assert box.probe("ctl", f'show(connect("{WEB}"), connect("{OTHER}"))') == ["ok ECONNREFUSED"]
    assert explain(box, "ctl", OTHER)["why"] == f"denied by rule 1: deny@{OTHER}"
    box.ok("net", "set", "ctl", "-q", "--no-net")
    assert box.probe("ctl", f'show(connect("{WEB}"), resolve("example.com"))') == ["ECONNREFUSED [3]"]
    box.ok("net", "set", "ctl", "-q", "--net-rule", f"allow@{OTHER}:tcp:80")
    assert box.probe("ctl", f'show(connect("{WEB}"), connect("{OTHER}"))') == ["ECONNREFUSED ok"]
    # A later start has it, too.
    box.ok("restart", "-q", "-t", "0", "ctl")
    assert rules(box, "ctl") == [f"allow@{OTHER}:tcp:80"]
    assert box.probe("ctl", f'show(connect("{WEB}"), connect("{OTHER}"))') == ["ECONNREFUSED ok"]
    box.ok("net", "set", "ctl", "-q", "--reset")
    assert rules(box, "ctl") == ["allow@public"]


HOLD = f"""
import socket, sys
s = socket.create_connection(("{WEB}", 80), timeout=60)
print("open", flush=True)
try:
    print("end" if s.recv(1) == b"" else "data", flush=True)
except OSError as e:
    print("cut", flush=True)
"""


def test_existing_flows_stay_unless_they_are_dropped(box):
    box.ok("net", "set", "ctl", "-q", "--net", "public")
    p = box.popen("exec", "-q", "ctl", "--", "python3", "-c", HOLD, stdin=subprocess.DEVNULL,
                  stdout=subprocess.PIPE)  # fmt: skip
    assert p.stdout.readline() == b"open\n"
    box.ok("net", "set", "ctl", "-q", "--no-net")
    assert box.probe("ctl", f'show(connect("{WEB}"))') == ["ECONNREFUSED"]
    assert not log(box, "ctl", "--tail", "50")[-1]["kind"] == "ended"
    assert p.poll() is None, "new flows only"
    q = box("net", "set", "ctl", "--net", "none", "--drop-existing", check=0)
    assert "note: closed 1 flow\n" in stderr(q)
    assert p.stdout.readline() == b"cut\n"
    p.communicate(timeout=20)
    logged(box, "ctl", kind="ended", address=WEB)
    box.ok("net", "set", "ctl", "-q", "--reset")


# --- on the machine's own loopback ---------------------------------------------------------------


@pytest.fixture(scope="module")
def web(module_msb):
    """A sandbox that serves its port 80, and echoes UDP on 53."""
    m = module_msb
    m.create("web", "-m", "128M")
    serve(m)
    return m


def serve(m):
    m.sh("web", "mkdir -p /srv; echo hello >/srv/index.html; httpd -p 80 -h /srv")


def get(port, timeout=10):
    """The body of the answer; b"" when the connection was closed or reset instead."""
    data = b""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as c:
        try:
            c.sendall(b"GET /index.html HTTP/1.0\r\n\r\n")
            while chunk := c.recv(65536):
                data += chunk
        except ConnectionError:
            pass
    return data.partition(b"\r\n\r\n")[2]


def refused(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_ports_come_and_go(web):
    assert web.ok("port", "web") == ""
    out = web.ok("port", "add", "web", "0:80")
    port = int(re.fullmatch(r"80/tcp -> 127\.0\.0\.1:(\d+)\n", out)[1])
    assert get(port) == b"hello\n"
    assert web.ok("port", "web") == web.ok("port", "list", "web") == out
    assert json.loads(web.ok("port", "web", "--format", "json")) == [
        {"guest_port": 80, "host_bind": "127.0.0.1", "host_port": port, "protocol": "tcp"}]
    assert f"127.0.0.1:{port}->80/tcp" in web.ok("ps", "web")
    udp = web.ok("port", "add", "web", "0:53/udp")
    assert re.fullmatch(r"53/udp -> 127\.0\.0\.1:\d+\n", udp)
    # Ingress rules hold for it; the decision says so.
    web.ok("net", "set", "web", "-q", "--net-default-ingress", "deny")
    assert get(port) == b""
    r = logged(web, "web", kind="flow", direction="ingress", verdict="deny")
    assert r["port"] == 80 and r["proto"] == "tcp"
    web.ok("net", "set", "web", "-q", "--reset")
    assert get(port) == b"hello\n"
    web.ok("port", "rm", "web", port, "-q")
    assert refused(port)
    assert web.ok("port", "web") == udp
    # A later start publishes what is left.
    web.ok("restart", "-q", "-t", "0", "web")
    serve(web)
    assert re.fullmatch(r"53/udp -> 127\.0\.0\.1:\d+\n", web.ok("port", "web"))
    web.ok("port", "rm", "-q", "web", web.ok("port", "web").split(":")[1].strip() + "/udp")
    assert web.ok("port", "web") == ""
    # And of one that does not run.
    web.ok("stop", "-q", "-t", "0", "web")
    assert web.ok("port", "add", "web", "0:80") == "80/tcp -> 127.0.0.1:0\n"
    web.ok("start", "-q", "web")
    serve(web)
    port = int(web.ok("port", "web").split(":")[1])
    assert get(port) == b"hello\n"
    web.ok("port", "rm", "-q", "web", port)


def test_a_busy_port_is_refused_and_changes_nothing(web):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        busy = s.getsockname()[1]
        p = web("port", "add", "web", f"{busy}:80")
        assert p.returncode == 1 and "in use" in stderr(p) and str(busy) in stderr(p)
        assert web.ok("port", "web") == ""
        # Of a range all or nothing.
        first = busy - 1
        p = web("port", "add", "web", f"{first}-{busy}:80-81")
        assert p.returncode == 1
        assert web.ok("port", "web") == "" and refused(first)


def test_bad_input(web):
    for args, code, words in [
        (["net", "explain", "web", "what is this"], 2, "invalid target"),
        (["net", "explain", "web", "example.com:0"], 2, "1 to 65535"),
        (["net", "explain", "web"], 2, "<TARGET>"),
        (["net", "explain", "ghost", "example.com"], 1, "sandbox not found: ghost"),
        (["net", "set", "web"], 2, "no policy given"),
        (["net", "set", "web", "--reset", "--net", "all"], 2, "--reset cannot be used with other policy options"),
        (["net", "set", "web", "--net", "publc"], 2, "did you mean 'public'"),
        (["net", "set", "web", "--net-rule", "alow@x.org"], 2, "alow"),
        (["net", "set", "ghost", "--net", "all"], 1, "sandbox not found: ghost"),
        (["net", "log", "ghost"], 1, "sandbox not found: ghost"),
        (["net", "log", "web", "--since", "yesterdayish"], 2, "expected a time"),
        (["net", "log", "web", "--tail", "-1"], 2, ""),
        (["net", "show", "ghost"], 1, "sandbox not found: ghost"),
        (["net", "frobnicate"], 2, "unrecognized subcommand"),
        (["port", "ghost"], 1, "sandbox not found: ghost"),
        (["port", "add", "web"], 2, "<PORTS>"),
        (["port", "add", "web", "80"], 2, "invalid port '80'"),
        (["port", "add", "web", "1:2/sctp"], 2, "tcp or udp"),
        (["port", "add", "ghost", "0:80"], 1, "sandbox not found: ghost"),
        (["port", "rm", "web", "9"], 1, "does not publish port 9/tcp"),
        (["port", "rm", "web", "x"], 2, "invalid port 'x'"),
        (["port", "rm", "web", "1.2.3:5"], 2, "invalid port"),
        (["audit", "--since", "x"], 2, "expected a time"),
    ]:
        p = web(*args)
        assert p.returncode == code and words in stderr(p), (args, p)
        assert p.stdout == b"", args
    before = rules(web, "web")
    assert before == ["allow@public"]


def test_no_network_card(msb):
    msb.create("off", "-m", "64M", "--no-net")
    assert explain(msb, "off", "example.com")["why"] == "denied: the sandbox has no network"
    for args in (["net", "set", "off", "--net", "all"], ["port", "add", "off", "0:80"]):
        p = msb(*args)
        assert p.returncode == 1 and "was started without a network" in stderr(p) and "stop it first" in stderr(p)
    assert msb.ok("net", "show", "off").splitlines()[-1] == "no network"
    msb.ok("stop", "-q", "-t", "0", "off")
    msb.ok("net", "set", "off", "-q", "--net-rule", "allow@host")
    msb.ok("start", "-q", "off")
    assert rules(msb, "off") == ["allow@host"]
    assert b"eth0" in msb.sh("off", "ls /sys/class/net").stdout


def test_explained_when_stopped(web):
    web.ok("net", "set", "web", "-q", "--net-rule", "allow@example.com:tcp:443,deny@any")
    live = explain(web, "web", "https://example.com/")
    web.ok("stop", "-q", "-t", "0", "web")
    said = explain(web, "web", "https://example.com/")
    assert said["running"] is False and live["running"] is True
    assert {k: said[k] for k in ("verdict", "why", "name")} == {k: live[k] for k in ("verdict", "why", "name")}
    assert explain(web, "web", "http://example.com/")["verdict"] == "deny"
    assert log(web, "web"), "the log is there"
    web.ok("start", "-q", "web")
    serve(web)
    web.ok("net", "set", "web", "-q", "--reset")


# --- hostile -------------------------------------------------------------------------------------


def test_a_flood_of_denials_is_bounded_and_counted(web):
    """Equal ones are counted, different ones have a budget, and the log says what is missing."""
    script = "i=0; while [ $i -lt 400 ]; do echo x >/dev/udp/10.1.2.3/7; i=$((i+1)); done"
    web("exec", "-q", "web", "--", "/.msb/bin/bash", "-c", script, check=0)
    def count():
        return sum(r.get("count", 1) for r in log(web, "web") if r.get("address") == "10.1.2.3" and r["port"] == 7)
    wait_for(lambda: count() == 400, timeout=20)
    lines = [r for r in log(web, "web") if r.get("address") == "10.1.2.3"]
    assert len(lines) < 40
    script = "p=1; while [ $p -lt 6000 ]; do echo x >/dev/udp/10.1.2.4/$p; p=$((p+1)); done"
    web("exec", "-q", "web", "--", "/.msb/bin/bash", "-c", script, check=0, timeout=120)
    def all_of_them():
        mine = [r for r in log(web, "web") if r.get("address") == "10.1.2.4" or r["kind"] == "missed"]
        return sum(r.get("count", 1) for r in mine) >= 5999 and mine
    mine = wait_for(all_of_them, timeout=20)
    assert len(mine) < 2000 and any(r["kind"] == "missed" for r in mine)


def test_a_log_that_lies_is_shown_safely(web):
    """run/ belongs to the monitor, which a guest may have taken over."""
    path = web.home / "sandboxes" / "web" / "run" / "logs" / "net.log"
    evil = {"t": "2026-01-02T03:04:05Z", "kind": "flow", "verdict": "deny", "direction": "egress", "proto": "\x1b[2J",
            "address": "1.2.3.4\n", "name": "\u202e\x1b]0;x\x07", "why": "\x9b31m", "port": 1e99, "count": -5,
            "extra": "x" * 1000}  # fmt: skip
    with open(path, "ab") as f:
        f.write(b"\xff\xfe not json\n" + b"[" * 5000 + b"\n" + json.dumps(evil).encode() + b"\n")
    for args in (["net", "log", "web"], ["net", "log", "web", "--json"], ["audit"], ["audit", "--json"]):
        out = web.ok(*args)
        assert "\x1b" not in out and "\x9b" not in out and "\u202e" not in out and "extra" not in out, args
    line = [r for r in log(web, "web") if r.get("t", "").startswith("2026-01-02")][-1]
    assert "port" not in line and "count" not in line


def ask_monitor(m, name, kind, fields, fd=None):
    """One request, raw; (type, payload) of the answer."""
    def frame(t, payload):
        return struct.pack("<IHH", len(payload), t, 0) + payload

    def field(tag, data):
        return struct.pack("<HI", tag, len(data)) + data
    run = m.home / "sandboxes" / name / "run"
    with socket.socket(socket.AF_UNIX) as s:
        here = os.open(run, os.O_PATH)
        s.connect(f"/proc/self/fd/{here}/agent.sock")
        os.close(here)
        s.settimeout(20)
        data = frame(1, field(1, struct.pack("<I", 1 << 16))) + frame(kind, b"".join(
            field(t, struct.pack("<I", v) if isinstance(v, int) else v) for t, v in fields))
        if fd is None:
            s.sendall(data)
        else:
            socket.send_fds(s, [data], [fd])
        got = b""
        while chunk := s.recv(65536):
            got += chunk
    n, t, _ = struct.unpack("<IHH", got[:8])
    return t, got[8:8 + n]


FAIL, OK = 4, 34
PORT_ADD = 51


def test_the_monitor_looks_at_what_it_is_sent(web, tmp_path):
    tcp = [(98, 80), (99, 6)]
    cases = [(None, tcp, b"no socket")]
    file = open(tmp_path / "x", "w")
    cases.append((file, tcp, b"wrong type"))
    deaf = socket.socket()
    deaf.bind(("127.0.0.1", 0))
    cases.append((deaf, tcp, b"not listening"))
    blocking = socket.socket()
    blocking.bind(("127.0.0.1", 0))
    blocking.listen()
    cases.append((blocking, tcp, b"blocking mode"))
    udp = socket.socket(type=socket.SOCK_DGRAM)
    udp.setblocking(False)
    cases.append((udp, tcp, b"wrong type"))
    cases.append((udp, [(98, 80), (99, 17)], b"not bound"))
    unix = socket.socket(socket.AF_UNIX)
    unix.setblocking(False)
    cases.append((unix, tcp, b"wrong type"))
    good = socket.socket()
    good.bind(("127.0.0.1", 0))
    good.listen()
    good.setblocking(False)
    cases.append((good, [(98, 70000), (99, 6)], b"invalid request"))
    cases.append((good, [(98, 80), (99, 1)], b"invalid request"))
    for sock, fields, words in cases:
        kind, answer = ask_monitor(web, "web", PORT_ADD, fields, sock.fileno() if sock else None)
        assert kind == FAIL and words in answer, (sock, fields, answer)
    for kind in (48, 49, 50, 51, 52, 53, 63):
        for fields in ([], [(96, b"x\0y")], [(97, b"1.2.3")], [(105, b"{" * 100)], [(105, b'{"network":7}')]):
            t, _ = ask_monitor(web, "web", kind, fields, good.fileno())
            assert t == (OK if kind == 50 else FAIL)
    kind, _ = ask_monitor(web, "web", PORT_ADD, tcp, good.fileno())
    assert kind == OK
    port = good.getsockname()[1]
    for s in (file, deaf, blocking, udp, unix, good):
        s.close()
    assert get(port) == b"hello\n"
    web.ok("port", "rm", "web", port, "-q")
    assert refused(port)
    # Nothing of what was refused is still open in there.
    fds = os.listdir(f"/proc/{web.monitor_pid('web')}/fd")
    for _ in range(20):
        ask_monitor(web, "web", PORT_ADD, [(98, 0)], 0)
    wait_for(lambda: len(os.listdir(f"/proc/{web.monitor_pid('web')}/fd")) <= len(fds), timeout=10)


def test_what_the_monitor_refuses_is_not_in_the_spec(web):
    """It is told last; when it has no room, the old spec is put back."""
    path = web.home / "sandboxes" / "web" / "spec.json"
    before = path.read_bytes()
    for _ in range(256):
        with socket.socket(type=socket.SOCK_DGRAM) as s:
            s.bind(("127.0.0.1", 0))
            s.setblocking(False)
            assert ask_monitor(web, "web", PORT_ADD, [(98, 9), (99, 17)], s.fileno())[0] == OK
    p = web("port", "add", "web", "0:80")
    assert (p.returncode, p.stdout) == (1, b"") and "too many ports" in stderr(p)
    assert path.read_bytes() == before
    assert len(web.ok("port", "web").splitlines()) == 256
    web.ok("restart", "-q", "-t", "0", "web")
    assert web.ok("port", "web") == ""
    serve(web)


def test_a_killed_change_leaves_a_sound_sandbox(web):
    """Either the old policy or the new one, in the spec and in force; the same change again mends it."""
    random.seed(5)
    policies = ["allow@example.com", "allow@example.org"]
    for i in range(12):
        p = web.popen("net", "set", "web", "-q", "--net-rule", policies[i % 2], stderr=subprocess.DEVNULL)
        time.sleep(random.random() * 0.012)
        p.send_signal(signal.SIGKILL)
        p.wait()
        q = web.popen("port", "add", "web", "-q", "0:80", stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        time.sleep(random.random() * 0.012)
        q.send_signal(signal.SIGKILL)
        q.wait()
        now = rules(web, "web")
        assert now in (["allow@public"], [policies[0]], [policies[1]])
        spec = json.loads((web.home / "sandboxes" / "web" / "spec.json").read_text())
        assert spec["name"] == "web"
    web.ok("net", "set", "web", "-q", "--net-rule", policies[0])
    shown = json.loads(web.ok("net", "show", "web", "--format", "json"))
    assert shown["rules"] == [policies[0]] and shown["pending"] is False
    assert not list((web.home / "sandboxes" / "web").glob(".*.tmp*"))
    for line in web.ok("port", "web").splitlines():
        web.ok("port", "rm", "-q", "web", line.split(":")[1])
    web.ok("net", "set", "web", "-q", "--reset")
