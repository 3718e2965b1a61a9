"""Workspaces in buckets: a strict server of our own (fakes3.py), and s3rver and moto with boto3 looking on from
outside. Servers that break and lie are in test_workspace_faults.py."""

import json
import os
import re
import shutil
import subprocess
import threading

import pytest

import imagekit
from conftest import wait_for
from fakes3 import BUCKET, KEY_ID, REGION, SECRET
from guest import sh
from test_mcp import packages

KEYS = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION}


def two_hosts(msb, s3):
    msb.env.update(KEYS)
    for name in ("a", "b"):
        msb.ok("workspace", "create", name, "--s3", f"s3://{BUCKET}/pre", "--endpoint", s3.url)
    return data(msb, "a"), data(msb, "b")


@pytest.fixture
def two(msb, s3):
    """Two workspaces on one prefix, as on two hosts."""
    return two_hosts(msb, s3)


def with_workspace(msb, server):
    """For a fixture: a server with a workspace, w."""
    msb.env.update(KEYS)
    msb.ok("workspace", "create", "w", "--s3", f"s3://{BUCKET}/pre", "--endpoint", server.url)
    yield server
    server.close()


def data(msb, name):
    return msb.home / "workspaces" / name / "data"


def sync(msb, *names):
    return msb("workspace", "sync", *names, check=0).stderr.decode()


def status(msb, name):
    out = json.loads(msb.ok("workspace", "status", name, "--format", "json"))
    return {d["path"]: d["action"] for d in out["differences"]}


def tree(path):
    """Everything that counts: kind, permissions, content."""
    found = {}
    for p in sorted(path.rglob("*")):
        if p.is_symlink():
            what = ("link", os.readlink(p))
        elif p.is_dir():
            what = ("dir", p.stat().st_mode & 0o777)
        else:
            what = ("file", p.stat().st_mode & 0o777, p.read_bytes())
        found[str(p.relative_to(path))] = what
    return found


# --- both directions ------------------------------------------------------------------------------


def test_files_travel_both_ways(msb, s3, two):
    a, b = two
    s3.put("pre/by others/ü.txt", b"theirs")
    s3.put("pre/folder/", b"")
    s3.put("elsewhere/x", b"not ours")
    (a / "bin").mkdir()
    (a / "bin" / "run").write_text("#!/bin/sh\n")
    (a / "bin" / "run").chmod(0o755)
    (a / "link").symlink_to("bin/run")
    (a / "empty").mkdir()
    (a / "none").touch()
    (a / "large").write_bytes(os.urandom(17 << 20))
    os.utime(a / "none", ns=(10**18, 10**18 + 7))
    assert status(msb, "a")["bin/run"] == "upload" and status(msb, "a")["by others/ü.txt"] == "download"
    assert sync(msb, "a", "b").count("Synced") == 2
    assert tree(a) == tree(b) and (b / "none").stat().st_mtime_ns == 10**18 + 7
    assert (a / "by others" / "ü.txt").read_bytes() == b"theirs" and (a / "folder").is_dir()
    # Others see ordinary objects.
    assert s3.keys("pre/") == [f"pre/{n}" for n in ("bin/run", "by others/ü.txt", "folder/", "large", "link", "none")]
    assert s3.objects["pre/large"].data == (a / "large").read_bytes()
    assert s3.objects["pre/bin/run"].meta["x-amz-meta-msb-mode"] == "755"
    assert status(msb, "a") == status(msb, "b") == {}
    # Changes, a rename and removals.
    (b / "bin" / "run").write_text("#!/bin/sh\necho 2\n")
    (b / "large").rename(b / "moved")
    (b / "empty").rmdir()
    (b / "link").unlink()
    s3.put("pre/by others/ü.txt", b"theirs, too")
    sync(msb, "b", "a")
    assert tree(a) == tree(b)
    assert sorted(tree(a)) == ["bin", "bin/run", "by others", "by others/ü.txt", "folder", "moved", "none"]
    assert (a / "by others" / "ü.txt").read_bytes() == b"theirs, too"
    assert s3.keys("pre/.msb/", ours=True) == ["pre/.msb/manifest.json"] and not s3.uploads
    # Nothing is written when there is nothing to do.
    s3.log.clear()
    sync(msb, "a", "b")
    assert {m for m, _, _ in s3.log} == {"GET"} and not [k for _, k, _ in s3.log if k.endswith("manifest.json")]
    for name in ("a", "b"):  # what is kept of it here is not relied on
        (msb.home / "workspaces" / name / "s3-manifest.json").write_text("damaged")
    sync(msb, "a", "b")
    assert [k for _, k, _ in s3.log if k.endswith("manifest.json")] and status(msb, "a") == {}
    assert "Bucket:         s3://bucket/pre" in msb.ok("workspace", "inspect", "a")


