"""Versions of workspaces: checkpoint, log, diff, restore, prune."""
import json
import os
import signal
import subprocess

import pytest

from conftest import wait_for
from fakes3 import BUCKET, FakeS3
from sdkkit import client_of, go, sync_client_of
from test_workspace_s3 import KEYS, tree


@pytest.fixture
def ws(msb):
    """A workspace, and its directory."""
    msb.ok("workspace", "create", "w")
    return msb.home / "workspaces" / "w" / "data"


def checkpoint(msb, *args):
    return int(msb.ok("workspace", "checkpoint", "w", *args))


def diff(msb, *args):
    found = json.loads(msb.ok("workspace", "diff", "w", *args, "--format", "json"))
    return {d["path"]: d["change"] for d in found}


def log(msb):
    return json.loads(msb.ok("workspace", "log", "w", "--format", "json"))


def objects(ws):
    return {p.parent.name + p.name: p for p in (ws.parent / "versions" / "objects").glob("*/*")}


def fill(ws):
    (ws / "src" / "deep").mkdir(parents=True)
    (ws / "src" / "run").write_text("#!/bin/sh\n")
    (ws / "src" / "run").chmod(0o750)
    (ws / "src" / "deep" / "link").symlink_to("../run")
    (ws / "copy").write_text("#!/bin/sh\n")
    (ws / "empty").mkdir()
    (ws / "gone").write_text("1")
    os.utime(ws / "gone", ns=(10**18, 10**18 + 7))


def test_versions_come_back(msb, ws):
    fill(ws)
    first = tree(ws)
    p = msb("workspace", "diff", "w", check=1)
    assert b"the workspace has no versions" in p.stderr and b"msb workspace checkpoint" in p.stderr
    assert b"no versions" in msb("workspace", "log", "w", check=0).stderr
    assert checkpoint(msb, "-m", "the first") == 1 and checkpoint(msb) == 1 and diff(msb) == {}
    assert len(objects(ws)) == 3, "one for each content"
    (ws / "src" / "run").write_text("#!/bin/sh\necho 2\n")
    (ws / "empty").rmdir()
    (ws / "gone").unlink()
    (ws / "copy").unlink()
    (ws / "copy").mkdir()
    (ws / "copy" / "x").write_text("a directory now")
    (ws / "src" / "deep" / "link").unlink()
    (ws / "src" / "deep" / "link").write_text("a file now")
    changes = {"src/run": "changed", "empty": "removed", "gone": "removed", "copy": "changed", "copy/x": "added",
               "src/deep/link": "changed"}  # fmt: skip
    assert diff(msb) == changes and "changed  src/run\n" in msb.ok("workspace", "diff", "w")
    assert checkpoint(msb) == 2 and diff(msb, "--from", "1") == diff(msb, "--from", "1", "--to", "2") == changes
    second = tree(ws)
    (ws / "new").write_text("not in any version")
    msb.ok("workspace", "restore", "w", "1")
    assert tree(ws) == first and (ws / "gone").stat().st_mtime_ns == 10**18 + 7
    # What was there is a version, too.
    assert [(v["id"], v["message"], v["files"]) for v in log(msb)] == \
        [(3, "before a restore", 4), (2, None, 3), (1, "the first", 4)]
    assert "the first" in msb.ok("workspace", "log", "w") and msb.ok("workspace", "log", "-q", "w") == "3\n2\n1\n"
    msb.ok("workspace", "restore", "w", "3")
    assert tree(ws) == {**second, "new": ("file", 0o644, b"not in any version")}
    # Old ones go, with what only they have.
    before = objects(ws)
    msb.ok("workspace", "prune", "w", "--keep", "1")
    assert [v["id"] for v in log(msb)] == [4] and len(objects(ws)) < len(before)
    (ws / "src" / "run").unlink()
    msb.ok("workspace", "restore", "w", "4")
    assert tree(ws) == first
    p = msb("workspace", "restore", "w", "1")
    assert p.returncode == 1 and b"no such version: 1" in p.stderr
    for bad in (["restore", "w", "x"], ["restore", "w", "0"], ["prune", "w", "--keep", "0"]):
        assert msb("workspace", *bad).returncode in (1, 2), bad
    (ws / "large").write_bytes(os.urandom(2 << 20))
    p = msb("workspace", "checkpoint", "w", "--max", "1M", check=1)
    assert b"take more than 1 MiB" in p.stderr and b"msb workspace prune" in p.stderr
    assert checkpoint(msb, "--max", "4M") == 6


