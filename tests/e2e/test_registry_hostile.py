"""Registries that fail, lie, or try to make msb do something for them."""
import base64
import json
import pathlib
import random
import re
import signal
import socket
import subprocess
import threading

import pytest

import imagekit
from conftest import wait_for
from fakereg import FakeRegistry
from terminal import Terminal
from test_pull import cached, docker_config, text

SIZE = 6 << 20  # of the layer: large enough to be interrupted


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """One layer that does not compress, one that is tiny."""
    out = imagekit.Layout(tmp_path_factory.mktemp("image") / "layout")
    big = imagekit.Tar().add("big", random.Random(7).randbytes(SIZE)).bytes()
    small = imagekit.Tar().add("small", "x").bytes()
    img = out.tag(out.image([big, small]), "1")
    img.big = img.manifest()["layers"][0]["digest"]
    return img


@pytest.fixture
def fake(image):
    with FakeRegistry(image) as r:
        r.ref = f"{r.host}/team/app:1"
        yield r


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return imagekit.make_ca(tmp_path_factory.mktemp("ca"))


def assert_nothing_stored(m):
    for part in ("images", "refs", "layers", "disks", "docs", "partial", "tmp"):
        assert cached(m, part) == [], part


# --- being asked nicely ---------------------------------------------------------------------------


def test_what_is_asked_for(puller, fake):
    puller.ok("pull", fake.ref)
    paths = [p for _, p, _ in fake.requests()]
    assert paths[0] == "/v2/team/app/manifests/1"
    headers = fake.requests("/manifests/")[0][2]
    for kind in ("oci.image.index.v1", "oci.image.manifest.v1", "manifest.list.v2", "manifest.v2"):
        assert kind in headers["Accept"]
    version = puller.ok("--version").split()[1]
    assert all(h["User-Agent"] == f"msb/{version}" for _, _, h in fake.requests())
    assert all("Authorization" not in h for _, _, h in fake.requests())
    assert len(paths) == len(set(paths)) == 4  # a manifest, a configuration, two layers


def test_foreign_urls_are_ignored(puller, fake, image):
    with FakeRegistry() as elsewhere:
        doc = image.manifest()
        for layer in doc["layers"]:
            layer["urls"] = [f"{elsewhere.url}/layer"]
        fake.tags["1"] = fake.put(doc)
        puller.ok("pull", fake.ref)
        assert elsewhere.log == []


def test_two_pulls_share_the_work(puller, fake, image):
    gate = threading.Event()

    def script(q):
        if q.blob == image.big:
            gate.wait(20)
        return False

    fake.script = script
    first = puller.popen("pull", "-q", fake.ref)
    fake.wait_for_request(image.big)
    second = puller.popen("pull", "-q", fake.ref)
    wait_for(lambda: len(fake.requests("/manifests/")) == 2)
    gate.set()
    assert first.wait(60) == 0 and second.wait(60) == 0
    assert len(fake.requests(image.big)) == 1


# --- tokens ---------------------------------------------------------------------------------------


def test_anonymous_token(puller, fake):
    fake.tokens()
    puller.ok("pull", fake.ref)
    [(_, path, headers)] = fake.requests("/token")
    assert "service=fake" in path and "scope=repository%3Ateam%2Fapp%3Apull" in path
    assert "Authorization" not in headers


def test_token_with_a_password(puller, fake):
    fake.tokens("me", "s3cret")
    p = puller("pull", fake.ref, check=1)
    assert "requires credentials" in text(p)
    word = base64.b64encode(b"me:s3cret").decode()
    docker_config(puller, {"auths": {fake.host: {"auth": word}}})
    puller.ok("pull", fake.ref)
    # The password went to the token server alone, and the token to the rest.
    for _, path, headers in fake.requests():
        if path.startswith("/token"):
            continue
        assert headers.get("Authorization", "Bearer ").startswith("Bearer ")
    docker_config(puller, {"auths": {fake.host: {"auth": base64.b64encode(b"me:no").decode()}}})
    p = puller("pull", "-f", fake.ref, check=1)
    assert "rejects the stored credentials" in text(p) and "s3cret" not in text(p)


