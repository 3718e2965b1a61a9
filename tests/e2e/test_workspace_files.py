"""Files of workspaces without a sandbox: ls, get, put and rm, and the same in the SDK; on local workspaces and on
those in buckets."""
import errno
import json
import os

import pytest

from fakes3 import BUCKET, FakeS3
from sdkkit import client_of, go, sdk, sync_client_of
from test_workspace_s3 import KEYS


@pytest.fixture
def ws(msb):
    """A workspace, and its directory."""
    msb.ok("workspace", "create", "w")
    return msb.home / "workspaces" / "w" / "data"


def listed(msb, *args):
    return {f["path"]: f for f in json.loads(msb.ok("workspace", "ls", *args, "--format", "json"))}


def refused(msb, *args, code=1, **kw):
    p = msb("workspace", *args, **kw)
    assert p.returncode == code, p
    return p.stderr.decode()


def test_in_and_out(msb, ws, tmp_path):
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "run").write_text("#!/bin/sh\n")
    (tmp_path / "src" / "run").chmod(0o750)
    (tmp_path / "src" / "deep" / "link").symlink_to("../run")
    os.utime(tmp_path / "src" / "run", ns=(10**18, 10**18 + 7))
    msb.ok("workspace", "put", tmp_path / "src", "w:")
    msb.ok("workspace", "put", tmp_path / "src" / "run", "w:not/there/yet")
    msb("workspace", "put", "-", "w:/from stdin", input=b"\0raw\n", check=0)
    assert (ws / "src" / "run").stat().st_mtime_ns == 10**18 + 7 and (ws / "not" / "there" / "yet").exists()
    assert msb("workspace", "get", "w:from stdin", "-", check=0).stdout == b"\0raw\n"
    assert msb("workspace", "get", "w:src/deep/link", "-", check=0).stdout == b"#!/bin/sh\n"
    # The listing: one level, all of it, a single file.
    assert list(listed(msb, "w")) == list(listed(msb, "w:")) == ["from stdin", "not", "src"]
    everything = listed(msb, "-R", "w:./src//")
    assert list(everything) == ["src/deep", "src/deep/link", "src/run"]
    run = everything["src/run"]
    assert (run["type"], run["mode"], run["size"], run["modified_at"]) == \
        ("file", "0750", 10, "2001-09-09T01:46:40.000000007Z")
    assert everything["src/deep/link"]["target"] == "../run" and everything["src/deep"]["type"] == "dir"
    assert list(listed(msb, "w:src/run")) == ["src/run"]
    assert "src/deep/link -> ../run" in msb.ok("workspace", "ls", "-R", "w")
    assert msb.ok("workspace", "ls", "-q", "w:src") == "src/deep\nsrc/run\n"
    # Out again, by the rules of cp.
    out = tmp_path / "out"
    out.mkdir()
    msb.ok("workspace", "get", "w:src", out)
    msb.ok("workspace", "get", "w:src/.", tmp_path / "new")
    for place in (out / "src", tmp_path / "new"):
        assert os.readlink(place / "deep" / "link") == "../run" and (place / "run").stat().st_mode & 0o777 == 0o750
    # A file keeps its permissions when it is replaced, and its links do not lead to what they name.
    msb("workspace", "put", "-", "w:src/run", input=b"2", check=0)
    assert (ws / "src" / "run").stat().st_mode & 0o777 == 0o750
    msb("workspace", "put", "-", "w:src/deep/link", input=b"3", check=0)
    assert (ws / "src" / "run").read_bytes() == b"2" and (ws / "src" / "deep" / "link").read_bytes() == b"3"
    # rm
    assert "is a directory" in refused(msb, "rm", "w:src")
    msb.ok("workspace", "rm", "-r", "w:src", "w:from stdin")
    assert list(listed(msb, "w")) == ["not"]
    msb.ok("workspace", "rm", "-r", "w:not")
    assert "The directory is empty." in msb("workspace", "ls", "w", check=0).stderr.decode()


def test_nothing_leads_out(msb, ws, tmp_path):
    """A guest makes the links."""
    secret = tmp_path / "secret"
    secret.write_text("the host's")
    (tmp_path / "dir").mkdir()
    (ws / "abs").symlink_to(secret)
    (ws / "up").symlink_to("../../../../../../../../../../../../etc")
    (ws / "dir").symlink_to(tmp_path / "dir")
    (ws / "self").symlink_to("/proc/self/root")
    os.mkfifo(ws / "pipe")
    for path in ("abs", "up/passwd", "dir", "self/etc/passwd", "../workspace.json", "../../w/workspace.json"):
        for args in ((f"w:{path}", "-"), (f"w:{path}", tmp_path / "got")):
            assert "leads out of the workspace" in refused(msb, "get", *args), path
        assert not (tmp_path / "got").exists()
    for path in ("dir/new", "up/new", "../new", "self/tmp/new"):
        assert "leads out of the workspace" in refused(msb, "put", "-", f"w:{path}", input=b"x"), path
        assert "leads out of the workspace" in refused(msb, "put", secret, f"w:{path}"), path
        assert "leads out of the workspace" in refused(msb, "rm", f"w:{path}"), path
    assert "leads out" in refused(msb, "ls", "w:up") and "leads out" in refused(msb, "put", secret, "w:abs")
    assert os.listdir(tmp_path / "dir") == [] and not (ws.parent / "new").exists()
    assert refused(msb, "get", "w:pipe", "-") and refused(msb, "get", "w:pipe", tmp_path / "got")
    # Links themselves can be looked at, replaced by content, copied within a tree, and removed.
    assert listed(msb, "w")["abs"]["target"] == str(secret)
    msb("workspace", "put", "-", "w:abs", input=b"mine", check=0)
    assert (ws / "abs").read_bytes() == b"mine" and secret.read_text() == "the host's"
    msb.ok("workspace", "rm", "w:up", "w:self", "w:pipe", "w:dir")
    assert os.listdir(ws) == ["abs"] and (tmp_path / "dir").is_dir()
    # Nor does a copy go into itself.
    assert "into itself" in refused(msb, "put", ws, "w:x") and "into itself" in refused(msb, "put", msb.home, "w:x")
    assert "into itself" in refused(msb, "get", "w:.", ws / "x")