def test_ignored_files_and_damage(msb, ws):
    fill(ws)
    (ws / ".msbignore").write_text("*.log\n")
    (ws / "empty" / "x.log").write_text("stays")
    assert checkpoint(msb) == 1 and "empty/x.log" not in diff(msb, "--from", "1")
    (ws / "empty" / "x.log").write_text("stays as it is")
    (ws / "gone").write_text("2")
    msb.ok("workspace", "restore", "w", "1")
    assert (ws / "empty" / "x.log").read_text() == "stays as it is" and (ws / "gone").read_text() == "1"
    (ws / "gone").write_text("2")
    for path in objects(ws).values():
        path.chmod(0o600)
        path.write_bytes(b"damaged")
    p = msb("workspace", "restore", "w", "1", check=1)
    assert b"the stored content of 'gone' is damaged" in p.stderr and (ws / "gone").read_text() == "2"
    # Links that a guest makes lead nowhere.
    (ws / "src" / "run").unlink()
    (ws / "src" / "deep" / "link").unlink()
    (ws / "src" / "deep").rmdir()
    (ws / "src").rmdir()
    (ws / "src").symlink_to(ws.parent)
    msb.ok("workspace", "prune", "w", "--keep", "1")
    assert checkpoint(msb) > 1 and sorted(os.listdir(ws.parent)) == ["data", "versions", "workspace.json"]


def test_killed_at_any_moment(msb, ws):
    """A version is whole, or not there; a restore is finished by another one."""
    for i in range(60):
        (ws / f"f{i}").write_text(f"1 {i}")
    checkpoint(msb)
    first = tree(ws)
    for i in range(60):
        (ws / f"f{i}").write_text(f"2 {i}")
    second = tree(ws)
    objects_dir = ws.parent / "versions"
    for verb in (["checkpoint", "w"], ["restore", "w", "1"], ["restore", "w", "1"]):
        p = subprocess.Popen([msb.exe, "workspace", *verb], env=msb.env, stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: any((objects_dir / "new").glob("*")) or p.poll() is not None)
        p.send_signal(signal.SIGKILL)
        p.wait()
        content = tree(ws)
        assert all(content[n] in (first[n], second[n]) for n in first), "each file is the old or the new one"
    ids = [v["id"] for v in log(msb)]
    msb.ok("workspace", "restore", "w", "1")
    assert {k: v for k, v in tree(ws).items() if "recovered-" not in k} == first
    for v in ids:
        assert len(json.loads((objects_dir / f"{v}.tree").read_text())["entries"]) >= 60


def test_from_python_and_in_a_bucket(msb):
    server = FakeS3()
    try:
        msb.env.update(KEYS)
        msb.ok("workspace", "create", "w", "--s3", f"s3://{BUCKET}/p", "--endpoint", server.url)

        async def main():
            w = client_of(msb).workspace("w")
            await w.files.write("a", "1")
            assert await w.checkpoint("one") == 1
            await w.files.write("a", "2")
            assert await w.diff() == {"a": "changed"}
            assert server.objects["p/a"].data == b"2"
            await w.restore(1)
            assert server.objects["p/a"].data == b"1"
            assert [v["id"] for v in await w.log()] == [2, 1]

        go(main())
        w = sync_client_of(msb).workspace("w")
        assert w.diff(1, 2) == {"a": "changed"} and w.checkpoint() == 3 and w.log()[0]["id"] == 3
        w.restore(2)
        assert w.files.read("a") == b"2"
    finally:
        server.close()