def test_identity_token(puller, fake):
    fake.tokens("nobody", "knows")
    docker_config(puller, {"auths": {fake.host: {"identitytoken": "refresh"}}})
    puller.ok("pull", fake.ref)
    [(method, _, headers)] = fake.requests("/token")
    assert method == "POST" and "grant_type=refresh_token" in headers["form"]


def test_expired_token_is_renewed_once(puller, fake, image):
    fake.tokens()
    spoilt = []

    def script(q):
        if q.blob and not spoilt:
            spoilt.append(q.blob)
            fake.granted.append("another")  # the one that was granted is worth nothing now
        return False

    fake.script = script
    puller.ok("pull", fake.ref)
    assert len(fake.requests("/token")) == 2

    def never(q):
        return q.fail(401, WWW_Authenticate=f'Bearer realm="{fake.url}/token",service="x"') \
            if q.manifest else False

    fake.script = never
    fake.log.clear()
    p = puller("pull", fake.ref, check=1)
    assert "denies access" in text(p)
    assert len(fake.requests("/manifests/")) == 2 and len(fake.requests("/token")) == 1


@pytest.mark.parametrize("bad", [b"not json", b"{}", b'{"token": ""}', b'{"token": 5}',
                                 b'{"token": "a\\r\\nX-Evil: 1"}', b'{"token": "' + b"x" * 70000 + b'"}',
                                 b" " * 300000],
                         ids=["text", "empty", "blank", "number", "newline", "long", "endless"])
def test_worthless_tokens(puller, fake, bad):
    fake.tokens()
    fake.script = lambda q: q.send(200, bad) if q.path.startswith("/token") else False
    p = puller("pull", fake.ref, check=1)
    assert "token" in text(p) and len(fake.requests("/manifests/")) == 1


@pytest.mark.parametrize("challenge", ["", "Negotiate", 'Bearer realm="', "Bearer", "\x7f,=",
                                       'Bearer realm="ftp://x/"', 'Bearer realm="file:///etc/passwd"'])
def test_odd_challenges(puller, fake, challenge):
    fake.script = lambda q: q.fail(401, WWW_Authenticate=challenge)
    p = puller("pull", fake.ref, check=1)
    assert text(p).count("error:") == 1
    assert len(fake.requests()) == 1


def test_realm_of_a_safe_registry_must_be_safe(puller, image, certificate):
    ca, cert, key = certificate
    with FakeRegistry(image, (cert, key)) as r, FakeRegistry() as spy:
        r.tokens("me", "s3cret")
        r.realm = f"{spy.url}/token"
        word = base64.b64encode(b"me:s3cret").decode()
        docker_config(puller, {"auths": {r.host: {"auth": word}}})
        p = puller("pull", "--ca-certs", ca, f"{r.host}/a:1", check=1)
        assert "not safe for credentials" in text(p)
        assert spy.log == []


# --- redirects ------------------------------------------------------------------------------------


def test_credentials_stay_with_their_host(puller, fake, image):
    """Blobs come from elsewhere, as from a CDN; what it gets to see is the request alone."""
    fake.tokens("me", "s3cret")
    word = base64.b64encode(b"me:s3cret").decode()
    docker_config(puller, {"auths": {fake.host: {"auth": word}}})
    with FakeRegistry(image) as cdn:
        fake.script = lambda q: q.redirect(f"{cdn.url}{q.path}") \
            if q.blob and "Authorization" in q.headers else False
        puller.ok("pull", fake.ref)
        seen = cdn.requests("/blobs/")
        assert len(seen) == 3
        for _, _, headers in seen:
            assert not {k.lower() for k in headers} & {"authorization", "cookie"}
            assert "s3cret" not in str(headers) and word not in str(headers)
            assert not any(t in str(headers) for t in fake.granted)


