"""A registry that can misbehave, for what the real one would never do.

    with FakeRegistry(image) as r:                   serves an OCI layout at r.host, any repository
        r.script = lambda q: q.fail(503) if ...      called for each request; True: it has answered
        r.log                                        every request: method, path, headers

Tokens: with r.tokens(user, password) blobs and manifests need one, which /token gives out.
"""
import base64
import contextlib
import http.server
import json
import re
import socket
import ssl
import threading
import time
import urllib.parse

from imagekit import OCI, sha256


class Request(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        # A TLS client would wait for an answer to its hello: plain servers hang up.
        if not self.server.owner.tls and self.request.recv(1, socket.MSG_PEEK) == b"\x16":
            self.request.close()
        super().setup()

    def handle(self):
        with contextlib.suppress(OSError, ValueError):
            super().handle()

    def finish(self):
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def log_message(self, *args):
        pass

    # --- for scripts ---

    def send(self, status, body=b"", **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for k, v in headers.items():
            self.send_header(k.replace("_", "-"), str(v))
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
            self.sent(len(body))
        return True

    def sent(self, n):
        with self.server.owner.lock:
            self.server.owner.bytes_sent += n

    def fail(self, status, message="", **headers):
        return self.send(status, {"errors": [{"code": "X", "message": message}]}, **headers)

    def redirect(self, url, status=307):
        return self.send(status, Location=url)

    def hang_up(self):
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        return True

    def cut(self, body, n, **headers):
        """Promises all of a body, sends n bytes of it, and hangs up."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:n])
        self.wfile.flush()
        self.sent(n)
        return self.hang_up()

    @property
    def blob(self):
        m = re.fullmatch(r"/v2/.+/blobs/(sha256:[0-9a-f]{64})", self.path)
        return m[1] if m else None

    @property
    def manifest(self):
        m = re.fullmatch(r"/v2/.+/manifests/([^/]+)", self.path)
        return m[1] if m else None

    # --- the well-behaved part ---

    def do_GET(self):
        r = self.server.owner
        with r.lock:
            r.log.append((self.command, self.path, dict(self.headers)))
        if r.script and r.script(self):
            return
        if r.credentials is not None and not self.authorized():
            return
        if self.path == "/v2/":
            self.send(200, {})
        elif self.manifest:
            self.serve_manifest(r)
        elif self.blob:
            self.serve_blob(r.find(self.blob))
        else:
            self.fail(404, "no such thing")

    do_HEAD = do_GET

    def do_PUT(self):
        """Takes what is sent, for scripts."""
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def do_POST(self):
        r = self.server.owner
        form = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        with r.lock:
            r.log.append((self.command, self.path, {**self.headers, "form": form}))
        if r.script and r.script(self):
            return
        if not self.path.startswith("/token"):
            self.fail(405)
        elif urllib.parse.parse_qs(form).get("refresh_token") == ["refresh"]:
            self.grant(r)
        else:
            self.fail(401)

    def grant(self, r):
        token = f"token-{len(r.granted)}"
        r.granted.append(token)
        self.send(200, {"access_token": token, "expires_in": 300})

    def authorized(self):
        r = self.server.owner
        if self.path.startswith("/token"):
            user, password = r.credentials
            good = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
            given = self.headers.get("Authorization")
            if given == good or (not given and not user):
                self.grant(r)
            else:
                self.fail(401)
            return False
        if r.granted and self.headers.get("Authorization") == f"Bearer {r.granted[-1]}":
            return True
        realm = r.realm or f"{r.url}/token"
        scope = "repository:" + "/".join(self.path.split("/")[2:-2]) + ":pull"
        extra = f',scope="{scope}"' if self.path != "/v2/" else ""
        self.fail(401, WWW_Authenticate=f'Bearer realm="{realm}",service="fake"{extra}')
        return False

    def serve_manifest(self, r):
        name = self.manifest
        digest = name if ":" in name else r.tags.get(name)
        body = r.find(digest)
        if body is None:
            self.fail(404, "manifest unknown")
            return
        kind = json.loads(body).get("mediaType", OCI + "manifest.v1+json")
        self.send(200, body, Content_Type=kind, Docker_Content_Digest=sha256(body))

    def serve_blob(self, body):
        if body is None:
            self.fail(404, "blob unknown")
            return
        m = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if not m:
            self.send(200, body)
            return
        start = int(m[1])
        self.send(206, body[start:],
                  Content_Range=f"bytes {start}-{len(body) - 1}/{len(body)}")


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass


class FakeRegistry:
    def __init__(self, image=None, certificate=None, address="127.0.0.1"):
        self.log, self.script, self.lock = [], None, threading.Lock()
        self.bytes_sent = 0
        self.extra = {}  # digest -> bytes, besides the image's blobs
        self.tags = {}
        self.credentials = self.realm = None
        self.granted = []
        self.layout = None
        self.tls = bool(certificate)
        if image:
            self.layout = image.layout
            self.tags["1"] = image.descriptor()["digest"]
        self.server = Server((address, 0), Request)
        self.server.owner = self
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True,
                                                     do_handshake_on_connect=False)
        self.port = self.server.server_address[1]
        self.host = f"localhost:{self.port}" if address == "127.0.0.1" else f"{address}:{self.port}"
        self.url = f"{'https' if certificate else 'http'}://{self.host}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.server.shutdown()
        self.server.server_close()

    def tokens(self, user=None, password=None):
        self.credentials = (user, password)

    def find(self, digest):
        if digest in self.extra:
            return self.extra[digest]
        path = self.layout / "blobs" / "sha256" / digest[7:] if self.layout and digest else None
        return path.read_bytes() if path and path.exists() else None

    def put(self, body):
        """Serves bytes under their digest."""
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.extra[sha256(body)] = body
        return sha256(body)

    def requests(self, part=""):
        with self.lock:
            return [(m, p, h) for m, p, h in self.log if part in p]

    def wait_for_request(self, part, timeout=20):
        deadline = time.monotonic() + timeout
        while not self.requests(part):
            assert time.monotonic() < deadline, f"nobody asked for {part}"
            time.sleep(0.01)