def test_a_large_file_is_sent_in_several_parts_at_once(msb, s3, two):
    a, b = two
    content = os.urandom(15 << 20)
    (a / "large").write_bytes(content)
    pair, check = threading.Barrier(2), s3.check

    def both(h, path, query, body):
        if "partNumber" in query:
            pair.wait(60)
        return check(h, path, query, body)

    s3.check = both
    sync(msb, "a")
    s3.check = check
    assert s3.objects["pre/large"].data == content and not pair.broken
    sync(msb, "b")  # by the sum in the manifest
    assert (b / "large").read_bytes() == content


def test_a_server_that_lists_copies_with_another_etag(msb, s3, two):
    """OpenStack Swift does, if they were uploaded in parts; ours, and those of others."""
    a, b = two
    s3.flattens = True
    for copied in (False, True):
        (a / "large").write_bytes(os.urandom((8 << 20) + 1))
        sync(msb, "a", "b")
        assert (s3.objects["pre/large"].etag != s3.objects["pre/large"].listed) == copied
        assert status(msb, "a") == status(msb, "b") == {} and (b / "large").read_bytes() == (a / "large").read_bytes()
    content = s3.objects["pre/large"].data
    s3.put("pre/theirs", content)
    s3.objects["pre/theirs"].etag = "0123-2"
    sync(msb, "a", "b")
    assert (a / "theirs").read_bytes() == content and status(msb, "b") == {}
    (a / "theirs").write_text("ours")
    (b / "large").unlink()
    sync(msb, "a", "b", "a")
    assert status(msb, "a") == status(msb, "b") == {} and s3.keys("pre/") == ["pre/theirs"]


def test_a_server_whose_etags_are_weak(msb, s3, two):
    a, b = two
    s3.weak = "W/"
    s3.put("pre/theirs", b"1")
    (a / "ours").write_text("1")
    sync(msb, "a", "b")
    assert (a / "theirs").read_bytes() == b"1" and (b / "ours").read_text() == "1"
    s3.put("pre/theirs", b"2")
    (b / "ours").write_text("2")
    sync(msb, "b", "a")
    assert (a / "theirs").read_bytes() == b"2" and (a / "ours").read_text() == "2"
    assert status(msb, "a") == status(msb, "b") == {}


def test_what_takes_the_name_of_something_else(msb, s3, two):
    a, b = two
    for name in ("x", "y"):
        (a / name).write_text("1")
    s3.put("pre/folder/", b"")  # as consoles make them
    s3.put("pre/other/", b"")
    sync(msb, "a", "b")
    assert (a / "folder").is_dir() and (b / "other").is_dir()
    for name in ("x", "y"):
        (a / name).unlink()
        (a / name).mkdir()
    (a / "y" / "in").write_text("1")
    (a / "folder").rmdir()
    (a / "other").rmdir()
    (a / "other").write_text("now a file")
    sync(msb, "a", "a", "b")
    assert tree(a) == tree(b) and sorted(p.name for p in b.iterdir()) == ["other", "x", "y"] and (b / "x").is_dir()
    assert s3.keys("pre/") == ["pre/other", "pre/y/in"]
    sync(msb, "b", "a")
    assert status(msb, "a") == status(msb, "b") == {}


def test_long_listings_are_read_at_several_places_at_once(msb, s3, two):
    a, b = two
    names = [f"d{i // 25:02}/ü {i}" for i in range(700)] + ["d05-", "d05.x", "z"]
    for n in names:
        s3.put(f"pre/{n}", b"x")
    s3.put("pre/d07/", b"")  # where a range may end
    pair, check = threading.Barrier(2), s3.check

    def both(h, path, query, body):
        if "start-after" in query and "delimiter" not in query and "continuation" not in query:
            pair.wait(60)
        return check(h, path, query, body)

    s3.check = both
    assert set(status(msb, "a")) == {*names, *(n.split("/")[0] for n in names if "/" in n)}
    assert not pair.broken and len([1 for _, k, q in s3.log if not k and "start-after" in q]) == 5
    s3.check = check
    # One that does not begin where it is told to is read in its own order.
    s3.ordered = False
    s3.log.clear()
    assert len(status(msb, "b")) == len(names) + 28
    assert len([1 for _, k, q in s3.log if not k and "continuation" in q]) >= 7


