"""Workspaces in buckets whose servers break and lie, and whose syncs die."""

import json
import os
import pathlib
import shutil
import signal
import subprocess

import pytest

from conftest import wait_for
from fakes3 import BUCKET, FakeS3
from test_workspace_s3 import KEYS, data, status, sync, tree, two_hosts


@pytest.fixture
def two(msb, s3):
    return two_hosts(msb, s3)


@pytest.mark.parametrize("kind", ["drop", "lost", "cut", ("cut", 1), ("cut", 100), ("cut", -1), 429, 500, 503], ids=str)
def test_every_request_may_break(msb, s3, two, kind):
    """Each request of a push and of a pull fails once, in each way."""
    a, b = two
    (a / "d").mkdir()
    for i in range(8):
        (a / "d" / f"f{i}").write_text(f"{i}" * 1000)
    sync(msb, "a", "b")
    (a / "d" / "f1").write_text("changed")
    (a / "d" / "f2").unlink()
    (a / "d" / "f3").rename(a / "d" / "moved")
    (a / "d" / "new").write_text("new")
    s3.seen.clear()
    s3.faults.append(lambda method, key, nth: kind if nth == 1 else None)
    sync(msb, "a")
    again = {m for (m, _), n in s3.seen.items() if n > 1}
    assert again >= ({"GET"} if kind == "cut" else {"GET", "PUT", "DELETE"}), s3.seen  # others' answers have no body
    s3.seen.clear()
    sync(msb, "b")
    assert s3.seen["GET", "pre/d/new"] > 1 and s3.seen["GET", ""] > 1
    assert tree(a) == tree(b) and sorted(tree(a)) == ["d", *(f"d/f{i}" for i in (0, 1, 4, 5, 6, 7)), "d/moved", "d/new"]
    assert s3.keys("pre/.msb/", ours=True) == ["pre/.msb/manifest.json"]
    assert len(s3.keys()) == 8


def dies_at(msb, s3, name, n):
    """Whether a sync makes n requests; it is killed before the last one."""
    s3.log.clear()
    p = msb.popen("workspace", "sync", "-q", name, stderr=subprocess.PIPE, start_new_session=True)

    def at(method, key, nth):
        if len(s3.log) == n:
            os.killpg(p.pid, signal.SIGKILL)
            return "drop"
        return None

    s3.faults[:] = [at]
    died = p.wait(60) != 0
    p.stderr.close()
    s3.faults.clear()
    return died


def test_a_pull_that_dies_is_finished_by_the_next(msb, s3, two):
    """One is killed before each of its requests."""
    a, b = two
    for i in range(4):
        (a / f"f{i}").write_text("old")
    sync(msb, "a", "b")
    dead = 0
    for n in range(1, 60):
        (a / "f0").write_text(f"new {n}")
        (a / f"f{n + 3}").unlink(missing_ok=True)
        for name in ("g", "h"):
            (a / f"{name}{n}").write_text(f"{n}" * 1000)
        sync(msb, "a")
        died = dies_at(msb, s3, "b", n)
        assert "conflict" not in sync(msb, "b")
        assert tree(b) == tree(a) and not list((b.parent / "s3-tmp").iterdir())
        dead += died
        if not died:
            break
    assert dead >= 3


def test_a_first_pull_that_fails_does_not_count(msb, s3, two):
    """As long as not all is here, no sandbox starts without the bucket."""
    a, b = two
    for name in ("f", "g"):
        (a / name).write_text(name)  # not the same: contents are cached
    sync(msb, "a")
    for _ in range(2):
        s3.faults.append(lambda method, key, nth: 403 if key == "pre/g" else None)
        msb("workspace", "sync", "b", check=1)
        s3.faults[:] = [lambda method, key, nth: 403]
        assert b"403" in msb("run", "--workspace", "b", "--", "true", check=1).stderr
        s3.faults.clear()
    sync(msb, "b")
    assert tree(a) == tree(b)


