"""The servers in a namespace of netkit.py; ends with the test that started it.

    networld.py ROLE DIRECTORY [ADDRESS...]

Prints "ready". On these addresses, or every one that the namespace has: HTTP on port 80 (and 8080), HTTPS on 443, the
command server of tests/net on 7000, a UDP echo on 7001 and nothing that answers on 9. The web servers serve DIRECTORY/site, and
answer anything else with one line: the address that it came to and the Host that was asked for.
Requests are noted in DIRECTORY/requests.
"""
import http.server
import json
import pathlib
import re
import resource
import socket
import socketserver
import ssl
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "net"))
import servers  # noqa: E402

ROLE, DIR = sys.argv[1], pathlib.Path(sys.argv[2])
SITE = DIR / "site"
note_lock = threading.Lock()


class Web(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, *args):
        super().__init__(*args, directory=str(SITE))

    def note(self):
        entry = [self.server.server_address[0], self.headers.get("Host", ""), self.path]
        with note_lock, open(DIR / "requests", "a") as f:
            f.write(json.dumps(entry) + "\n")

    def do_GET(self):
        self.note()
        if (SITE / self.path.lstrip("/").split("?")[0]).exists() and self.path != "/":
            super().do_GET()
        else:
            self.answer(404 if self.path.startswith(("/apt/", "/simple/", "/repo.git/")) else 200)

    def do_POST(self):
        self.note()
        n = int(self.headers.get("Content-Length", 0))
        while n > 0:
            n -= len(self.rfile.read(min(n, 1 << 20)))
        self.answer(200)

    def answer(self, code):
        body = f"{ROLE} {self.server.server_address[0]} {self.headers.get('Host', '')}\n".encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class WebServer(http.server.ThreadingHTTPServer):
    request_queue_size = 1024

    def __init__(self, address, tls=None):
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, Web)
        self.tls = tls
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def server_bind(self):  # without asking for the name of its address
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]

    def finish_request(self, request, client_address):
        if self.tls:  # here, in the connection's own thread
            request = self.tls.wrap_socket(request, server_side=True)
        super().finish_request(request, client_address)

    def handle_error(self, *_):
        pass


def echo(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    s.bind((address, 7001))
    while True:
        data, peer = s.recvfrom(65536)
        s.sendto(data, peer)


def discard(address):
    """A bound socket that is never read: what goes there gets no answer of any kind."""
    s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((address, 9))
    return s


def addresses():
    out = subprocess.run(["ip", "-o", "addr"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [a for a in re.findall(r"inet6? ([^/]+)/", out) if not a.startswith("fe80")]


def main():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16384), hard))
    threading.stack_size(256 << 10)  # a thread for each of a thousand connections
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(DIR / "tls.pem", DIR / "tls.key")
    kept = []
    for a in sys.argv[3:] or addresses():
        for port in (80, 8080):
            WebServer((a, port))
        WebServer((a, 443), tls)
        servers.Server((a, 7000)).start()
        threading.Thread(target=echo, args=(a,), daemon=True).start()
        kept.append(discard(a))
    print("ready", flush=True)
    threading.Event().wait()


main()