def test_listings_in_the_order_of_directories(msb, s3, two):
    """A server that keeps files may list what is in data/ before data.json, where a range would begin."""
    names = [f"a/{i}" for i in range(150)] + [f"{d}/{i}" for d in ("b", "c", "data", *"efgh") for i in range(20)] + ["data.json"]
    for n in names:
        s3.put(f"pre/{n}", b"x")
    s3.order = lambda key: key.split("/")
    assert set(status(msb, "a")) == {*names, *(n.split("/")[0] for n in names if "/" in n)}


def test_what_changed_on_both_sides_is_kept_twice(msb, s3, two):
    a, b = two
    (a / "f").write_text("1")
    (a / "gone").write_text("1")
    (a / "same").write_text("1")
    sync(msb, "a", "b")
    for d, text in ((a, "from a"), (b, "from b")):
        (d / "f").write_text(text)
        (d / "same").write_text("both")
    (a / "gone").unlink()
    (b / "gone").write_text("changed")
    (b / "g").mkdir()
    (a / "g").write_text("a file here, a directory there")
    sync(msb, "a")
    said = sync(msb, "b")
    assert "conflict: 'f' was changed here and in the bucket" in said and "'same'" not in said
    sync(msb, "a")
    assert tree(a) == tree(b)
    kept = {n: t[-1] for n, t in tree(a).items()}
    names = {re.sub(r"\.conflict-[0-9-]+$", ".conflict", n): c for n, c in kept.items()}
    assert names["f"] == b"from a" and names["f.conflict"] == b"from b"
    assert names["gone"] == b"changed" and names["same"] == b"both"
    assert names["g"] == b"a file here, a directory there" and "g.conflict" in names


def test_what_msbignore_names_stays_where_it_is(msb, s3, two):
    a, b = two
    (a / "f").write_text("1")
    (a / "node_modules" / "p").mkdir(parents=True)
    for i in range(1000):
        (a / "node_modules" / "p" / str(i)).touch()
    (a / "node_modules-x").write_text("another name")
    p = msb("workspace", "status", "a", check=0)
    assert b"'node_modules' has 1001 files, 0 MiB: a line 'node_modules/' in .msbignore leaves it out" in p.stderr
    (a / ".msbignore").write_text("/node_modules/\n*.log\n!keep.log\n")
    (a / "x.log").write_text("here only")
    (a / "keep.log").write_text("1")
    s3.put("pre/theirs.log", b"there only")
    p = msb("workspace", "status", "a", check=0)
    assert b"node_modules'" not in p.stderr
    assert status(msb, "a") == dict.fromkeys((".msbignore", "f", "keep.log", "node_modules-x"), "upload")
    sync(msb, "a")
    assert (a / "node_modules" / "p" / "7").exists() and not (a / "theirs.log").exists()
    assert s3.keys("pre/") == [f"pre/{n}" for n in (".msbignore", "f", "keep.log", "node_modules-x", "theirs.log")]
    assert sync(msb, "b") and status(msb, "a") == status(msb, "b") == {}
    # What was in the bucket before it was ignored stays there, and comes back without the rule.
    shutil.rmtree(a / "node_modules")
    (b / ".msbignore").unlink()
    (b / "mine.log").write_text("b")
    sync(msb, "b", "a")
    assert (a / "theirs.log").read_bytes() == b"there only" and (a / "mine.log").exists()
    (a / ".msbignore").write_text("*.log\n")
    (a / "theirs.log").unlink()
    (a / "x.log").write_text("changed")
    sync(msb, "a")
    assert s3.objects["pre/theirs.log"].data == b"there only" and s3.objects["pre/x.log"].data == b"here only"
    (a / ".msbignore").unlink()
    sync(msb, "a")
    assert (a / "theirs.log").exists() and (a / "x.log").read_text() == "here only"
    assert [n for n in tree(a) if n.startswith("x.log.conflict-")]
    # A list that a guest made to do harm.
    (a / ".msbignore").write_text("a\n" * 1001)
    assert b".msbignore is too long" in msb("workspace", "sync", "a", check=1).stderr