def test_what_cannot_be_done_is_said(msb, ws, tmp_path):
    (ws / "bad\n\xff".encode("latin-1").decode("utf-8", "surrogateescape")).touch()
    assert list(listed(msb, "w")) == ["bad??"] and "bad??" in msb.ok("workspace", "ls", "w")
    assert "no such file in the workspace: x" in refused(msb, "get", "w:x", "-")
    assert "no such file in the workspace: x" in refused(msb, "get", "w:x", tmp_path)
    assert "no such file in the workspace: x" in refused(msb, "rm", "w:x")
    assert "workspace not found: nope" in refused(msb, "ls", "nope")
    assert "msb workspace rm w" in refused(msb, "rm", "w:") and ws.exists()
    assert "NAME:PATH" in refused(msb, "get", "w", "-", code=2)
    assert "Is a directory" in refused(msb, "put", "-", "w:d/", input=b"")
    assert "--recursive requires a workspace" in refused(msb, "ls", "-R", code=2)


def test_from_python(msb, ws, tmp_path):
    async def main():
        w = client_of(msb).workspace("w")
        await w.files.write("a/b.txt", "über")
        assert await w.files.read("a/b.txt") == "über".encode() and await w.files.read_text("a/b.txt") == "über"
        assert [f.path for f in await w.files.list(recursive=True)] == ["a", "a/b.txt"]
        (info,) = await w.files.list("a")
        assert info.is_file and info.name == "b.txt" and info.size == 5 and info.mode & 0o777 == 0o644
        assert abs(info.mtime - (ws / "a" / "b.txt").stat().st_mtime) < 1e-3 and info.uid == os.geteuid()
        with pytest.raises(sdk.FileError) as e:
            await w.files.read("a/b.txt", max_bytes=4)
        assert e.value.errno == errno.EFBIG
        with pytest.raises(FileNotFoundError):
            await w.files.read("image of a secret")
        with pytest.raises(sdk.FileNotFound):
            await w.files.remove("x")
        await w.files.remove("x", missing_ok=True)
        await w.files.remove("a", recursive=True)
        assert await w.files.list() == [] and (await w.info())["name"] == "w"
        assert await w.status() == {}
        with pytest.raises(sdk.UsageError):
            client_of(msb).workspace("../x")

    go(main())
    w = sync_client_of(msb).workspace("w")
    (tmp_path / "f").write_text("1")
    w.files.upload(tmp_path / "f", "g")
    w.files.download("g", tmp_path / "h")
    assert (tmp_path / "h").read_text() == "1" and w.files.read_text("g") == "1"
    w.files.write("z", b"")
    assert [f.name for f in w.files.list()] == ["g", "z"]
    w.files.remove("z")
    w.remove()
    assert not ws.exists()


def test_in_a_bucket(msb):
    """What is looked at is what is in the bucket, and what is changed is there afterwards."""
    server = FakeS3()
    try:
        msb.env.update(KEYS)
        msb.ok("workspace", "create", "b", "--s3", f"s3://{BUCKET}/p", "--endpoint", server.url)
        server.put("p/theirs/x", b"1")
        msb("workspace", "put", "-", "b:theirs/y", input=b"2", check=0)
        assert server.objects["p/theirs/y"].data == b"2"
        server.put("p/z", b"3")
        assert list(listed(msb, "-R", "b")) == ["theirs", "theirs/x", "theirs/y", "z"]
        server.put("p/z", b"4")
        assert msb("workspace", "get", "b:z", "-", check=0).stdout == b"4"
        msb.ok("workspace", "rm", "b:theirs/x")
        assert "p/theirs/x" not in server.objects
        # From Python, too; and what is missing there goes from here if that is said to be meant.
        server.objects.clear()
        with pytest.raises(sdk.MsbError, match="the bucket has lost its manifest"):
            go(client_of(msb).workspace("b").sync())
        sync_client_of(msb).workspace("b").sync(emptied=True)
        assert os.listdir(msb.home / "workspaces" / "b" / "data") == []
        server.put("p/z", b"4")
        go(client_of(msb).workspace("b").sync(emptied=False))
    finally:
        server.close()
    # Without the server: what is there, and a warning.
    p = msb("workspace", "get", "b:z", "-", check=0, timeout=90)
    assert p.stdout == b"4" and b"the workspace is as of the last sync" in p.stderr
