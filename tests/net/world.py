"""A small internet in a network namespace, and the stack with a policy in it.

    world.py STACK-COMMAND...      (root)

Public addresses are on the loopback: 93.184.216.34 and .35 have an HTTP server on port 80 that
echoes the Host it was asked for, 93.184.216.53:53 is the name server of all. Runs the command, then
prints one line of JSON: its output, and every name that the name server was asked for.
"""
import ctypes
import http.server
import json
import os
import socket
import struct
import subprocess
import sys
import threading

ZONE = {"example.com": "93.184.216.34", "other.org": "93.184.216.35", "rebind.example.com": "127.0.0.1",
        "big.example.com": "93.184.216.34"}
asked = []
connections = []


class Web(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = self.headers.get("Host", "").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        connections.append(self.server.server_address[0])


def answer(m):
    """The answer to a question for an A record."""
    labels, at = [], 12
    while m[at]:
        labels.append(m[at + 1:at + 1 + m[at]].decode())
        at += 1 + m[at]
    name = ".".join(labels)
    kind = struct.unpack("!H", m[at + 1:at + 3])[0]
    asked.append(name)
    found = ZONE.get(name) if kind == 1 else None
    head = m[:2] + struct.pack("!HHHHH", 0x8180 | (0 if name in ZONE else 3), 1, bool(found), 0, 0)
    record = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 60, 4) + socket.inet_aton(found) if found else b""
    return head + m[12:at + 5] + record


def serve_names():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("93.184.216.53", 53))
    while True:
        m, peer = s.recvfrom(4096)
        s.sendto(answer(m), peer)


def main():
    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000) != 0:  # CLONE_NEWNET
        sys.exit("unshare failed")
    commands = ["ip link set lo up"]
    commands += [f"ip addr add {a}/32 dev lo"
                 for a in ("93.184.216.34", "93.184.216.35", "93.184.216.53", "10.9.9.9")]
    for c in commands:
        subprocess.run(c.split(), check=True)
    for a in ("93.184.216.34", "93.184.216.35", "10.9.9.9", "127.0.0.1"):
        web = http.server.ThreadingHTTPServer((a, 80), Web)
        threading.Thread(target=web.serve_forever, daemon=True).start()
    threading.Thread(target=serve_names, daemon=True).start()
    p = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                       timeout=60)
    print(json.dumps({"code": p.returncode, "out": p.stdout.splitlines(), "asked": asked,
                      "connections": connections}), flush=True)
    os._exit(0)


main()