def test_a_push_beyond_the_limit_is_not_begun(msb, s3):
    msb.env.update(KEYS)
    msb.ok("workspace", "create", "m", "--s3", f"s3://{BUCKET}/m", "--endpoint", s3.url, "--max", "1M")
    (data(msb, "m") / "large").write_bytes(b"x" * ((1 << 20) + 1))
    p = msb("workspace", "sync", "m", check=1)
    assert b"the workspace holds more than its limit of 1 MiB" in p.stderr and b".msbignore" in p.stderr
    assert s3.keys("m/") == []
    sync(msb, "--max", "2M", "m")
    p = msb("workspace", "sync", "m", check=1)
    assert b"the bucket holds more than the workspace's limit of 1 MiB" in p.stderr
    sync(msb, "--max", "2M", "m")


def during_listings(s3, act, times=1):
    """Calls act(n) when the bucket is listed, before it answers."""
    calls = iter(range(times))

    def before(method, key, query):
        if method == "GET" and not key and (n := next(calls, None)) is not None:
            act(n)

    s3.before = before


def listings(s3):
    return len([1 for method, key, _ in s3.log if method == "GET" and not key])


@pytest.mark.parametrize("old, new", [("d/log", "d/log.1"), ("d", "e")])
def test_what_is_renamed_during_the_listing_is_not_lost(msb, s3, two, old, new):
    """It was looked at under its old name, and not yet under the new one."""
    a, b = two
    (a / "d").mkdir()
    (a / "d" / "log").write_text("1")
    sync(msb, "a", "b")
    (a / "d" / "log").write_text("12")
    during_listings(s3, lambda n: (a / old).rename(a / new))
    assert status(msb, "a")[new] == "upload"
    (a / new).rename(a / old)
    s3.log.clear()
    during_listings(s3, lambda n: (a / old).rename(a / new))
    assert "Synced" in sync(msb, "a")
    (key,) = s3.keys("pre/")
    assert key == f"pre/{new}" + "/log" * (new == "e") and s3.objects[key].data == b"12"
    did = [(method, k) for method, k, _ in s3.log]
    assert did.index(("PUT", key)) < did.index(("DELETE", "pre/d/log"))
    sync(msb, "b")
    assert tree(a) == tree(b)


def test_what_never_rests_stays_in_the_bucket(msb, s3, two):
    a, _ = two
    (a / "log").write_text("1")
    sync(msb, "a")
    names = ["log", *(f"log.{i}" for i in range(20))]
    (a / "log").write_text("12")
    (a / "other").write_text("new")
    during_listings(s3, lambda n: (a / names[n]).rename(a / names[n + 1]), 20)
    sync(msb, "a")
    assert s3.objects["pre/log"].data == b"1" and s3.objects["pre/other"].data == b"new"
    s3.before = lambda method, key, query: None
    (a / "other").unlink()
    sync(msb, "a")
    (key,) = s3.keys("pre/")
    assert key.startswith("pre/log.") and s3.objects[key].data == b"12"


def test_what_is_renamed_during_the_walk_stays_in_the_bucket(msb, s3, two):
    """It has moved to where the walk had already been: so it was not seen."""
    a, _ = two
    (a / "z").mkdir()
    (a / "z" / "f").write_text("1")
    sync(msb, "a")
    (a / "z" / "f").rename(a / "hidden.tmp")
    (a / ".msbignore").write_text("*.tmp\n")
    during_listings(s3, lambda n: (a / "hidden.tmp").rename(a / "f"))
    sync(msb, "a")
    assert s3.objects["pre/f"].data == b"1" and "pre/z/f" not in s3.objects


def test_what_comes_and_goes_keeps_no_sync_from_its_end(msb, s3, two):
    """Nothing in the bucket depends on it."""
    a, _ = two
    (a / "f").write_text("1")
    sync(msb, "a")
    (a / "f").write_text("2")
    (a / "temporary").touch()
    s3.log.clear()
    during_listings(s3, lambda n: (a / "temporary").unlink())
    sync(msb, "a")
    assert listings(s3) == 1 and s3.keys("pre/") == ["pre/f"] and s3.objects["pre/f"].data == b"2"