@pytest.mark.parametrize("scheme", ["Basic", "Bearer", "identity"])
def test_challenges_of_other_hosts_are_not_answered(puller, fake, image, scheme):
    """Whoever answers in the registry's place could otherwise say where our password goes."""
    word = base64.b64encode(b"me:s3cret").decode()
    login = {"identitytoken": "refresh"} if scheme == "identity" else {"auth": word}
    docker_config(puller, {"auths": {fake.host: login}})
    puller.ok("pull", fake.ref)
    mine = fake.ref.replace("/team/", "/mine/")
    puller.ok("tag", fake.ref, mine)
    with FakeRegistry() as thief:
        kind = "Basic" if scheme == "Basic" else "Bearer"
        thief.script = lambda q: q.fail(401, WWW_Authenticate=f'{kind} realm="{thief.url}/token",service="x"')

        def script(q):
            if q.path.endswith("/uploads/"):
                return q.send(202, Location=f"{thief.url}/take")
            return q.blob and (q.fail(404) if q.command == "HEAD" else q.redirect(f"{thief.url}{q.path}"))

        fake.script = script
        for verb, ref, why in (("pull", fake.ref, "denies access"), ("push", mine, "does not let you write")):
            fake.log.clear()
            thief.log.clear()
            p = puller(verb, *(["-f"] if verb == "pull" else []), ref, check=1)
            assert why in text(p)
            assert thief.log and not thief.requests("/token")
            for _, _, headers in fake.requests() + thief.requests():
                assert "Authorization" not in headers and "refresh_token" not in str(headers)


def test_a_redirect_on_the_same_host_keeps_the_token(puller, fake):
    fake.tokens()
    fake.script = lambda q: q.redirect("/moved" + q.path) \
        if q.blob and not q.path.startswith("/moved") else \
        (setattr(q, "path", q.path[6:]) if q.path.startswith("/moved") else False)
    puller.ok("pull", fake.ref)
    assert all(h["Authorization"].startswith("Bearer ") for _, _, h in fake.requests("/moved"))


def test_user_in_a_redirect_is_not_sent(puller, fake, image):
    with FakeRegistry(image) as cdn:
        target = cdn.url.replace("://", "://user:pass@")
        fake.script = lambda q: q.redirect(f"{target}{q.path}") if q.blob else False
        puller.ok("pull", fake.ref)
        assert all("Authorization" not in h for _, _, h in cdn.requests())


def test_no_redirect_from_https_to_http(puller, image, certificate):
    ca, cert, key = certificate
    with FakeRegistry(image, (cert, key)) as r, FakeRegistry(image) as plain:
        r.script = lambda q: q.redirect(f"{plain.url}{q.path}") if q.blob else False
        p = puller("pull", "--ca-certs", ca, f"{r.host}/a:1", check=1)
        assert "from https to plain http" in text(p) and plain.log == []
        puller.ok("pull", "--insecure", f"{r.host}/a:1")
        assert plain.log != []


@pytest.mark.parametrize("url", [
    "http://169.254.169.254/latest/meta-data/", "http://2852039166/", "http://0251.0376.0251.0376/",
    "http://[::ffff:169.254.169.254]/", "http://[fe80::1]/", "http://[fd00:ec2::254]/",
    "http://100.100.100.200/", "http://[64:ff9b::a9fe:a9fe]/", "http://168.63.129.16/machine/",
    "http://[::ffff:168.63.129.16]/", "http://[fd20:ce::254]/"])
@pytest.mark.parametrize("what", ["blob", "manifest", "realm"])
def test_no_way_to_metadata_services(puller, fake, url, what):
    def script(q):
        if what == "realm":
            return q.fail(401, WWW_Authenticate=f'Bearer realm="{url}",service="x"')
        return q.redirect(url) if getattr(q, what) else False

    fake.script = script
    p = puller("pull", fake.ref, check=1, timeout=10)
    assert "an address of this machine or its network" in text(p), text(p)
    assert_nothing_stored(puller)