@pytest.mark.parametrize("dead", [False, True])
def test_what_a_failed_pull_has_done_is_not_a_change_of_ours(msb, s3, two, dead):
    """Others go on from there."""
    a, b = two
    for name in ("f", "gone", "z"):
        (a / name).write_text("1")
    sync(msb, "a", "b")
    for name in ("f", "new", "z"):
        (a / name).write_text(f"new {name}")
    (a / "gone").unlink()
    sync(msb, "a")

    def fault(method, key, nth):
        if (method, key) != ("GET", "pre/z"):
            return None
        s3.lock.release()
        wait_for(lambda: (b / "f").read_text() == "new f" and (b / "new").exists() and not list((b.parent / "s3-tmp").glob("x*")))
        s3.lock.acquire()
        if dead:
            os.killpg(pull.pid, signal.SIGKILL)
        return 403

    with s3.lock:  # until pull is known
        pull = msb.popen("workspace", "sync", "-q", "b", stderr=subprocess.DEVNULL, start_new_session=True)
        s3.faults.append(fault)
    assert pull.wait(60) == (-signal.SIGKILL if dead else 1)
    s3.faults.clear()
    assert (b / "z").read_text() == "1" and not (b / "gone").exists()
    (a / "f").write_text("3")
    (a / "gone").write_text("1")
    (a / "new").unlink()
    sync(msb, "a", "b")
    sync(msb, "a")
    assert tree(a) == tree(b) and {name: what[-1] for name, what in tree(a).items()} == {"f": b"3", "gone": b"1", "z": b"new z"}


@pytest.mark.parametrize("what", ["replaces", "removes", "written"])
def test_a_pull_that_dies_holding_a_file(msb, s3, two, what):
    """It has lost its name, and was still to be compared. Nobody needs it, unless somebody wrote to it meanwhile."""
    a, b = two
    tmp, held = b.parent / "s3-tmp", []
    for n in range(20):
        large = b"%d" % n * (32 << 20)
        (a / "f").write_bytes(large)
        sync(msb, "a", "b")
        if what == "removes":
            (a / "f").unlink()
        else:
            (a / "f").write_text("new")
        sync(msb, "a")
        with open(b / "f", "r+b") as f:
            p = msb.popen("workspace", "sync", "-q", "b", start_new_session=True)
            while p.poll() is None and not held:
                os.utime(f.fileno())  # so it is compared
                held = [x for x in tmp.iterdir() if x.name[0] == "x"]
            os.killpg(p.pid, signal.SIGKILL)
            assert p.wait(60) == -signal.SIGKILL or not held
            held = [x for x in held if x.exists()]
            if held and what == "written":
                f.write(b"more")
        if held:
            break
    assert held, "it was never killed in time"
    told = sync(msb, "b")
    if what == "written":
        assert "recovered-x" in told
        kept = [x.read_bytes() for x in b.glob("recovered-x*.conflict-*")]
        assert kept == [b"more" + large[4:]]
    else:
        assert "conflict" not in told and tree(a) == tree(b)
    assert not list(tmp.iterdir())


def test_a_pull_that_cannot_replace_a_file(msb, s3, two):
    """What it has fetched is nobody's work."""
    a, b = two
    (a / "f").write_text("1")
    sync(msb, "a", "b")
    (a / "f").write_text("2")
    sync(msb, "a")
    if subprocess.run(["chattr", "+i", b / "f"], capture_output=True).returncode:
        pytest.skip("takes root and a file system that knows immutable files")
    try:
        assert b"cannot write 'f'" in msb("workspace", "sync", "b", check=1).stderr and (b / "f").read_text() == "1"
    finally:
        subprocess.run(["chattr", "-i", b / "f"], check=True)
    sync(msb, "b")
    assert tree(a) == tree(b) and not list((b.parent / "s3-tmp").iterdir())