def test_a_file_that_becomes_too_large_stays_in_the_bucket(msb, s3, two):
    a, b = two
    (a / "f").write_text("1")
    sync(msb, "a", "b")
    os.truncate(a / "f", (5 << 30) + 1)
    for _ in range(2):
        assert "'f' is left out: it is larger than 5 GiB" in sync(msb, "a")
        assert status(msb, "a") == {}
    sync(msb, "b")
    assert (b / "f").read_text() == "1" and s3.objects["pre/f"].data == b"1"
    (a / "f").write_text("2")
    assert "left out" not in sync(msb, "a", "b")
    assert (b / "f").read_text() == "2" and tree(a) == tree(b)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_file_under_a_mounted_device_stays_in_the_bucket(msb, s3, two):
    a, _ = two
    (a / "f").write_text("1")
    sync(msb, "a")
    if subprocess.run(["mount", "--bind", "/dev/null", a / "f"], check=False).returncode:
        pytest.skip("this root may not mount")
    try:
        assert b"something is mounted on 'f'" in msb("workspace", "sync", "a", check=1).stderr
    finally:
        subprocess.run(["umount", a / "f"], check=True)
    assert s3.keys("pre/") == ["pre/f"] and status(msb, "a") == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_what_is_below_a_mount_stays_in_the_bucket(msb, s3, two, tmp_path):
    a, b = two
    (a / "big").mkdir()
    (a / "big" / "f").write_text("1")
    sync(msb, "a", "b")
    (tmp_path / "disk").mkdir()
    if subprocess.run(["mount", "--bind", tmp_path / "disk", a / "big"], check=False).returncode:
        pytest.skip("this root may not mount")
    try:
        for files in ("", "g"):
            p = msb("workspace", "sync", "a", check=1)
            assert b"something is mounted on 'big'" in p.stderr and b"leave it out with a line in .msbignore" in p.stderr
            (tmp_path / "disk" / "g").write_text(files)
        (a / ".msbignore").write_text("big/\n")
        sync(msb, "a")
        assert s3.keys("pre/") == ["pre/.msbignore", "pre/big/f"] and status(msb, "a") == {}
        (a / ".msbignore").unlink()
    finally:
        subprocess.run(["umount", a / "big"], check=True)
    sync(msb, "a", "b")
    assert tree(a) == tree(b) and (b / "big" / "f").read_text() == "1" and s3.keys("pre/") == ["pre/big/f"]


# --- sandboxes ------------------------------------------------------------------------------------


def test_a_sandbox_works_in_a_bucket(msb, s3):
    msb.env.update(KEYS)
    msb.ok("secret", "set", "S3_KEY", input=f"{KEY_ID}:{SECRET}".encode())
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del msb.env[name]
    s3.put("in.txt", b"from the bucket\n")
    msb.ok("workspace", "create", "w", "--s3", f"s3://{BUCKET}", "--endpoint", s3.url, "--credentials", "S3_KEY")
    script = "cd /workspace; cat in.txt; mkdir d; echo 1 >d/x; chmod +x d/x; mv in.txt out.txt; env"
    out = msb.ok("run", "-q", "--workspace", "w", "--", "sh", "-c", script)
    assert out.startswith("from the bucket\n") and KEY_ID not in out
    assert s3.keys() == ["d/x", "out.txt"] and s3.objects["d/x"].meta["x-amz-meta-msb-mode"] == "755"
    # A snapshot is copied back, and then pushed; a start pulls.
    msb.create("box", "--workspace", "w", "--workspace-mode", "snapshot")
    sh(msb, "box", "echo 2 >/workspace/two")
    msb.ok("stop", "-q", "box")
    assert s3.objects["two"].data == b"2\n"
    s3.put("three", b"3\n")
    msb.ok("start", "-q", "box")
    assert sh(msb, "box", "cat /workspace/three") == "3\n"
    # Without the server, work continues with what is here.
    s3.close()
    p = msb("stop", "box", check=0)
    assert b"try again with: msb workspace sync w" in p.stderr
    for f in [f for d in ("sandboxes", "workspaces") for f in (msb.home / d).rglob("*")]:
        assert not f.is_file() or f.name == "upper.ext4" or SECRET.encode() not in f.read_bytes(), f


def test_a_bucket_by_its_url(msb, s3):
    msb.env.update(KEYS, AWS_ENDPOINT_URL=s3.url)
    s3.put("some/prefix/in", b"1\n")
    url = f"s3://{BUCKET}/some/prefix"
    assert msb.ok("run", "-q", "--workspace", url, "--", "sh", "-c", "cd /workspace; cat in; mv in out") == "1\n"
    assert s3.keys() == ["some/prefix/out"]
    (made,) = json.loads(msb.ok("workspace", "ls", "--format", "json"))
    assert made["name"].startswith("s3-bucket-some-prefix-") and made["bucket"] == url
    # The same one, again; another server is another one.
    assert msb.ok("run", "-q", "--workspace", url + "/", "--", "ls", "/workspace") == "out\n"
    for bad, why in (("s3://", b"expected s3://BUCKET"), (f"s3://{BUCKET}/../x", b"invalid prefix"),
                     ("s3://not-there/x", b"NoSuchBucket")):
        p = msb("create", "-q", "-n", "box", "--workspace", bad)
        assert p.returncode != 0 and why in p.stderr, p.stderr
    assert len(json.loads(msb.ok("workspace", "ls", "--format", "json"))) == 1 and msb.ok("ls", "-q") == ""


