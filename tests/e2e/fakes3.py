"""A strict S3 server on loopback, for tests: it checks every signature by itself, honors conditional
writes, keeps objects in memory, and breaks on request."""

import calendar
import collections
import contextlib
import hashlib
import hmac
import io
import re
import ssl
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

KEY_ID, SECRET, BUCKET, REGION = "AKIDTEST", "test/secret+key", "bucket", "eu-test-1"


def sign(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


class Object:
    def __init__(self, data, meta, etag=None):
        self.data, self.meta = data, meta
        self.etag = etag or hashlib.md5(data).hexdigest()
        self.listed = self.etag


class FakeS3:
    """faults: callables (method, key, nth) -> None, a status code, "cut" (the connection breaks after
    the first half of the answer's body), ("cut", n) (after the answer's first n bytes, or before its
    last -n), "open" (after all of it, which has no length and does not end), "drop" (before anything is
    done) or "lost" (after it was done)."""

    def __init__(self, conditional=True, page=100, certificate=None):
        self.objects, self.uploads, self.log, self.faults = {}, {}, [], []
        self.seen = collections.Counter()
        self.conditional, self.page = conditional, page
        self.lock = threading.Lock()
        self.before = lambda method, key, query: None  # is called with each request, and may take its time
        self.error_headers = {}  # more headers of errors
        self.list_extra = ""  # more XML in every listing
        self.ordered = True  # whether it knows start-after and delimiter
        self.order = lambda key: key  # what keys are sorted by
        self.weak = ""  # what comes before ETags: W/ from a server that says that they are weak
        self.flattens = False  # whether a copy of what came in parts is listed with another etag than it has, as in Swift
        self.ranges = []  # what parts were asked for
        self.whole = False  # whether such requests are answered with all of it
        self.ahead = 0  # seconds, of its clock
        self.stored = []  # (key, number) of parts of uploads
        self.hosts = set()  # by what names it was called
        self.unsigned = False  # whether bodies need not be signed
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = 1 << 16

            def log_message(self, *args):
                pass

            def date_time_string(self, timestamp=None):
                return super().date_time_string(time.time() + fake.ahead)

            def do(self):
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length)
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    fake.serve(self, body)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do

        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if certificate else None
        if tls:
            tls.load_cert_chain(*certificate)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def finish_request(self, request, client_address):
                if tls:  # here, in the connection's own thread
                    request = tls.wrap_socket(request, server_side=True)
                super().finish_request(request, client_address)

            def handle_error(self, *args):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    # --- what tests look at ---------------------------------------------------------------------

    def put(self, key, data, **meta):
        with self.lock:
            self.objects[key] = Object(data, {f"x-amz-meta-{k}": v for k, v in meta.items()})

    def keys(self, prefix="", ours=False):
        with self.lock:
            return sorted(k for k in self.objects
                          if k.startswith(prefix) and (ours or "/.msb/" not in "/" + k))

    # --- the protocol -----------------------------------------------------------------------------

    def check(self, h, path, query, body):
        auth = h.headers.get("authorization") or ""
        m = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, "
                         r"SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})", auth)
        if not m or m[1] != KEY_ID or m[3] != REGION:
            return "AccessDenied"
        names = m[4].split(";")
        must = {"host", "x-amz-date", "x-amz-content-sha256"}
        must |= {k.lower() for k in h.headers if k.lower().startswith("x-amz-")}
        if names != sorted(names) or not must <= set(names):
            return "AccessDenied"
        unsigned = self.unsigned and h.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
        if not unsigned and h.headers["x-amz-content-sha256"] != hashlib.sha256(body).hexdigest():
            return "XAmzContentSHA256Mismatch"
        pairs = sorted(p if "=" in p else p + "=" for p in query.split("&")) if query else []
        pairs.sort(key=lambda p: p.split("=", 1))
        canonical = "\n".join([h.command, path, "&".join(pairs)]
                              + [f"{n}:{' '.join(h.headers[n].split())}" for n in names]
                              + ["", m[4], h.headers["x-amz-content-sha256"]])
        date = h.headers["x-amz-date"]
        told = calendar.timegm(time.strptime(date, "%Y%m%dT%H%M%SZ"))
        if abs(told - time.time() - self.ahead) > 900:
            return "RequestTimeTooSkewed"
        scope = f"{m[2]}/{REGION}/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", date, scope,
                          hashlib.sha256(canonical.encode()).hexdigest()])
        key = ("AWS4" + SECRET).encode()
        for part in (m[2], REGION, "s3", "aws4_request"):
            key = sign(key, part)
        if sign(key, text).hex() != m[5]:
            return "SignatureDoesNotMatch"
        return None

    def answer(self, h, status, body=b"", cut=False, unended=False, **headers):
        h.send_response(status)
        for k, v in headers.items():
            h.send_header(k.replace("_", "-"), v)
        if unended:
            h.send_header("transfer-encoding", "chunked")
            body = b"%x\r\n%b\r\n" % (len(body), body)
        else:
            h.send_header("content-length", headers.pop("length", None) or str(len(body)))
        h.end_headers()
        if h.command != "HEAD":
            h.wfile.write(body[:len(body) // 2] if cut else body)
        if cut or unended:
            h.wfile.flush()
            h.close_connection = True
            h.connection.shutdown(2)

    def cut(self, h, n, answer):
        wire, h.wfile = h.wfile, io.BytesIO()
        answer()
        wire.write(h.wfile.getvalue()[:n])
        wire.flush()
        h.wfile, h.close_connection = wire, True
        h.connection.shutdown(2)

    def error(self, h, status, code):
        self.answer(h, status, f"<?xml version='1.0'?>\n<Error><Code>{code}</Code>"
                               f"<Message>it is \x1b[31m{code}</Message></Error>"
                               .replace("\x1b", "&#x9b;").encode(), **self.error_headers)

    def serve(self, h, body):
        whole, _, query = h.path.partition("?")
        path = re.sub("^http://[^/]*", "", whole)  # as a proxy is asked
        self.hosts.add(h.headers["host"])
        virtual = h.headers["host"].startswith(BUCKET + ".")
        raw = f"/{BUCKET}{path}" if virtual else path
        key = urllib.parse.unquote(raw)[len(BUCKET) + 2:]
        q = dict(p.partition("=")[::2] for p in query.split("&")) if query else {}
        with self.lock:
            self.log.append((h.command, key, query))
            self.seen[h.command, key] += 1
            nth = self.seen[h.command, key]
            fault = next((f for f in (f(h.command, key, nth) for f in self.faults) if f), None)
        self.before(h.command, key, query)
        wrong = self.check(h, path, query, body)
        if wrong:
            return self.error(h, 403, wrong)
        if isinstance(fault, int):
            return self.error(h, fault, "SlowDown" if fault == 503 else "Fault")
        if fault == "drop":
            h.close_connection = True
            return h.connection.shutdown(2)
        if not raw.startswith(f"/{BUCKET}/"):
            return self.error(h, 404, "NoSuchBucket")
        with self.lock:
            status, data, headers = self.act(h, key, q, body)
        if fault == "lost":
            h.close_connection = True
            return h.connection.shutdown(2)
        if isinstance(fault, tuple):
            return self.cut(h, fault[1], lambda: self.error(h, status, data) if isinstance(data, str)
                            else self.answer(h, status, data, **headers))
        if isinstance(data, str):
            return self.error(h, status, data)
        return self.answer(h, status, data, cut=fault == "cut", unended=fault == "open", **headers)

    def act(self, h, key, q, body):
        method, o = h.command, self.objects.get(key)
        if method == "GET" and not key:
            return self.listing(q)
        if method == "POST" and "uploads" in q:
            self.uploads[f"up&{len(self.uploads)}"] = (key, self.meta(h), {})
            name = f"up&amp;{len(self.uploads) - 1}"
            return 200, (f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId>"
                         "</InitiateMultipartUploadResult>").encode(), {}
        if "uploadId" in q:
            return self.multipart(h, key, q, body)
        if method == "PUT":
            return self.write(h, key, body)
        if method == "DELETE":
            self.objects.pop(key, None)
            return 204, b"", {}
        if not o:
            return 404, "NoSuchKey", {}
        match = h.headers.get("if-match")
        if match and match.strip('"') != o.etag:
            return 412, "PreconditionFailed", {}
        headers = {"etag": f'{self.weak}"{o.etag}"', **o.meta}
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", h.headers.get("range") or "")
        if span and not self.whole:
            self.ranges.append((key, h.headers["range"].removeprefix("bytes=")))
            if int(span[1]) >= len(o.data):
                return 416, "InvalidRange", {}
            at, end = int(span[1]), min(int(span[2] or len(o.data)), len(o.data) - 1)
            headers["content-range"] = f"bytes {at}-{end}/{len(o.data)}"
            return 206, o.data[at:end + 1], headers
        return 200, o.data, headers

    def meta(self, h):
        return {k.lower(): v for k, v in h.headers.items() if k.lower().startswith("x-amz-meta-")}

    def refusal(self, h, key):
        """Of a write whose condition does not hold, as AWS does it."""
        o = self.objects.get(key)
        match, none = h.headers.get("if-match"), h.headers.get("if-none-match")
        if not self.conditional or (not match and none != "*"):
            return None
        if match and not o:
            return 404, "NoSuchKey", {}
        return (412, "PreconditionFailed", {}) if o and (none or match.strip('"') != o.etag) else None

    def write(self, h, key, body):
        if refused := self.refusal(h, key):
            return refused
        source = h.headers.get("x-amz-copy-source")
        if source:
            old = self.objects.get(urllib.parse.unquote(source)[len(BUCKET) + 2:])
            if not old:
                return 404, "NoSuchKey", {}
            self.objects[key] = Object(old.data, old.meta, old.etag if self.flattens else None)
            self.objects[key].listed = hashlib.md5(old.data).hexdigest()
            return 200, (f"<CopyObjectResult><ETag>&quot;{self.objects[key].etag}&quot;</ETag>"
                         "</CopyObjectResult>").encode(), {}
        self.objects[key] = Object(body, self.meta(h))
        return 200, b"", {"etag": f'"{self.objects[key].etag}"'}

    def multipart(self, h, key, q, body):
        up = self.uploads.get(urllib.parse.unquote(q["uploadId"]))
        if not up or up[0] != key:
            return 404, "NoSuchUpload", {}
        if h.command == "DELETE":
            del self.uploads[urllib.parse.unquote(q["uploadId"])]
            return 204, b"", {}
        if h.command == "GET":
            rows = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>&quot;{hashlib.md5(part).hexdigest()}&quot;</ETag>"
                           f"<Size>{len(part)}</Size></Part>" for n, part in sorted(up[2].items()))
            return 200, f"<ListPartsResult><IsTruncated>false</IsTruncated>{rows}</ListPartsResult>".encode(), {}
        if h.command == "PUT":
            self.stored.append((key, int(q["partNumber"])))
            up[2][int(q["partNumber"])] = body
            return 200, b"", {"etag": f'"{hashlib.md5(body).hexdigest()}"'}
        parts = [int(n) for n in re.findall(rb"<PartNumber>(\d+)</PartNumber>", body)]
        if parts != sorted(up[2]):
            return 400, "InvalidPart", {}
        if refused := self.refusal(h, key):
            return refused
        del self.uploads[urllib.parse.unquote(q["uploadId"])]
        data = b"".join(up[2][n] for n in parts)
        self.objects[key] = Object(data, up[1], f"{hashlib.md5(data).hexdigest()}-{len(parts)}")
        return 200, (f"<CompleteMultipartUploadResult><ETag>\"{self.objects[key].etag}\"</ETag>"
                     "</CompleteMultipartUploadResult>").encode(), {}

    def listing(self, q):
        prefix = urllib.parse.unquote(q.get("prefix", ""))
        start = q.get("start-after", "") if self.ordered else ""
        after = urllib.parse.unquote(q.get("continuation-token", start))
        found = sorted((k for k in self.objects if k.startswith(prefix) and self.order(k) > self.order(after)), key=self.order)
        tops = []
        if self.ordered and q.get("delimiter"):
            tops = sorted({k[:k.find("/", len(prefix)) + 1] for k in found} - {""})
            found = [k for k in found if "/" not in k[len(prefix):]]
        page, more = found[:self.page], len(found) > self.page
        rows = "".join(f"<Contents><Key>{escape(urllib.parse.quote_plus(k))}</Key>"
                       f"<Size>{len(self.objects[k].data)}</Size>"
                       f"<ETag>{self.weak}&quot;{self.objects[k].listed}&quot;</ETag></Contents>" for k in page)
        rows += "".join(f"<CommonPrefixes><Prefix>{escape(urllib.parse.quote_plus(k))}</Prefix></CommonPrefixes>"
                        for k in tops[:self.page])
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        return 200, ("<?xml version='1.0' encoding='UTF-8'?>\n"
                     "<ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>"
                     f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}{self.list_extra}"
                     "<EncodingType>url</EncodingType></ListBucketResult>").encode(), {}