def own_address():
    """An address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))
            return s.getsockname()[0]
        except OSError:
            pytest.skip("this machine has no address but loopback")


def loopback_name():
    """A name that leads to loopback without saying so."""
    for name in ("ip6-localhost", "ip6-loopback", socket.gethostname()):
        try:
            found = {a[4][0] for a in socket.getaddrinfo(name, 80)}
        except OSError:
            continue
        if found and all(a == "::1" or a.startswith("127.") for a in found):
            return name
    pytest.skip("no name of this machine leads to loopback")


@pytest.mark.parametrize("how", ["address", "name"])
def test_no_way_to_loopback_from_elsewhere(puller, image, how):
    with FakeRegistry(image, address=own_address()) as r, FakeRegistry(image) as local:
        ref = f"{r.host}/a:1"
        host = "127.0.0.1" if how == "address" else loopback_name()
        r.script = lambda q: q.redirect(f"http://{host}:{local.port}{q.path}") if q.blob else False
        p = puller("pull", "--insecure", ref, check=1)
        assert "an address of this machine or its network" in text(p)
        assert local.log == []
        r.script = None
        puller.ok("pull", "--insecure", ref)
        # Without --insecure, plain HTTP is for this machine alone.
        p = puller("pull", ref, check=1)
        assert "retrying" not in text(p)


TWO_ADDRESSES = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
/* two.test has the addresses $FIRST and $SECOND. */
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **ret)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **) =
        dlsym(RTLD_NEXT, "getaddrinfo");
    if (!node || strcmp(node, "two.test") != 0)
        return real(node, service, hints, ret);
    int r = real(getenv("FIRST"), service, hints, ret);
    struct addrinfo *last = *ret;
    while (r == 0 && last->ai_next)
        last = last->ai_next;
    return r ? r : real(getenv("SECOND"), service, hints, &last->ai_next);
}
"""


def test_no_way_to_an_address_that_the_registry_has_by_name_only(puller, image, tmp_path):
    """Its owner can list any address under its name; nothing answers there."""
    source, library = tmp_path / "two.c", tmp_path / "two.so"
    source.write_text(TWO_ADDRESSES)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    with FakeRegistry(image, address=own_address()) as r, FakeRegistry(image) as local:
        puller.env |= {"LD_PRELOAD": str(library), "FIRST": "127.0.0.1", "SECOND": own_address()}
        r.script = lambda q: q.redirect(f"http://127.0.0.1:{local.port}{q.path}") if q.blob else False
        p = puller("pull", "--insecure", f"two.test:{r.port}/a:1", check=1)
        assert r.log != [] and "an address of this machine or its network" in text(p), text(p)
        assert local.log == []


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://localhost/x", "gopher://x", "http://",
                                    "//", "javascript:1", ""])
def test_redirects_to_nowhere(puller, fake, target):
    fake.script = lambda q: q.redirect(target) if q.blob else False
    p = puller("pull", fake.ref, check=1)
    assert "root:" not in text(p) and text(p).count("error:") == 1


def test_redirects_without_end(puller, fake):
    fake.script = lambda q: q.redirect(f"{fake.url}/v2/x/{len(fake.log)}")
    p = puller("pull", fake.ref, check=1)
    assert "redirects more than 10 times" in text(p)
    assert len(fake.log) == 11


# --- lies -----------------------------------------------------------------------------------------


def test_manifest_larger_than_allowed(puller, fake):
    body = b'{"x": "' + b"a" * (100 << 20) + b'"}'
    fake.script = lambda q: q.send(200, body) if q.manifest else False
    p = puller("pull", fake.ref, check=1)
    assert "larger than 4 MiB" in text(p)
    assert fake.bytes_sent == 0  # it was cut off