def test_keys_from_a_command(msb, s3, tmp_path):
    """It runs for each sync, and what it prints is stored nowhere."""
    printed = json.dumps({"Version": 1, "AccessKeyId": KEY_ID, "SecretAccessKey": SECRET}, indent=1)
    (tmp_path / "keys").write_text(printed)
    msb.env["AWS_REGION"] = REGION
    msb.ok("secret", "set", "S3_KEY", "--command", f"echo 1 >>{tmp_path}/runs; cat {tmp_path}/keys")
    msb.ok("workspace", "create", "w", "--s3", f"s3://{BUCKET}", "--endpoint", s3.url, "--credentials", "S3_KEY")
    (data(msb, "w") / "f").write_text("1")
    sync(msb, "w")
    assert s3.keys() == ["f"] and (tmp_path / "runs").read_text() == "1\n1\n"
    for command, why in (("exit 3", "failed (exit code 3)"), ("yes", "prints too much"),
                         ("echo nothing", "did not print S3 credentials")):
        msb.ok("secret", "set", "S3_KEY", "--command", command)
        p = msb("workspace", "sync", "w", check=1)
        assert f"the command of secret 'S3_KEY' {why}" in p.stderr.decode(), p.stderr
    assert not [f for f in msb.home.rglob("*") if f.is_file() and SECRET.encode() in f.read_bytes()]


# --- other people's software ----------------------------------------------------------------------


def s3rver():
    return [packages("s3rver") / "node_modules" / ".bin" / "s3rver", "-d", "s3", "-a", "127.0.0.1"], None


def moto():
    command, env = imagekit.moto()
    return [*command, "-H", "127.0.0.1"], env


@pytest.mark.parametrize("server", [s3rver, moto])
def test_other_servers_and_boto3(msb, tmp_path, server):
    boto3 = pytest.importorskip("boto3")
    command, env = server()
    log = open(tmp_path / "log", "w+b")
    p = subprocess.Popen([*command, "-p", "0"], stdout=log, stderr=log, cwd=tmp_path, env=env)
    try:
        found = wait_for(lambda: re.search(rb"127\.0\.0\.1:(\d+)", (tmp_path / "log").read_bytes()), 60)
        url = f"http://127.0.0.1:{found[1].decode()}"
        msb.env.update(AWS_ACCESS_KEY_ID="S3RVER", AWS_SECRET_ACCESS_KEY="S3RVER", AWS_REGION="us-east-1")
        client = boto3.client("s3", endpoint_url=url, aws_access_key_id="S3RVER", aws_secret_access_key="S3RVER",
                              region_name="us-east-1")  # fmt: skip
        client.create_bucket(Bucket="other-bucket")
        client.put_object(Bucket="other-bucket", Key="team/a b/in+1.txt", Body=b"by boto3")
        msb.ok("workspace", "create", "w", "--s3", "s3://other-bucket/team", "--endpoint", url)
        d = data(msb, "w")
        (d / "large").write_bytes(b"0123456789abcdef" * (1 << 20))
        (d / "ü & <x>.txt").write_text("from msb")
        sync(msb, "w")
        assert (d / "a b" / "in+1.txt").read_bytes() == b"by boto3"
        got = {o["Key"] for o in client.list_objects_v2(Bucket="other-bucket")["Contents"]}
        assert got == {"team/a b/in+1.txt", "team/large", "team/ü & <x>.txt", "team/.msb/manifest.json"}
        o = client.get_object(Bucket="other-bucket", Key="team/ü & <x>.txt")
        assert o["Body"].read() == b"from msb" and o["Metadata"]["msb-mode"] == "644"
        assert client.head_object(Bucket="other-bucket", Key="team/large")["ContentLength"] == 16 << 20
        (d / "large").write_bytes(b"short")
        client.delete_object(Bucket="other-bucket", Key="team/a b/in+1.txt")
        sync(msb, "w")
        assert client.get_object(Bucket="other-bucket", Key="team/large")["Body"].read() == b"short"
        assert not (d / "a b" / "in+1.txt").exists() and status(msb, "w") == {}
    finally:
        p.terminate()
        p.wait(10)
        log.close()
