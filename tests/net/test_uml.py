"""The network card and the stack under a real guest kernel (uml_stack): bytes both ways."""
import hashlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import threading

import pytest

BUILD = pathlib.Path(os.environ.get("BUILD", "build"))
KERNEL = BUILD / "assets" / "linux-uml"
BUSYBOX = pathlib.Path("/bin/busybox")
SIZE = 16 << 20

pytestmark = pytest.mark.skipif(not KERNEL.exists() or not BUSYBOX.exists(),
                                reason="needs the user-mode kernel and busybox-static")

INIT = """#!/bin/sh
mount -t proc p /proc
mount -t devtmpfs d /dev
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
ip -6 addr add fd00:2::15/64 dev eth0
ping -c 1 -W 5 10.0.2.2 >/dev/null && echo "ping ok"
echo "download $(nc 10.0.2.2 {down} </dev/null | md5sum)"
yes 0123456789abcdef | head -c {size} | nc 10.0.2.2 {up} >/dev/null
echo "refused $(nc 10.0.2.2 {closed} </dev/null 2>&1)"
poweroff -f
"""


@pytest.fixture
def root(tmp_path):
    """A function that makes a disk with that script as its init."""
    def make(script):
        tree = tmp_path / "root"
        for d in ("bin", "proc", "dev", "tmp"):
            (tree / d).mkdir(parents=True)
        shutil.copy(BUSYBOX, tree / "bin" / "busybox")
        for name in ("sh", "mount", "ip", "ping", "nc", "md5sum", "yes", "head", "poweroff"):
            (tree / "bin" / name).symlink_to("busybox")
        (tree / "init").write_text(script)
        (tree / "init").chmod(0o755)
        disk = tmp_path / "root.erofs"
        subprocess.run([BUILD / "src" / "image" / "mkerofs", tree, disk], check=True)
        return disk
    return make


def serve(handler):
    """Serves one connection in a thread; its port, and a list that gets the handler's result."""
    listener = socket.create_server(("127.0.0.1", 0))
    result = []

    def run():
        s, _ = listener.accept()
        with s:
            s.settimeout(60)
            result.append(handler(s))

    t = threading.Thread(target=run, daemon=True)
    t.start()
    return listener.getsockname()[1], result, t


def test_bytes_both_ways(root, tmp_path):
    data = os.urandom(1 << 20) * (SIZE >> 20)

    def send(s):
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
        return s.recv(1)

    def receive(s):
        md5 = hashlib.md5()
        while k := s.recv(1 << 20):
            md5.update(k)
        return md5.hexdigest()

    down, _, _ = serve(send)
    up, received, thread = serve(receive)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        script = INIT.format(down=down, up=up, size=SIZE, closed=closed.getsockname()[1])
        work = tmp_path / "uml"
        work.mkdir()
        p = subprocess.run([BUILD / "tests" / "net" / "uml_stack", KERNEL.resolve(), root(script),
                            work], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                           timeout=120)
    out = p.stdout
    assert p.returncode == 0, out
    assert "ping ok" in out
    assert f"download {hashlib.md5(data).hexdigest()}" in out
    thread.join(20)
    line = b"0123456789abcdef\n"
    expected = (line * (SIZE // len(line) + 1))[:SIZE]
    assert received == [hashlib.md5(expected).hexdigest()], (out, (work / "stats.json").read_text())
    assert "refused" in out and "can't connect" in out
    stats = json.loads((work / "stats.json").read_text())
    assert stats["bad"] == 0 and stats["resent"] == 0 and stats["out_of_order"] == 0
    assert stats["rx_large"] > 10 and stats["tx_large"] > 10  # offloads work both ways