def test_manifest_without_end(puller, fake):
    def endless(q):
        if not q.manifest:
            return False
        q.send_response(200)
        q.send_header("Transfer-Encoding", "chunked")
        q.end_headers()
        chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
        for _ in range(1600):
            q.wfile.write(chunk)
        return True

    fake.script = endless
    p = puller("pull", fake.ref, check=1)
    assert "larger than 4 MiB" in text(p)


def test_manifest_with_another_digest(puller, fake, image):
    digest = image.descriptor()["digest"]
    fake.script = lambda q: q.send(200, image.blob(digest) + b" ") if q.manifest else False
    p = puller("pull", f"{fake.host}/x@{digest}", check=1)
    assert "sent a different manifest" in text(p) and digest in text(p)
    fake.script = lambda q: q.send(200, image.blob(digest) + b" ", Docker_Content_Digest=digest) \
        if q.manifest else False
    p = puller("pull", fake.ref, check=1)
    assert "is damaged" in text(p)
    assert_nothing_stored(puller)


def test_wrong_configuration(puller, fake, image):
    digest = image.manifest()["config"]["digest"]
    bad = image.blob(digest).replace(b"linux", b"Linux")
    fake.script = lambda q: q.send(200, bad) if q.blob == digest else False
    p = puller("pull", fake.ref, check=1)
    assert "configuration" in text(p) and "damaged" in text(p)
    assert_nothing_stored(puller)


