"""Workspaces in buckets: what is bounded, and what waits."""

import os
import time

import pytest

from conftest import wait_for
from fakes3 import BUCKET, FakeS3
from guest import sh
from test_workspace_s3 import data, sync, with_workspace


@pytest.fixture
def s3(msb):
    yield from with_workspace(msb, FakeS3(page=1000))


def page(rows, token=""):
    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    return 200, f"<ListBucketResult>{more}{rows}</ListBucketResult>".encode(), {}


def test_listings_without_an_end(msb, s3):
    """Pages that hold nothing, with another token each; and more objects than a workspace can have."""
    pages = []

    def empty(q):
        pages.append(q)
        return page("", f"token {len(pages)}")

    s3.listing = empty
    assert b"the server's listing does not end" in msb("workspace", "sync", "w", check=1).stderr
    assert len(pages) == 2000

    def many(q):
        pages.append(q)
        n = len(pages) * 40_000
        return page("".join(f"<Contents><Key>pre/{i:08}</Key><Size>0</Size></Contents>" for i in range(n, n + 40_000)), f"{n}")

    pages.clear()
    s3.listing = many
    assert b"there are more than 200000 objects" in msb("workspace", "sync", "w", check=1).stderr
    assert len(pages) < 20
    # A key that is longer than any can be, and a page that is more than one can hold.
    s3.listing = lambda q: page(f"<Contents><Key>pre/{'k' * (1 << 20)}</Key><Size>0</Size></Contents>")
    assert b"the server's listing is malformed" in msb("workspace", "sync", "w", check=1).stderr
    s3.listing = lambda q: page("<Contents></Contents>" * (1 << 19))
    assert b"the server's answer is too long" in msb("workspace", "sync", "w", check=1).stderr


def test_a_server_says_when_to_ask_again(msb, s3):
    asked = []

    def busy(method, key, nth):
        if key == "pre/f":
            asked.append(time.monotonic())
        return 503 if key == "pre/f" and nth == 1 else None

    s3.faults.append(busy)
    s3.error_headers = {"retry-after": "3"}
    (data(msb, "w") / "f").write_text("1")
    sync(msb, "w")
    assert len(asked) == 2 and asked[1] - asked[0] >= 3  # without that, it would be 0.2 s at most
    assert s3.objects["pre/f"].data == b"1"


def test_the_cache_keeps_what_was_used_last(msb, s3):
    cache = msb.home / "cache" / "objects"
    for name in ("used", "unused", "new"):
        (data(msb, "w") / name).write_bytes(name.encode() * 1000)
    sync(msb, "w")

    def fetch(name):
        msb.ok("workspace", "rm", "-q", "w")
        msb.ok("workspace", "create", "w", "--s3", f"s3://{BUCKET}/pre", "--endpoint", s3.url)
        s3.seen.clear()
        msb.create("box", "--workspace", "w")
        assert sh(msb, "box", f"cat /workspace/{name}") == name * 1000
        msb.ok("rm", "-qf", "box")
        return s3.seen["GET", f"pre/{name}"]

    assert fetch("used") == 1
    (used,) = cache.iterdir()
    assert fetch("unused") == 1
    (unused,) = set(cache.iterdir()) - {used}
    # Both are older than what takes nearly all of the room, until one of them is used again.
    for i, p in enumerate((used, unused)):
        os.utime(p, (1000 + i, 1000 + i))
    assert fetch("used") == 0 and used.stat().st_mtime > 1000 and unused.stat().st_mtime == 1001

    def fill(i, mib):
        path = cache / f"sha256-{i:064}"
        path.touch()
        os.truncate(path, mib << 20)
        os.utime(path, (2000 + i, 2000 + i))

    for i in range(5):
        fill(i, 408)
    assert fetch("new") == 1 and len(list(cache.iterdir())) == 8  # 2040 MiB, of 2048
    (new,) = [p for p in cache.iterdir() if p.stat().st_size == 3000]
    new.unlink()
    fill(5, 9)
    assert fetch("new") == 1  # the oldest go, until nine tenths are left
    assert {p.name for p in cache.iterdir()} == {used.name, new.name, *(f"sha256-{i:064}" for i in range(1, 6))}
    assert fetch("used") == 0 and fetch("new") == 0


def test_changes_are_uploaded_when_nothing_happens(msb, s3):
    written = []
    s3.before = lambda method, key, query: written.append(time.monotonic()) if (method, key) == ("PUT", "pre/f") else None
    msb.create("box", "--workspace", "w", "--workspace-sync", "idle")
    begun = time.monotonic()
    sh(msb, "box", "echo 1 >/workspace/f; mkdir /workspace/d")
    wait_for(lambda: s3.keys() == ["pre/f"], timeout=120)
    assert s3.objects["pre/f"].data == b"1\n" and written[0] - begun >= 30
    # The last changes go at once when it ends by itself.
    msb("exec", "-q", "box", "--", "sh", "-c", "echo 2 >/workspace/g; sync; poweroff -f")
    wait_for(lambda: "pre/g" in s3.keys() and not msb.processes(), timeout=60)
