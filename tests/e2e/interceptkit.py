"""A sandbox with bound secrets, and TLS servers that write down what they get."""
import json
import re
import subprocess

import netkit
import processes
from imagekit import run
from netkit import HERE

VALUE = "sk-live-9f8e7d6c5b4a39281706f5e4d3c2b1a0"
SECOND = "second/value+with=signs"
ADDRESSES = API, ELSEWHERE, EXPIRED, WRONG, HTTP2, BUCKET, OLD = tuple(f"93.184.216.{i}" for i in range(90, 97))


def certify(d, ca, name, names, days=2):
    """A certificate of the test's authority, with its key, in one file."""
    run("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=x",
        "-keyout", d / f"{name}.key", "-out", d / f"{name}.csr")
    (d / f"{name}.ext").write_text("subjectAltName=" + ",".join(f"DNS:{n}" for n in names) + "\n")
    run("openssl", "x509", "-req", "-days", days, "-in", d / f"{name}.csr", "-CA", ca, "-CAkey",
        ca.parent / "ca.key", "-CAcreateserial", "-extfile", d / f"{name}.ext", "-out", d / f"{name}.crt")
    (d / f"{name}.pem").write_bytes((d / f"{name}.crt").read_bytes() + (d / f"{name}.key").read_bytes())


class Servers:
    """tlsworld.py at addresses of its own."""

    def __init__(self, net, d):
        self.net, self.seen_file = net, d / "seen"
        certify(d, net.ca, "good", ["api.example.com", "elsewhere.example.com", "git.example.com", "h2.example.com",
                                     "s3.example.com", "old.example.com"])
        certify(d, net.ca, "expired", ["expired.example.com"], days=-1)
        certify(d, net.ca, "wrong", ["other.example.com"])
        for a in ADDRESSES:
            net.in_world("ip", "addr", "add", f"{a}/24", "dev", "w0")
        net.set_hosts(f"{API} api.example.com\n{API} git.example.com\n{ELSEWHERE} elsewhere.example.com\n"
                      f"{EXPIRED} expired.example.com\n{WRONG} wrong.example.com\n{HTTP2} h2.example.com\n"
                      f"{BUCKET} s3.example.com\n{OLD} old.example.com\n10.9.8.7 rebound.example.com\n")
        self.process = net.start(*net.enter(net.world_pid), netkit.PYTHON, HERE / "tlsworld.py", d,
                                 f"{API}=good.pem+plain", f"{ELSEWHERE}=good.pem", f"{EXPIRED}=expired.pem",
                                 f"{WRONG}=wrong.pem", f"{HTTP2}=good.pem+h2", f"{BUCKET}=good.pem+s3",
                                 f"{OLD}=good.pem+old", stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == b"ready\n"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Makes room for another module's."""
        self.process.kill()
        self.process.wait()
        for a in ADDRESSES:
            self.net.in_world("ip", "addr", "del", f"{a}/24", "dev", "w0")

    def seen(self):
        """(server, head, body) of every request."""
        text = self.seen_file.read_text() if self.seen_file.exists() else ""
        return [tuple(json.loads(line)) for line in text.splitlines()]

    def last(self):
        """(target, header fields, server) of the last one."""
        server, head, _ = self.seen()[-1]
        lines = head.split("\r\n")
        return (lines[0].split(" ")[1], {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:] if line)},
                server)


def make_box(net_msb):
    """A sandbox with two bound secrets. It trusts no authority of the test's: only msb does."""
    net_msb.ok("secret", "set", "KEY", input=VALUE.encode())
    net_msb.env["SECOND"] = SECOND
    before = set(processes.named("msb-intercept"))
    net_msb.create("box", "net-guest:1", "-m", "768M", "--secret", "KEY@api.example.com,in=query:key,in=header:X-Own",
                   "--secret", "KEY@expired.example.com,wrong.example.com,h2.example.com,old.example.com,rebound.example.com",
                   "--secret", "SECOND@git.example.com/repos/,api.example.com/second/",
                   "--tls-intercept", "elsewhere.example.com", "--tls-intercept-port", "8443",
                   "--tls-upstream-ca-cert", str(net_msb.net.ca))
    net_msb.interceptor, = set(processes.named("msb-intercept")) - before
    return net_msb


def sh(m, script, **kw):
    return m.ok("exec", "-q", "box", "--", "bash", "-ec", script, timeout=120, **kw)


def curl(m, *args):
    """(status, body) of one request in the guest."""
    p = m("exec", "-q", "box", "--", "bash", "-c",
          'curl -sS -m 60 -w "\\n%{http_code}" "$@"', "curl", *args, timeout=120)
    out = p.stdout.decode()
    assert p.returncode == 0, (p.stderr, out)
    body, status = out.rsplit("\n", 1)
    return int(status), body


def holder(m, name="KEY", box="box"):
    """The placeholder, which the sandbox's spec knows."""
    text = json.dumps(json.loads(m.ok("inspect", box, "--format", "json")))
    return re.search(rf"{name}@[^\"]*placeholder=(\w+)", text)[1]


def denials(m):
    return [r for r in (json.loads(line) for line in m.ok("net", "log", "box", "--format", "json").splitlines())
            if r["kind"] == "secret"]


RAW = '''
import os, socket, ssl, sys
usual = ssl.create_default_context()  # reading all authorities takes longer than the rest
def connect(host="api.example.com", sni=None, **kw):
    context = ssl.create_default_context() if kw else usual
    for k, v in kw.items():
        setattr(context, k, v)
    return context.wrap_socket(socket.create_connection((host, 443), timeout=60), server_hostname=sni or host)
def ask(data, **kw):
    s = connect(**kw)
    s.sendall(data)
    out = b""
    try:
        while piece := s.recv(65536):
            out += piece
    except OSError:
        pass
    return out.decode("latin-1")
KEY = os.environ["KEY"].encode()
HOST = b"Host: api.example.com\\r\\n"
'''