def test_wrong_byte_in_a_layer(puller, fake, image):
    bad = bytearray(image.blob(image.big))
    bad[SIZE // 2] ^= 0x40
    fake.script = lambda q: q.send(200, bytes(bad)) if q.blob == image.big else False
    p = puller("pull", fake.ref, check=1)
    assert f"layer {image.big[:19]}" in text(p)
    assert_nothing_stored(puller)
    fake.script = None
    puller.ok("pull", fake.ref)


def test_layer_of_another_size(puller, fake, image):
    body = image.blob(image.big)
    for other in (body + b"x", body[:-1]):
        fake.script = lambda q, b=other: q.send(200, b) if q.blob == image.big else False
        p = puller("pull", fake.ref, check=1)
        assert "the manifest says" in text(p) and image.big[:19] in text(p)
        assert_nothing_stored(puller)


def test_layer_that_goes_on(puller, fake, image):
    body = image.blob(image.big) + b"more"

    def chunked(q):
        if q.blob != image.big:
            return False
        q.send_response(200)
        q.send_header("Transfer-Encoding", "chunked")
        q.end_headers()
        q.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        return True

    fake.script = chunked
    p = puller("pull", fake.ref, check=1)
    assert "sent more than" in text(p)
    assert_nothing_stored(puller)


def index_of(*digests_and_sizes):
    return {"schemaVersion": 2, "mediaType": imagekit.OCI + "index.v1+json", "manifests": [
        {"mediaType": imagekit.OCI + "index.v1+json", "digest": d, "size": n,
         "platform": {"os": "linux", "architecture": imagekit.MACHINE}}
        for d, n in digests_and_sizes]}


def test_indexes_in_indexes(puller, fake):
    """A loop cannot be made with digests; a server that claims one, or endless nesting, can."""
    digest, size = fake.tags["1"], len(fake.find(fake.tags["1"]))
    for depth in range(1, 5):
        body = json.dumps(index_of((digest, size))).encode()
        digest, size = fake.put(body), len(body)
        fake.tags[str(depth)] = digest
    fake_ref = fake.ref[:-1]
    puller.ok("pull", fake_ref + "2")
    p = puller("pull", fake_ref + "4", check=1)
    assert "nested more than" in text(p)
    own = json.dumps(index_of((f"sha256:{'1' * 64}", 100))).encode()
    fake.script = lambda q: q.send(200, own) if q.manifest else False
    p = puller("pull", fake.ref, check=1)
    assert "a different manifest" in text(p)
    assert len(fake.requests("1111")) == 1


@pytest.mark.parametrize("status", [200, 204, 304, 400, 405, 418, 501, 999])
def test_odd_statuses(puller, fake, status):
    fake.script = lambda q: q.send(status, b"\x1b]0;evil\x07 \xff" if status > 304 else b"")
    p = puller("pull", fake.ref, check=1)
    assert b"\x1b" not in p.stderr and text(p).count("error:") == 1


def test_message_of_the_registry_is_defused(puller, fake):
    fake.script = lambda q: q.fail(403, "go \x1b[31maway\n\rnow")
    p = puller("pull", fake.ref, check=1)
    assert b"\x1b" not in p.stderr and "denies access" in text(p) and "away" in text(p)


def test_garbage_for_http(puller, fake):
    def garbage(q):
        q.wfile.write(b"\x00\xff" * 5000)
        return q.hang_up()

    fake.script = garbage
    p = puller("pull", fake.ref, check=1, timeout=90)
    assert text(p).count("error:") == 1


# --- failures -------------------------------------------------------------------------------------


def failing(times, answer, what="manifest"):
    left = [times]

    def script(q):
        if getattr(q, what) and left[0]:
            left[0] -= 1
            return answer(q)
        return False

    return script


@pytest.mark.parametrize("what", ["manifest", "blob"])
@pytest.mark.parametrize("status", [429, 500, 503])
def test_temporary_failures_are_tried_again(puller, fake, what, status):
    fake.script = failing(1, lambda q: q.fail(status, Retry_After=0), what)
    p = puller("pull", fake.ref, check=0)
    assert "retrying in" in text(p) and str(status) in text(p)


def test_rate_limits_are_explained(puller, fake):
    fake.script = lambda q: q.fail(429, "too many", Retry_After=0)
    p = puller("pull", fake.ref, check=1)
    assert "429" in text(p) and "too many" in text(p) and "msb registry login" in text(p)
    assert len(fake.log) == 5
    fake.log.clear()
    fake.script = lambda q: q.fail(429, Retry_After=3600)
    p = puller("pull", fake.ref, check=1)
    assert "3600" in text(p) and len(fake.log) == 1


def test_a_connection_that_breaks_is_taken_up_again(puller, fake, image):
    body = image.blob(image.big)
    fake.script = breaking(image, 2)
    p = puller("pull", fake.ref, check=0)
    ranges = [h.get("Range") for _, _, h in fake.requests(image.big)]
    assert len(ranges) == 3 and ranges[0] is None
    assert all(re.fullmatch(r"bytes=\d+-", r) for r in ranges[1:])
    assert fake.bytes_sent < len(body) + SIZE // 4
    assert "retrying" in text(p)


def breaking(image, times):
    """The first connections for the large layer end after a third of it."""
    body = image.blob(image.big)
    left = [times]

    def script(q):
        if q.blob != image.big or not left[0]:
            return False
        left[0] -= 1
        m = re.fullmatch(r"bytes=(\d+)-", q.headers.get("Range", ""))
        start = int(m[1]) if m else 0
        q.send_response(206 if m else 200)
        q.send_header("Content-Length", str(len(body) - start))
        if m:
            q.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        q.end_headers()
        q.wfile.write(body[start:start + SIZE // 3])
        q.wfile.flush()
        q.sent(SIZE // 3)
        return q.hang_up()

    return script


def test_servers_that_ignore_ranges(puller, fake, image):
    body = image.blob(image.big)
    left = [1]

    def script(q):
        if q.blob != image.big:
            return False
        if left[0]:
            left[0] -= 1
            return q.cut(body, SIZE // 2)
        return q.send(200, body)

    fake.script = script
    puller.ok("pull", fake.ref)


@pytest.mark.parametrize("answer", ["0-{last}/{size}", "{from_}-{last}/*", "{from_}-{last}/5", "junk"])
def test_ranges_that_lie(puller, fake, image, answer):
    body = image.blob(image.big)

    def script(q):
        m = re.fullmatch(r"bytes=(\d+)-", q.headers.get("Range", ""))
        if q.blob != image.big:
            return False
        if not m:
            return q.cut(body, SIZE // 2)
        said = answer.format(from_=m[1], last=len(body) - 1, size=len(body))
        return q.send(206, body[int(m[1]):], Content_Range=f"bytes {said}")

    fake.script = script
    p = puller("pull", fake.ref, check=1)
    assert image.big[:19] in text(p)
    assert cached(puller, "refs") == []


def test_a_server_that_falls_silent(puller, fake, image):
    """Users can set time-outs, and a stalled connection is replaced by a new one."""
    puller.env["MSB_REGISTRY_TIMEOUT"] = "1"
    gate = threading.Event()

    def silent(q):
        q.send_response(200)
        q.send_header("Content-Length", "1000")
        q.end_headers()
        q.wfile.write(b"x")
        q.wfile.flush()
        gate.wait(60)
        return q.hang_up()

    fake.script = failing(1, silent)
    p = puller("pull", fake.ref, check=0)
    gate.set()
    assert "sent nothing for 1 s" in text(p)


# --- interruptions --------------------------------------------------------------------------------


def slow(image, gate):
    """Sends half of the large layer, and the rest when the gate opens."""
    body = image.blob(image.big)

    def script(q):
        if q.blob != image.big or gate.is_set():
            return False
        q.send_response(200)
        q.send_header("Content-Length", str(len(body)))
        q.end_headers()
        q.wfile.write(body[:len(body) // 2])
        q.wfile.flush()
        q.sent(len(body) // 2)
        gate.wait(60)
        return q.hang_up()

    return script


def partial_bytes(m, image):
    path = m.home / "cache" / "partial" / image.big[7:]
    return path.stat().st_size if path.exists() else 0


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_pulls_go_on(puller, fake, image, sig):
    gate = threading.Event()
    fake.script = slow(image, gate)
    p = puller.popen("pull", fake.ref, stderr=subprocess.PIPE)
    half = len(image.blob(image.big)) // 2
    wait_for(lambda: partial_bytes(puller, image) == half, timeout=30)
    p.send_signal(sig)
    _, err = p.communicate(timeout=10)
    assert p.returncode == (-9 if sig == signal.SIGKILL else 128 + sig), err
    if sig != signal.SIGKILL:
        assert b"interrupted" in err and b"the next pull resumes from there" in err and cached(puller, "tmp") == []
    wait_for(lambda: not puller.processes())
    assert partial_bytes(puller, image) == half
    assert cached(puller, "refs") == []
    gate.set()
    puller.ok("pull", fake.ref)
    ranges = [h.get("Range") for _, _, h in fake.requests(image.big)]
    assert ranges == [None, f"bytes={half}-"]
    # Not a byte of the large layer came twice.
    assert fake.bytes_sent < 2 * half + 100000
    assert cached(puller, "partial") == []


def test_the_progress_of_a_resumed_pull_begins_where_it_stopped(puller, fake, image):
    gate = threading.Event()
    fake.script = slow(image, gate)
    p = puller.popen("pull", "-q", fake.ref)
    half = len(image.blob(image.big)) // 2
    wait_for(lambda: partial_bytes(puller, image) == half, timeout=30)
    p.kill()
    p.wait()
    fake.script = lambda q: q.blob == image.big and not gate.wait(60)  # what is shown before the first byte
    with Terminal([puller.exe, "pull", fake.ref], puller.env, cols=100) as t:
        t.read_until(image.big[7:19].encode())
        while b"Downloading" not in (shown := t.read_until(b"\n")):
            t.read_until(image.big[7:19].encode())
        gate.set()
        t.read_until(b"Pulled")
        assert t.p.wait(timeout=20) == 0
    assert b" / " in shown and b" 0 B / " not in shown


def test_interrupted_while_another_pull_has_the_layer(puller, fake, image):
    gate = threading.Event()
    fake.script = slow(image, gate)
    first = puller.popen("pull", "-q", fake.ref)
    fake.wait_for_request(image.big)
    second = puller.popen("pull", "-q", fake.ref, stderr=subprocess.PIPE)
    wait_for(lambda: len(fake.requests("/manifests/")) == 2)
    wait_for(lambda: len(list(pathlib.Path(f"/proc/{second.pid}/task").iterdir())) > 1)
    second.send_signal(signal.SIGINT)
    assert second.wait(timeout=20) == 130
    second.stderr.close()
    gate.set()
    assert first.wait(timeout=60) == 0
    assert cached(puller, "partial") == []


def test_a_damaged_partial_file_does_no_harm(puller, fake, image):
    body = image.blob(image.big)
    d = puller.home / "cache" / "partial"
    d.mkdir(parents=True, mode=0o700)
    (puller.home / "cache").chmod(0o700)
    for junk in (body[:SIZE // 2][:-1] + b"?", b"z" * (2 * SIZE), b"\0" * 400000):
        (d / image.big[7:]).write_bytes(junk)
        puller.ok("pull", "-f", fake.ref)
        assert cached(puller, "partial") == []
    (d / image.big[7:]).symlink_to("/etc/passwd")
    before = pathlib.Path("/etc/passwd").read_bytes()
    puller.ok("pull", "-f", fake.ref)
    assert pathlib.Path("/etc/passwd").read_bytes() == before


# --- mirrors and proxies --------------------------------------------------------------------------


def mirrors(m, registry, *urls):
    path = m.home / "registries.json"
    path.write_text(json.dumps({"registries": {registry: {"mirrors": list(urls)}}}))


def test_mirrors_come_first(puller, fake, image):
    with FakeRegistry(image) as mirror:
        mirrors(puller, fake.host, f"{mirror.url}/cache/hub")
        puller.ok("pull", fake.ref)
        assert fake.log == []
        assert all("/v2/cache/hub/team/app/" in p for _, p, _ in mirror.requests())


def test_mirrors_that_cannot_help(puller, fake, image):
    with FakeRegistry() as empty, FakeRegistry(image) as partial:
        partial.script = lambda q: q.fail(404) if q.blob == image.big else False
        mirrors(puller, fake.host, "http://localhost:1", empty.url, partial.url)
        p = puller("pull", fake.ref, check=0)
        assert text(p).count("mirror localhost:1") == 1  # it is not asked again
        assert len(empty.log) == 1
        assert [p for _, p, _ in fake.requests()] == [f"/v2/team/app/blobs/{image.big}"]


def test_mirrors_that_lie(puller, fake, image):
    digest = image.descriptor()["digest"]
    with FakeRegistry(image) as mirror:
        mirror.script = lambda q: q.send(200, b'{"schemaVersion":2}') if q.manifest else False
        mirrors(puller, fake.host, mirror.url)
        p = puller("pull", f"{fake.host}/team/app@{digest}", check=0)
        assert "a different manifest" in text(p) and len(fake.requests("/manifests/")) == 1


def test_proxy_from_the_environment(puller, image):
    """The name exists nowhere: only a proxy can reach it."""
    with FakeRegistry(image) as proxy:
        def script(q):
            m = re.fullmatch(r"http://registry\.invalid(/.*)", q.path)
            if m:
                q.path = m[1]
            return False

        proxy.script = script
        puller.env["http_proxy"] = proxy.url
        puller.ok("pull", "--insecure", "registry.invalid/a:1")
        assert proxy.requests("http://registry.invalid/v2/a/manifests/1")


def test_no_proxy_for_this_machine(puller, fake):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        puller.env[name] = "http://localhost:1"
    puller.ok("pull", fake.ref)
