"""Workspaces in buckets: ways to the server, and what programs of real life do in one."""

import json
import os
import sqlite3
import tarfile
import time

import pytest

from conftest import need, wait_for
from fakes3 import BUCKET, FakeS3, Object
from guest import PATIENCE, sh
from imagekit import make_ca
from test_workspace_later import fetched, unlisted
from test_workspace_s3 import KEYS, data, sync, tree


@pytest.fixture
def s3(msb):
    server = FakeS3(page=1000)
    msb.env.update(KEYS)
    yield server
    server.close()


def create(msb, s3, name, *args, endpoint=None):
    return msb("workspace", "create", name, "--s3", f"s3://{BUCKET}/pre", "--endpoint", endpoint or s3.url, *args)


# --- the way ----------------------------------------------------------------------------------------


def test_an_endpoint_with_tls(msb, tmp_path):
    ca, certificate, key = make_ca(tmp_path)
    server = FakeS3(certificate=(certificate, key))
    msb.env.update(KEYS)
    p = create(msb, server, "w")
    assert p.returncode == 1 and b"certificate" in p.stderr and not server.objects
    assert create(msb, server, "w", "--ca-certs", ca).returncode == 0
    (data(msb, "w") / "f").write_text("1")
    sync(msb, "w")
    assert server.objects["pre/f"].data == b"1"
    server.close()


def test_by_host_name_and_through_a_proxy(msb, s3):
    """The names exist for the proxy alone."""
    msb.env["http_proxy"] = s3.url
    for style, host in (("virtual", f"{BUCKET}.s3.invalid:9000"), ("path", "s3.invalid:9000")):
        assert create(msb, s3, style, "--addressing", style, endpoint="http://s3.invalid:9000").returncode == 0
        (data(msb, style) / style).write_text("1")
        sync(msb, style)
        assert s3.hosts == {host} and s3.objects[f"pre/{style}"].data == b"1"
        s3.hosts.clear()
    # A sandbox's contents come the same way; without the proxy there is none.
    msb.create("box", "--workspace", "path")
    assert sh(msb, "box", "cat /workspace/virtual") == "1"
    msb.env["no_proxy"] = "s3.invalid"
    assert b"cannot" in msb("workspace", "sync", "path", check=1).stderr


def test_a_server_that_is_busy_and_has_another_time(msb, s3):
    s3.ahead = -7200
    assert create(msb, s3, "w").returncode == 0
    for name in ("a", "b"):
        (data(msb, "w") / name).write_text(name)
    s3.seen.clear()
    s3.faults.append(lambda method, key, nth: {1: 429, 2: 503}.get(nth) if key in ("pre/a", "pre/b") else None)
    sync(msb, "w")
    assert s3.objects["pre/a"].data == b"a" and s3.seen["PUT", "pre/a"] == 3
    (data(msb, "w") / "c").write_text("c")
    s3.ahead = 7200
    sync(msb, "w")
    assert s3.objects["pre/c"].data == b"c"


def test_bandwidth_is_limited(msb, s3):
    for bad in ("x", "1K"):
        p = create(msb, s3, "w", "--bandwidth", bad)
        assert p.returncode == 2 and b"at least 16K" in p.stderr
    assert create(msb, s3, "w", "--bandwidth", "256K").returncode == 0
    (data(msb, "w") / "f").write_bytes(b"x" * (256 << 10))
    start = time.monotonic()
    sync(msb, "w")
    assert time.monotonic() - start > 0.9  # it may take longer
    msb.ok("workspace", "rm", "-q", "w")
    assert create(msb, s3, "w", "--bandwidth", "256K").returncode == 0
    start = time.monotonic()
    sync(msb, "w")
    assert len((data(msb, "w") / "f").read_bytes()) == 256 << 10 and time.monotonic() - start > 0.9


# --- sizes ------------------------------------------------------------------------------------------


