"""A small internet in a network namespace, and the stack with a policy in another.

    world.py STACK-COMMAND...      (root)

The stack's host is 93.184.216.2. In the world 93.184.216.34 and .35 have an HTTP server on port 80 that
echoes the Host it was asked for, 93.184.216.53:53 is the name server of all. Runs the command, then
prints one line of JSON: its output, and every name that the name server was asked for.
"""
import ctypes
import http.server
import json
import os
import socket
import socketserver
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


def serve_names(s):
    while True:
        m, peer = s.recvfrom(4096)
        s.sendto(answer(m), peer)


def new_namespace():
    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000) != 0:  # CLONE_NEWNET
        sys.exit("unshare failed")


def ip(*lines, enter=()):
    for line in lines:
        subprocess.run([*enter, "ip", *line.split()], check=True)


class WebServer(http.server.ThreadingHTTPServer):
    def server_bind(self):  # without asking for the name of its address
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address


def serve_web(*addresses):
    for a in addresses:
        web = WebServer((a, 80), Web)
        threading.Thread(target=web.serve_forever, daemon=True).start()


def main():
    new_namespace()
    ip("link add h0 type veth peer name w0", "link set lo up", "link set w0 up",
       "addr add 10.9.9.9/32 dev lo",
       *(f"addr add 93.184.216.{i}/24 dev w0" for i in (1, 34, 35, 53)))
    serve_web("93.184.216.34", "93.184.216.35", "10.9.9.9")
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind(("93.184.216.53", 53))
    threading.Thread(target=serve_names, args=(names,), daemon=True).start()
    world = os.open("/proc/self/ns/net", os.O_RDONLY)
    new_namespace()
    ip(f"link set h0 netns {os.getpid()}", enter=["nsenter", f"--net=/proc/{os.getpid()}/fd/{world}"])
    ip("link set lo up", "link set h0 up", "addr add 93.184.216.2/24 dev h0",
       "route add default via 93.184.216.1")
    serve_web("127.0.0.1", "93.184.216.2")
    p = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                       timeout=60)
    print(json.dumps({"code": p.returncode, "out": p.stdout.splitlines(), "asked": asked,
                      "connections": connections}), flush=True)
    os._exit(0)


main()