def test_an_answer_that_breaks_at_its_end(msb, s3, two):
    """After the last byte, which nothing says was the last."""
    a, _ = two
    s3.put("pre/f", b"x" * (4 << 20))
    s3.faults.append(lambda method, key, nth: "open" if method == "GET" and key and nth == 1 else None)
    msb.ok("workspace", "sync", "-q", "a")
    assert (a / "f").read_bytes() == s3.objects["pre/f"].data and s3.ranges == [("pre/f", f"{4 << 20}-")]


def test_a_push_that_dies_is_whole_or_not_there(msb, s3, two):
    a, b = two
    for name in ("f", "g0", "r0"):
        (a / name).write_text("old")
    sync(msb, "a", "b")
    old, dead = tree(b), 0
    for n in range(1, 60):
        # On host a: one changed, one removed, one added, one renamed, all by one push, which is killed.
        (a / "f").write_text(f"new {n}")
        (a / f"g{n - 1}").unlink()
        (a / f"g{n}").write_text(f"{n}")
        (a / f"r{n - 1}").rename(a / f"r{n}")
        new = tree(a)
        died = dies_at(msb, s3, "a", n)
        # On host b: the state before or after, never half.
        sync(msb, "b")
        seen = tree(b)
        assert seen in (old, new), (n, sorted(seen), sorted(old), sorted(new))
        sync(msb, "a")
        assert tree(a) == new
        sync(msb, "b")
        assert tree(b) == new
        old, dead = new, dead + died
        if not died:
            break
    assert dead >= 8
    assert s3.keys("pre/.msb/", ours=True) == ["pre/.msb/manifest.json"]


def test_a_bucket_that_has_lost_its_files(msb, s3, two):
    """Its manifest, too: nothing is removed here, until somebody says that it is meant."""
    a, b = two
    (a / "d").mkdir()
    (a / "d" / "f").write_text("1")
    sync(msb, "a", "b")
    lost, here = dict(s3.objects), tree(a)
    s3.objects.clear()
    p = msb("workspace", "sync", "a", check=1)
    assert b"the bucket has lost its manifest and 1 file" in p.stderr and b"workspace sync --emptied" in p.stderr
    assert tree(a) == here and not s3.objects
    p = msb("workspace", "status", "a", check=0)
    assert b"has lost its manifest" in p.stderr and status(msb, "a")["d/f"] == "delete-local"
    assert msb.ok("workspace", "get", "a:d/f", "-") == "1"  # with a warning
    s3.objects.update(lost)
    msb.ok("workspace", "sync", "-q", "a")
    assert tree(a) == here and s3.objects == lost
    # On purpose. What was changed here since is kept, as always.
    s3.objects.clear()
    (a / "mine").write_text("2")
    msb.ok("workspace", "sync", "-q", "--emptied", "a")
    assert list(tree(a)) == ["mine"] and s3.keys("pre/") == ["pre/mine"]
    sync(msb, "--emptied", "b")
    assert tree(b) == tree(a)


def test_a_bucket_that_was_filled_again_by_another_host(msb, s3, two):
    """It has a manifest, but not one that continues the last."""
    a, b = two
    (a / "f").write_text("1")
    sync(msb, "a", "b")
    old, here = dict(s3.objects), tree(a)
    s3.objects.clear()
    msb.ok("workspace", "create", "c", "--s3", f"s3://{BUCKET}/pre", "--endpoint", s3.url)
    (data(msb, "c") / "new").write_text("2")
    sync(msb, "c")
    new = dict(s3.objects)
    for _ in range(2):
        p = msb("workspace", "sync", "a", check=1)
        assert b"the bucket has lost its manifest and 1 file of the last sync, and another host has written a new one" in p.stderr
        assert tree(a) == here and status(msb, "a")["f"] == "delete-local"
    s3.objects = dict(old)
    msb.ok("workspace", "sync", "-q", "a")
    assert tree(a) == here and s3.objects == old
    s3.objects = new
    for name in ("a", "b"):
        assert b"has lost its manifest" in msb("workspace", "sync", name, check=1).stderr
        msb.ok("workspace", "sync", "-q", "--emptied", name)
    assert tree(a) == tree(b) == tree(data(msb, "c"))
    # What is removed after that was not lost; nor is it with a manifest that does not say what it continues.
    (a / "f").write_text("1")
    sync(msb, "a", "b", "c")
    (data(msb, "c") / "new").unlink()
    sync(msb, "c", "b")
    assert list(tree(b)) == ["f"]
    manifest = json.loads(s3.objects["pre/.msb/manifest.json"].data)
    del manifest["lineage"], manifest["entries"]["f"], s3.objects["pre/f"]
    s3.put("pre/.msb/manifest.json", json.dumps(manifest).encode())
    sync(msb, "a", "b")
    assert tree(a) == tree(b) == {}