class Zeros:
    """So many bytes that nobody has to hold."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, span):
        at, end, _ = span.indices(self.size)
        return bytes(end - at)


def test_ten_thousand_files_and_a_huge_one(msb, s3):
    for i in range(10000):
        s3.objects[f"pre/d{i // 100:02}/f{i}"] = Object(b"%d\n" % i, {}, f"etag{i}")
    s3.objects["pre/huge"] = Object(Zeros(2 << 30), {}, "huge")
    assert create(msb, s3, "w").returncode == 0
    s3.log.clear()
    msb.create("box", "--workspace", "w")
    wait_for((data(msb, "w").parent / "s3-base.json").exists, timeout=PATIENCE)  # it lists while the guest runs
    # Eleven pages, some of them for the next range as well, and nothing else; no file is made.
    assert {(m, k) for m, k, _ in s3.log} == {("GET", "")} and 11 <= len(s3.log) <= 16 and list(data(msb, "w").iterdir()) == []
    assert sh(msb, "box", "cd /workspace; ls | wc -l; cat d07/f777; ls d07 | wc -l; stat -c %s huge") == f"101\n777\n100\n{2 << 30}\n"
    assert len(unlisted(data(msb, "w"))) == 99 and fetched(s3) == ["d07/f777"]
    assert sh(msb, "box", "cd /workspace; head -c 3 huge | wc -c; tail -c 3 huge | wc -c") == "3\n3\n"
    assert len(s3.ranges) <= 5 and (data(msb, "w") / "huge").stat().st_blocks <= 6 << 14
    s3.log.clear()
    msb.ok("stop", "-q", "box")
    msb.ok("start", "-q", "box")
    assert {m for m, _, _ in s3.log} == {"GET"} and [k for _, k, _ in s3.log].count("") <= 32
    # The limit of what the guest may add.
    msb.ok("rm", "-qf", "box")
    msb.create("box", "--workspace", "local", "--workspace-max", "2M")
    p = msb("exec", "box", "--", "dd", "if=/dev/zero", "of=/workspace/f", "bs=1M", "count=4")
    assert p.returncode != 0 and b"quota" in p.stderr.lower(), p.stderr
    assert (data(msb, "local") / "f").stat().st_size <= 2 << 20


# --- programs ---------------------------------------------------------------------------------------

MAKE = """
    export HOME=/root npm_config_cache=/tmp/npm; cd /workspace
    git config --global user.email a@b.c; git config --global user.name n
    git init -q r; cd r; for f in 1 2 3 4 5; do echo $f >$f; done; git add -A; git commit -qm one; cd ..
    git clone -q r clone; cd clone; echo more >>1; git commit -qam two; git gc -q; cd ..
    python3 -c "
import sqlite3
db = sqlite3.connect('wal.db'); db.execute('pragma journal_mode=wal'); db.execute('create table t (v)')
with db: db.executemany('insert into t values (?)', [(str(i) * 50,) for i in range(500)])
db.close()"
    python3 -m venv --without-pip venv; venv/bin/python -c 'import sys; print(sys.prefix)'
    npm install --offline --no-audit --no-fund --loglevel=error >/dev/null; node -e "console.log(require('p').x)"
    ls node_modules/.bin
"""
LOOK = """
    export HOME=/root; cd /workspace; git config --global --add safe.directory '*'
    git -C clone status --porcelain; git -C clone fsck --strict 2>/dev/null; git -C clone log --oneline | wc -l
    python3 -c "
import sqlite3
db = sqlite3.connect('wal.db'); print(*db.execute('pragma integrity_check').fetchone(), *db.execute('select count(*) from t').fetchone())"
    venv/bin/python -c 'import sys; print(sys.prefix)'; node -e "console.log(require('p').x)"; node_modules/.bin/p
"""


def test_programs_of_real_life(msb, s3, host_tools, tmp_path):
    """Made in one workspace, used in another one that has it from the bucket alone."""
    need("git", "python3", "node", "npm")
    assert create(msb, s3, "w").returncode == 0
    d = data(msb, "w")
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "package.json").write_text(json.dumps({"name": "p", "version": "1.0.0", "main": "i.js", "bin": "i.js"}))
    (tmp_path / "p" / "i.js").write_text("#!/usr/bin/env node\nexports.x = 42; if (require.main === module) console.log('ran')\n")
    with tarfile.open(d / "p.tgz", "w:gz") as t:
        t.add(tmp_path / "p", "package")
    (d / "package.json").write_text(json.dumps({"name": "top", "version": "1.0.0", "dependencies": {"p": "file:p.tgz"}}))
    args = ("run", "-q", "-m", "1G", "-v", "/usr:/usr:ro")
    out = msb.ok(*args, "--workspace", "w", host_tools, "--", "/bin/sh", "-ec", MAKE, timeout=PATIENCE * 5)
    assert out.split() == ["/workspace/venv", "42", "p"]
    assert create(msb, s3, "other").returncode == 0
    out = msb.ok(*args, "--workspace", "other", host_tools, "--", "/bin/sh", "-ec", LOOK, timeout=PATIENCE * 5)
    assert out.split() == ["2", "ok", "500", "/workspace/venv", "42", "ran"]
    sync(msb, "other")
    assert os.readlink(data(msb, "other") / "venv" / "bin" / "python3") == "/usr/bin/python3"
    db = sqlite3.connect(data(msb, "other") / "wal.db")
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    db.close()
    sync(msb, "w")
    assert tree(d) == tree(data(msb, "other"))
