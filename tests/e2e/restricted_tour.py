"""What a user does with msb, tried once inside a container by test_restricted.py.

    restricted_tour.py MSB LAYOUT:TAG

Prints a JSON document: what came of each step. Nothing is checked here, so that a failure shows all of it.
"""
import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import urllib.request

import fakereg
import imagekit

EXE, IMAGE = sys.argv[1:]
HERE = pathlib.Path(tempfile.mkdtemp(prefix="tour-"))
if not os.environ.get("USUAL_HOME"):
    os.environ.setdefault("MSB_HOME", str(HERE / "home"))
os.environ["PATH"] = f"{os.path.dirname(EXE)}:/usr/sbin:/usr/bin"
os.environ["NO_COLOR"] = "1"
found = {}


def msb(*args):
    p = subprocess.run([EXE, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    return p


def step(name, *args):
    """Its output, or what it says of its failure."""
    p = msb(*args)
    found[name] = p.stdout.strip() if p.returncode == 0 else f"[{p.returncode}] {p.stderr.strip()}"
    return p


class Web(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"from outside\n")

    def log_message(self, *args):
        pass


def pull():
    layout, tag = IMAGE.rsplit(":", 1)
    with fakereg.FakeRegistry(imagekit.Image(pathlib.Path(layout), tag)) as r:
        step("pull", "pull", "-q", f"{r.host}/team/app:1")
        step("run", "run", "-q", f"{r.host}/team/app:1", "--", "echo", "pulled")


def network():
    server = http.server.HTTPServer(("127.0.0.1", 0), Web)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    step("network", "exec", "-q", "box", "--", "wget", "-qO-", f"http://host.microsandbox.internal:{port}/")
    server.shutdown()


def ports():
    msb("exec", "-q", "box", "--", "sh", "-c", "mkdir -p /srv; echo from inside >/srv/x; httpd -p 80 -h /srv")
    doc = json.loads(msb("inspect", "box", "--format", "json").stdout)
    found["jail"] = doc.get("jail")
    host_port = msb("port", "ls", "box", "--format", "json").stdout
    try:
        number = json.loads(host_port)[0]["host_port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{number}/x", timeout=20) as f:
            found["ports"] = f.read().decode().strip()
    except (OSError, ValueError, LookupError) as e:
        found["ports"] = f"{e!r}: {host_port}"


def sdk():
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "sdk" / "python"))
    import msb as package

    try:
        with package.Sandbox.create("msb/base") as s:
            s.files.write("/tmp/x", "by the SDK\n")
            found["sdk"] = s.commands.run("cat /tmp/x", timeout=20).stdout.strip()
    except Exception as e:  # pylint: disable=broad-except
        found["sdk"] = repr(e)


def main():
    share = HERE / "share"
    share.mkdir()
    (share / "in").write_text("of the host\n")
    p = step("create", "create", "-n", "box", "-m", "96M", "-v", f"{share}:/share", "-v", "data:/data",
             "-p", "127.0.0.1:0:80", "--net-rule", "allow@host")
    found["said"] = p.stderr
    step("exec", "exec", "-q", "box", "--", "sh", "-c", "uname -s; id -u; free -m | awk '/Mem/ {print ($2 > 60)}'")
    step("processes", "exec", "-q", "box", "--", "sh", "-c", "for i in 1 2 3 4 5; do (sleep 0; echo $i) & done; wait")
    step("share", "exec", "-q", "box", "--", "sh", "-c",
         "cat /share/in; mkdir /share/d && echo of the guest >/share/d/out && ln -s /etc/passwd /share/d/l")
    found["shared"] = (share / "d" / "out").read_text().strip() if (share / "d" / "out").exists() else None
    step("volume", "exec", "-q", "box", "--", "sh", "-c", "echo kept >/data/x")
    network()
    ports()
    step("stop", "stop", "-q", "box")
    step("again", "exec", "-q", "box", "--", "cat", "/data/x")
    step("rm", "rm", "-q", "-f", "box")
    pull()
    sdk()
    found["doctor"] = json.loads(msb("doctor", "--format", "json").stdout)
    p = msb("run", "--jail", "full", "--", "true")
    found["full"] = [p.returncode, p.stderr]
    step("left", "ls", "-q")
    found["homes"] = sorted(f.name for f in pathlib.Path("/tmp").glob("msb-*"))
    print(json.dumps(found))


main()