def test_a_bucket_that_has_lost_its_manifest(msb, s3, two):
    """And nothing else: it is missed once at most, and files that are removed after that are."""
    a, _ = two
    for name in ("f", "g"):
        (a / name).write_text("1")
    sync(msb, "a")
    del s3.objects["pre/.msb/manifest.json"]
    msb.ok("workspace", "sync", "-q", "a")
    del s3.objects["pre/f"]
    msb.ok("workspace", "sync", "-q", "a")
    assert list(tree(a)) == ["g"]


def test_hostile_servers(msb, s3, two):
    a, _ = two
    for key in ("../up", "x/../../up", "/root", "a//b", "nl\nx", ".", "n" * 300):
        s3.put(f"pre/{key}", b"evil")
    s3.put("pre/a", b"a file")
    s3.put("pre/a/b", b"in it")
    s3.put("pre/evil-link", b"/etc/passwd", **{"msb-type": "symlink", "msb-mode": "7777"})
    s3.put("pre/suid", b"x", **{"msb-mode": "4755", "msb-mtime": "9" * 40})
    assert "7 objects are left out" in sync(msb, "a")
    assert sorted(tree(a)) == ["a", "a/b", "evil-link", "suid"]
    assert (a / "suid").stat().st_mode & 0o7777 in (0o644, 0o755)
    # A link from the bucket never leads out of the workspace.
    s3.put("pre/evil-dir", b"/tmp", **{"msb-type": "symlink"})
    sync(msb, "a")
    assert os.readlink(a / "evil-dir") == "/tmp"
    s3.put("pre/evil-dir/escaped", b"x")
    sync(msb, "a")
    assert not os.path.exists("/tmp/escaped")
    # A manifest that lies about content, one that is garbage, and one that is too much.
    (a / "mine").write_text("mine")
    sync(msb, "a")
    manifest = s3.objects["pre/.msb/manifest.json"].data
    s3.put("pre/.msb/manifest.json", manifest.replace(b'"mode":420', b'"mode":511'))
    sync(msb, "a")
    s3.objects["pre/mine"].data = b"evil"  # with the etag of the old content
    shutil.rmtree(msb.home / "workspaces" / "a" / "data" / "a")
    shutil.rmtree(msb.home / "cache" / "objects")  # which has the right one
    p = msb("workspace", "sync", "b")
    assert p.returncode == 1 and b"'mine' in the bucket does not match the manifest" in p.stderr, p.stderr
    s3.put("pre/.msb/manifest.json", b"{" * 1000)
    assert "manifest is damaged" in sync(msb, "a")
    # Listings: malformed, and endless.
    for extra, why in [
        ("<Contents><Key>x", b"malformed"),
        ("<Contents><Key>%00</Key></Contents>", b"malformed"),
        ("<Contents><Key>outside</Key></Contents>", b"not requested"),
        ("<IsTruncated>true</IsTruncated>", b"malformed"),
        ("<IsTruncated>true</IsTruncated><NextContinuationToken>pre/zzz</NextContinuationToken>", b"does not end"),
    ]:
        s3.list_extra = extra
        p = msb("workspace", "sync", "a")
        assert p.returncode == 1 and why in p.stderr and p.stderr.count(b"error:") == 1, (extra, p.stderr)


def test_the_process_is_confined(msb, s3, two):
    """While the server keeps it waiting: a filter, no privileges, and keys that nobody can read. What it can reach is
    checked from the inside (tests/unit/test_s3_confine.c)."""
    seen = []

    def look(method, key, nth):
        if not seen:
            pid = pathlib.Path(f"/proc/{p.pid}/task/{p.pid}/children").read_text().split()[0]
            seen.append(pathlib.Path(f"/proc/{pid}/status").read_text())
            seen.append(os.stat(f"/proc/{pid}/environ").st_uid)

    s3.faults.append(look)
    with s3.lock:  # until p is known
        p = msb.popen("workspace", "sync", "-q", "a")
    assert p.wait(60) == 0
    assert "NoNewPrivs:\t1\n" in seen[0] and "Seccomp:\t2\n" in seen[0]
    assert seen[1] == 0  # what cannot be dumped is root's
    held = int(seen[0].partition("CapPrm:")[2].split()[0], 16)
    assert held & ~(1 << 1 | 1 << 3) == 0, hex(held)  # it may be root's workspace, with others' files


def test_errors_say_what_to_do(msb, s3):
    def create(*args, url=f"s3://{BUCKET}/p", name="w"):
        return msb("workspace", "create", name, "--s3", url, "--endpoint", s3.url, *args)

    p = create("--credentials", "profile:none")
    assert p.returncode == 1 and b"profile 'none' has none" in p.stderr and b"AWS_ACCESS_KEY_ID" in p.stderr
    msb.env.update(KEYS)
    p = create(url="s3://other-bucket/p")
    assert p.returncode == 1 and b"NoSuchBucket" in p.stderr and b"\x9b" not in p.stderr
    msb.env["AWS_SECRET_ACCESS_KEY"] = "wrong"
    p = create()
    assert p.returncode == 1 and b"SignatureDoesNotMatch" in p.stderr and b"check the credentials" in p.stderr
    msb.env.update(KEYS)
    assert b"workspace not found" in msb("workspace", "inspect", "w").stderr  # none of these made one
    for args, why in [(["--region", "a b"], b"invalid region"), (["--max", "x"], b"invalid value"),
                      (["--credentials", "NOT_STORED"], b"there is no secret 'NOT_STORED'")]:
        p = create(*args)
        assert p.returncode != 0 and why in p.stderr, p.stderr
    for args, why in [(["--s3", "bucket"], b"expected s3://BUCKET"), (["--region", "x"], b"--region requires --s3")]:
        p = msb("workspace", "create", "w", *args)
        assert p.returncode == 2 and why in p.stderr, p.stderr
    s3.put("p/f", b"x" * (2 << 20))
    assert create("--max", "1M").returncode == 0 and create().returncode == 1
    p = msb("workspace", "sync", "w")
    assert p.returncode == 1 and b"limit of 1 MiB" in p.stderr
    msb.ok("workspace", "rm", "-q", "w")
    assert s3.keys("p/") == ["p/f"]  # the bucket is left alone
    msb.ok("workspace", "create", "plain")
    assert b"is local" in msb("workspace", "status", "plain", check=0).stderr


def test_a_server_without_conditions(msb):
    server = FakeS3(conditional=False)
    msb.env.update(KEYS)
    p = msb("workspace", "create", "w", "--s3", f"s3://{BUCKET}", "--endpoint", server.url, check=0)
    assert b"ignores conditional writes" in p.stderr
    (data(msb, "w") / "f").write_text("1")
    sync(msb, "w")
    (data(msb, "w") / "f").write_text("2")
    sync(msb, "w")
    assert server.objects["f"].data == b"2"
    server.close()


def test_status_says_why_it_fails(msb, s3, two):
    sync(msb, "a")
    s3.faults.append(lambda method, key, nth: 403 if method == "GET" else None)
    p = msb("workspace", "status", "a", check=1)
    assert b"403" in p.stderr and b"Success" not in p.stderr, p.stderr
