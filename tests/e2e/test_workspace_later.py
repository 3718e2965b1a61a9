"""Workspaces in buckets whose contents come when a file is first opened."""

import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading

import pytest

from conftest import wait_for
from fakes3 import BUCKET, FakeS3
from guest import sh
from test_workspace_s3 import data, during_listings, sync, with_workspace
from test_workspace_writers import at

MARK = "user.msb.later"


@pytest.fixture
def s3(msb):
    yield from with_workspace(msb, FakeS3(page=1000))


def fetched(s3):
    """What contents were asked for since the last look."""
    with s3.lock:
        got = [k.removeprefix("pre/") for m, k, _ in s3.log if m == "GET" and k and "/.msb/" not in k]
        s3.log.clear()
    return sorted(got)


def unfetched(path):
    return {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file() and MARK in os.listxattr(p)}


def fetchers(msb):
    """The processes that talk to the bucket for sandboxes."""
    found = []
    # An ordinary user may not look at the environment of those that are jailed: all of his are taken for ours.
    ours = msb.processes() if os.geteuid() == 0 else [int(x) for x in os.listdir("/proc") if x.isdigit()]
    for pid in ours:
        base = pathlib.Path("/proc", str(pid))
        try:
            mine = b"\0fetcher\0" in (base / "cmdline").read_bytes()
            parent = int((base / "stat").read_text().rpartition(")")[2].split()[1])
            if mine and b"\0fetcher\0" in pathlib.Path("/proc", str(parent), "cmdline").read_bytes():
                found.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def test_contents_come_with_the_first_open(msb, s3):
    for i in range(20):
        s3.put(f"pre/d/{i:02}", f"content {i}\n".encode() * 100)
    s3.put("pre/empty", b"")
    s3.put("pre/large", os.urandom(9 << 20))
    msb.create("box", "--workspace", "w")
    d = data(msb, "w")
    assert fetched(s3) == [] and list(d.iterdir()) == []  # not accessed yet
    msb.ok("workspace", "ls", "w")
    assert fetched(s3) == [] and len(unfetched(d)) == 21
    # Names, sizes and times are there without a content; so is what an empty file holds.
    out = sh(msb, "box", "cd /workspace; stat -c %s d/03 large empty; ls d | wc -l; cat empty; mv d/04 d/moved; "
                         "ln d/05 link; chmod 700 d/06; rm d/07; : >d/08")
    assert out == f"{len(s3.objects['pre/d/03'].data)}\n{9 << 20}\n0\n20\n"
    assert fetched(s3) == []
    out = sh(msb, "box", "cd /workspace; cat d/03 | md5sum; cat link | md5sum; echo more >>d/10; head -c 5 d/moved; "
                         "truncate -s 0 d/09; truncate -s 3 d/11; md5sum <large; tail -c 5 d/10")
    sums = [hashlib.md5(s3.objects[f"pre/{k}"].data).hexdigest() + "  -\n" for k in ("d/03", "d/05", "large")]
    assert out == sums[0] + sums[1] + "conte" + sums[2] + "more\n"
    assert fetched(s3) == ["d/03", "d/04", "d/05", "d/09", "d/10", "d/11", "large"]
    sh(msb, "box", "cd /workspace; mv d/12 d/later; sync")
    msb.ok("stop", "-q", "box")
    # What was moved or got another mode is fetched to be uploaded; nothing else is.
    assert fetched(s3) == ["d/06", "d/12"]
    assert unfetched(d) == {f"d/{i:02}" for i in (0, 1, 2, *range(13, 20))}
    want = {f"d/{i:02}" for i in range(20)} - {"d/04", "d/07", "d/12"} | {"d/moved", "d/later", "empty", "large", "link"}
    assert {k.removeprefix("pre/") for k in s3.keys()} == want
    assert s3.objects["pre/d/later"].data == b"content 12\n" * 100
    assert s3.objects["pre/d/08"].data == s3.objects["pre/d/09"].data == b"" and s3.objects["pre/d/11"].data == b"con"
    assert s3.objects["pre/d/10"].data.endswith(b"content 10\nmore\n")
    assert s3.objects["pre/d/06"].meta["x-amz-meta-msb-mode"] == "700"
    manifest = json.loads(s3.objects["pre/.msb/manifest.json"].data)["entries"]
    assert "d/03" in manifest and "d/00" not in manifest  # nobody knows its sum yet
    # Files that were only read are not uploaded.
    assert "x-amz-meta-msb-mode" not in s3.objects["pre/d/03"].meta
    # On the host, contents are fetched when they are asked for, and all of them by a sync.
    msb.ok("workspace", "ls", "w")
    assert fetched(s3) == []
    msb.ok("workspace", "checkpoint", "w")
    assert fetched(s3) == sorted(f"d/{i:02}" for i in (0, 1, 2, *range(13, 20))) and unfetched(d) == set()
    assert (d / "d" / "13").read_bytes() == s3.objects["pre/d/13"].data
    s3.put("pre/new", b"new")
    sync(msb, "w")
    assert (d / "new").read_bytes() == b"new" and unfetched(d) == set()


def unlisted(path):
    return {str(p.relative_to(path)) for p in [path, *path.rglob("*")] if p.is_dir() and MARK in os.listxattr(p)}


def test_names_come_with_the_first_look(msb, s3):
    """No directory is created before it is accessed, and what was never accessed is not lost."""
    dirs = ("a", "a/b", "a/b/c", "a-b", "gone", "moved", "moved/in", "kept/deep", "theirs", "theirs/in", "links", "ign")
    for name in dirs:
        s3.put(f"pre/{name}/f", f"in {name}\n".encode())
    (data(msb, "w") / "here").mkdir()
    os.symlink("f", data(msb, "w") / "here" / "link")
    sync(msb, "w")  # the manifest has a link, which comes at once
    msb.ok("workspace", "rm", "-q", "w")
    msb.ok("workspace", "create", "w", "--s3", f"s3://{BUCKET}/pre", "--endpoint", s3.url)
    msb.create("box", "--workspace", "w")
    d = data(msb, "w")
    assert os.readlink(d / "here" / "link") == "f" and not unlisted(d) & {".", "here"}
    assert unlisted(d) == {"a", "a-b", "gone", "kept", "moved", "theirs", "links", "ign"}
    before = s3.keys()
    # What a guest does with a directory that was never accessed.
    out = sh(msb, "box", "cd /workspace; ls; rmdir gone 2>&1; rm -r gone; mv moved there; cat there/in/f; mkdir x; "
                         "mv -T x a-b 2>&1; ls x a-b; echo 2 >a/b/new; echo ign/ >.msbignore; chmod 700 kept")
    assert out.startswith("a\na-b\ngone\nhere\nign\nkept\nlinks\nmoved\ntheirs\n") and out.count("not empty") == 2, out
    assert "in moved/in\n" in out and out.endswith("a-b:\nf\n\nx:\n"), out
    assert {"kept", "theirs", "links", "a/b/c"} <= unlisted(d)
    # Others change what is below one of them.
    s3.put("pre/theirs/in/f", b"changed\n")
    s3.put("pre/theirs/in/g", b"more\n")
    del s3.objects["pre/theirs/f"], s3.objects["pre/links/f"]
    msb.ok("stop", "-q", "box")
    assert {"a/b/c", "kept", "ign"} <= unlisted(d) and not unlisted(d) & {"theirs", "theirs/in", "a", "a/b"}
    want = {k.removeprefix("pre/") for k in before} - {"gone/f", "moved/f", "moved/in/f", "theirs/f", "links/f"}
    want |= {"there/f", "there/in/f", "a/b/new", "theirs/in/g", ".msbignore"}
    assert {k.removeprefix("pre/") for k in s3.keys()} == want
    assert s3.objects["pre/there/in/f"].data == b"in moved/in\n"
    msb.ok("start", "-q", "box")
    out = sh(msb, "box", "cd /workspace; find . -type f | sort | xargs cat; stat -c %a kept; ls links 2>&1 | wc -l")
    assert "changed\nmore\n" in out and "in kept/deep\n" in out and "in ign\n" in out and "\n700\n" in out
    assert unlisted(d) == set()
    msb.ok("stop", "-q", "box")
    assert {k.removeprefix("pre/") for k in s3.keys()} == want
    status = json.loads(msb.ok("workspace", "status", "w", "--format", "json"))
    assert status["differences"] == []


def test_what_is_put_here_during_the_first_listing_is_kept(msb, s3):
    """Nothing was here before, so that no file would have been made."""
    d = data(msb, "w")
    for name in ("f", "d/g", "h"):
        s3.put(f"pre/{name}", b"theirs\n")

    def put(n):
        (d / "f").write_text("ours\n")
        (d / "new").write_text("new\n")

    during_listings(s3, put)
    p = msb("create", "-n", "box", "--workspace", "w", check=0)
    assert b"conflict: 'f' was changed here and in the bucket" in p.stderr
    assert sh(msb, "box", "cd /workspace; cat f f.conflict-* new d/g h") == "theirs\nours\nnew\ntheirs\ntheirs\n"
    msb.ok("stop", "-q", "box")
    assert s3.objects["pre/new"].data == b"new\n" and s3.objects["pre/f"].data == b"theirs\n"
    (key,) = s3.keys("pre/f.conflict-")
    assert s3.objects[key].data == b"ours\n" and len(s3.keys("pre/")) == 5


def test_what_is_put_into_a_directory_nobody_has_looked_into_is_kept(msb, s3):
    for name in ("d/f", "d/g", "d/empty"):
        s3.put(f"pre/{name}", b"theirs\n")
    msb.create("box", "--workspace", "w")
    d = data(msb, "w")
    assert sh(msb, "box", "ls /workspace") == "d\n" and unlisted(d) == {"d"}
    (d / "d" / "f").write_text("ours\n")
    (d / "d" / "empty").touch()  # as one that was killed leaves it
    assert sh(msb, "box", "cd /workspace/d; cat f f.conflict-* g empty") == "theirs\nours\ntheirs\ntheirs\n"
    msb.ok("stop", "-q", "box")
    (key,) = s3.keys("pre/d/f.conflict-")
    assert s3.objects[key].data == b"ours\n" and len(s3.keys("pre/")) == 4


def test_what_was_never_fetched_is_not_lost_where_no_sync_looks(msb, s3):
    """Its object is removed or replaced, since its name is; its content comes here before that."""
    names = ("f", "linked", "over", "d/f", "d/in/f", "odd", "stays")
    for name in names:
        s3.put(f"pre/{name}", name.encode() * 100)
    s3.put("pre/.msbignore", b"*.tmp\n/ign/\n")
    msb.create("box", "--workspace", "w")
    d = data(msb, "w")
    sh(msb, "box", "cd /workspace; mkdir ign; mv f f.tmp; ln linked x.tmp; rm linked; mv over ign/over; echo new >over; "
                   "mv d ign/; mv odd \"$(printf 'a\\tb')\"; ln stays stays.tmp")
    assert unlisted(d) == {"ign/d/in"} and set(fetched(s3)) == {".msbignore"}
    msb.ok("stop", "-q", "box")
    assert s3.keys("pre/") == ["pre/.msbignore", "pre/over", "pre/stays"] and s3.objects["pre/over"].data == b"new\n"
    now = {"f": "f.tmp", "linked": "x.tmp", "over": "ign/over", "d/f": "ign/d/f", "d/in/f": "ign/d/in/f", "odd": "a\tb"}
    assert unlisted(d) == set() and unfetched(d) == {"stays", "stays.tmp"}
    assert {name: (d / at).read_bytes() for name, at in now.items()} == {name: name.encode() * 100 for name in now}


def test_what_was_never_fetched_is_on_disk_before_its_object_goes(msb, s3, tmp_path):
    """And so is that it has been: after a crash of the machine it would have to be fetched again."""
    if not shutil.which("strace"):
        pytest.skip("strace is not installed: run scripts/bootstrap test")
    s3.put("pre/.msbignore", b"*.tmp\n")
    s3.put("pre/f", b"content")
    msb.ok("workspace", "ls", "w")
    (data(msb, "w") / "f").rename(data(msb, "w") / "f.tmp")
    log = tmp_path / "strace"
    p = subprocess.run(["strace", "-fqo", log, "-e", "trace=fremovexattr,fsync", *msb.command(["workspace", "ls", "w"])],
                       env=msb.env, capture_output=True, check=False)
    if b"ptrace" in p.stderr.lower():
        pytest.skip(f"strace cannot attach here: {p.stderr.decode().strip()}")
    assert s3.keys("pre/") == ["pre/.msbignore"] and not unfetched(data(msb, "w"))
    assert re.search(rf'fremovexattr\((\d+), "{MARK}"\) += 0\n\d+ +fsync\(\1\) += 0\n', log.read_text()), log.read_text()


def test_what_was_never_fetched_is_moved_to_what_is_uploaded(msb, s3):
    """After the scan, but before its content is read."""
    s3.put("pre/f", b"content")
    msb.ok("workspace", "ls", "w")
    d = data(msb, "w")
    (d / "new").write_text("new")
    done = at(s3, "PUT", "pre/.msb/manifest.json", lambda: (d / "f").rename(d / "new"))
    msb.ok("workspace", "ls", "w")
    assert s3.objects["pre/new"].data != bytes(7)
    msb.ok("workspace", "ls", "w")
    assert done == [True] and s3.keys("pre/") == ["pre/new"] and s3.objects["pre/new"].data == b"content"


def test_what_is_ignored_before_it_was_fetched_can_still_be(msb, s3):
    for name in ("ign/f", "ign/gone", "ign/deep/f", "ign/read", "f.tmp"):
        s3.put(f"pre/{name}", name.encode())
    msb.create("box", "--workspace", "w")
    d = data(msb, "w")
    sh(msb, "box", "cd /workspace; ls ign; cat ign/read; printf '*.tmp\\n/ign/\\n' >.msbignore")
    msb.ok("stop", "-q", "box")
    before = s3.keys("pre/")
    msb.ok("start", "-q", "box")
    assert unfetched(d) == {"ign/f", "ign/gone", "f.tmp"} and unlisted(d) == {"ign/deep"}
    assert sh(msb, "box", "cd /workspace; rm ign/gone; cat f.tmp; echo 2 >>ign/read") == "f.tmp"
    msb.ok("stop", "-q", "box")
    assert unfetched(d) == {"ign/f"} and unlisted(d) == {"ign/deep"}
    msb.ok("workspace", "checkpoint", "w")
    assert unfetched(d) == unlisted(d) == set() and not (d / "ign" / "gone").exists()
    assert (d / "ign" / "f").read_text() + (d / "ign" / "deep" / "f").read_text() == "ign/fign/deep/f"
    assert s3.keys("pre/") == before and s3.objects["pre/ign/read"].data == b"ign/read"


def test_a_mode_that_was_changed_to_fetch_a_file_is_put_right(msb, s3):
    """An ordinary user's process was killed between the two; but what the guest does counts."""
    d = data(msb, "w")
    for name in ("f", "fetched", "guest"):
        (d / name).write_text("content")
        (d / name).chmod(0o444)
    sync(msb, "w")
    msb.ok("workspace", "rm", "-q", "w")
    msb.ok("workspace", "create", "w", "--s3", f"s3://{BUCKET}/pre", "--endpoint", s3.url)
    msb.ok("workspace", "ls", "w")
    for name, mode in (("f", 0o1644), ("fetched", 0o1644), ("guest", 0o644)):
        (d / name).chmod(mode)
    os.removexattr(d / "fetched", MARK)
    (d / "fetched").write_text("content")
    msb.ok("workspace", "ls", "w")
    assert [(d / name).stat().st_mode & 0o7777 for name in ("f", "fetched", "guest")] == [0o444, 0o444, 0o644]
    assert unfetched(d) == {"f"}
    manifest = json.loads(s3.objects["pre/.msb/manifest.json"].data)["entries"]
    assert {name: entry["mode"] for name, entry in manifest.items()} == {"f": 0o444, "fetched": 0o444, "guest": 0o644}


class Huge(bytes):
    def __len__(self):
        return (5 << 30) + 1


def test_an_object_that_msb_could_not_upload_stays(msb, s3):
    """Others can make one; here it is a file that was not fetched yet."""
    s3.put("pre/huge", Huge(b"x"))
    for _ in range(3):
        assert "huge" in msb.ok("workspace", "ls", "w")
        assert s3.keys("pre/") == ["pre/huge"]
    assert (data(msb, "w") / "huge").stat().st_size == len(Huge()) and unfetched(data(msb, "w")) == {"huge"}


def test_names_are_there_for_the_host(msb, s3):
    """Verbs that need them make them; an interrupted look begins again."""
    for i in range(30):
        s3.put(f"pre/d{i % 3}/e/{i:02}", b"x" * i)
    msb.create("box", "--workspace", "w")
    d = data(msb, "w")
    assert unlisted(d) == {"."}
    (d / "d0").mkdir()  # as one that was killed leaves them
    (d / "d1").mkdir()
    os.setxattr(d / "d1", MARK, b"0123456789abcdef")
    assert len(msb.ok("workspace", "ls", "w:d1/e").split()) >= 10
    assert unlisted(d) == set() and fetched(s3) == []
    msb.ok("workspace", "put", "-", "w:d1/new", input=b"new")
    assert s3.objects["pre/d1/new"].data == b"new" and len(s3.keys()) == 31
    assert sh(msb, "box", "cat /workspace/d2/e/29 | wc -c; find /workspace -type f | wc -l") == "29\n31\n"
    msb.ok("stop", "-q", "box")
    # Without a record, marked files belong to nothing, and are fetched again.
    (msb.home / "workspaces" / "w" / "s3-base.json").unlink()
    sync(msb, "w")
    assert len([p for p in d.rglob("*") if p.is_file()]) == 31 and len(s3.keys()) == 31 and unfetched(d) == set()


def test_what_cannot_be_fetched_is_an_error_that_is_logged(msb, s3):
    for name in ("lies", "cut", "gone", "changed", "fine", "dies"):
        s3.put(f"pre/{name}", name.encode() * 1000)
    msb.create("box", "--workspace", "w")
    s3.objects["pre/lies"].data += b"x"  # with the old size in the listing, and the old etag
    del s3.objects["pre/gone"]
    s3.put("pre/changed", b"by others")
    killed = []

    def fault(method, key, nth):
        if key == "pre/cut" and method == "GET" and nth == 1:
            return "cut"
        if key == "pre/dies" and method == "GET" and not killed:
            killed.extend(fetchers(msb))
            os.kill(killed[0], signal.SIGKILL)
            return "drop"
        return None

    s3.faults.append(fault)
    out = sh(msb, "box", "cd /workspace; for f in lies gone changed; do cat $f 2>&1 >/dev/null; done; "
                         "cat cut | wc -c; cat dies | wc -c; cat fine | wc -c")
    assert out.count("put/output error") == 3 and out.endswith("3000\n4000\n4000\n") and len(killed) == 1, out
    log = msb.ok("logs", "--source", "system", "box")
    assert "workspace: 'gone' was changed or removed in the bucket since the last sync" in log
    assert "pre/lies'" in log and "workspace: the process that talks to the bucket died" in log
    assert unfetched(data(msb, "w")) == {"lies", "gone", "changed"}
    # A sync says what is there now; the sandbox sees it, a tenth of a second later.
    s3.objects["pre/lies"].etag = "another"
    sync(msb, "w")
    wait_for(lambda: msb.sh("box", "cat /workspace/changed").stdout == b"by others")
    assert sh(msb, "box", "cd /workspace; ls; tail -c 1 lies") == "changed\ncut\ndies\nfine\nlies\nx"
    msb.ok("stop", "-q", "box")
    wait_for(lambda: not msb.processes())


def test_large_files_come_in_parts(msb, s3):
    part = 1 << 20
    content = b"".join(bytes([i]) * (1 << 20) for i in range(32))
    (data(msb, "w") / "lies").write_bytes(content)
    sync(msb, "w")
    msb.ok("workspace", "rm", "-q", "w")
    msb.ok("workspace", "create", "w", "--s3", f"s3://{BUCKET}/pre", "--endpoint", s3.url)
    for name in ("read", "sought", "other"):
        s3.put(f"pre/{name}", name.encode() + content + name.encode())
    msb.create("box", "--workspace", "w")

    def md5(name):
        return hashlib.md5(s3.objects[f"pre/{name}"].data).hexdigest()

    def parts(name):
        return [r for k, r in s3.ranges if k == f"pre/{name}"]

    d = data(msb, "w")
    msb.ok("workspace", "ls", "w")
    before = (d / "read").stat().st_mtime_ns
    assert sh(msb, "box", "cd /workspace; head -c 4 read; tail -c 6 sought; head -c 6 sought") == "readsoughtsought"
    assert "read" in unfetched(d) and parts("read")[0] == f"0-{8 * part - 1}" and len(parts("read")) <= 2
    # What is read by itself comes by itself.
    assert parts("sought")[0] == f"{32 * part}-{len(s3.objects['pre/sought'].data) - 1}" and not parts("other")
    sums = sh(msb, "box", "cd /workspace; cp read copy; md5sum <copy; rm copy; dd if=sought bs=1M skip=10 count=9 2>/dev/null | md5sum")
    sought = hashlib.md5(s3.objects["pre/sought"].data[10 << 20:19 << 20]).hexdigest()
    assert sums.split("  -\n")[:2] == [md5("read"), sought]
    # Each part was fetched once, and the whole is an ordinary file then, as old as before.
    spans = sorted(tuple(map(int, r.split("-"))) for r in parts("read"))
    assert len(spans) <= 12 and [a for a, _ in spans[1:]] == [b + 1 for _, b in spans[:-1]], spans
    wait_for(lambda: unfetched(d) - {"sought"} == {"other", "lies"})
    assert (d / "read").stat().st_mtime_ns == before and not os.listxattr(d / "read")
    # What is opened for writing comes whole, also if parts are here.
    sh(msb, "box", "echo end >>/workspace/sought")
    assert (d / "sought").read_bytes() == s3.objects["pre/sought"].data + b"end\n"
    # A sum that is wrong, a server that cannot do it, an object that was replaced.
    s3.objects["pre/lies"].data = content[:-1] + b"x"
    assert "put/output error" in sh(msb, "box", "cat /workspace/lies 2>&1 >/dev/null || true")
    s3.whole = True
    assert "put/output error" in sh(msb, "box", "head -c 1 /workspace/other 2>&1 || true")
    s3.whole = False
    s3.put("pre/other", b"another")
    assert "put/output error" in sh(msb, "box", "head -c 1 /workspace/other 2>&1 || true")
    why = ("'lies' in the bucket does not match the manifest", "ignores the requested range", "'other' was changed")
    # They are written by another process than the one that answers.
    wait_for(lambda: all(w in msb.ok("logs", "--source", "system", "box") for w in why))
    # A sync brings what is right again.
    s3.objects["pre/lies"].data = content
    sync(msb, "w")
    assert (d / "lies").read_bytes() == content and unfetched(d) == set()
    assert s3.objects["pre/sought"].data.endswith(b"end\n")


def test_a_large_file_with_another_etag_than_is_listed(msb, s3):
    """OpenStack Swift has them, where others copied what was uploaded in parts. Nothing tells whether parts are of one
    version, so it comes at once."""
    s3.put("pre/copied", b"begin" + bytes(32 << 20) + b"end")
    s3.objects["pre/copied"].etag = "0123-2"
    msb.create("box", "--workspace", "w")
    assert sh(msb, "box", "cd /workspace; tail -c 3 copied; head -c 5 copied") == "endbegin"
    assert unfetched(data(msb, "w")) == set() and msb.ok("logs", "--source", "system", "box").count("copied") == 0
    assert sh(msb, "box", "md5sum </workspace/copied").split()[0] == hashlib.md5(s3.objects["pre/copied"].data).hexdigest()
    msb.ok("rm", "-q", "-f", "box")


@pytest.mark.parametrize("size", [2 << 20, 34 << 20], ids=["whole", "parts"])
def test_an_answer_that_breaks_before_the_etag_is_another(msb, s3, size):
    """What is asked for again then comes from where it began, or in parts, from where it stopped."""
    content = b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(size // 32))
    (data(msb, "w") / "file").write_bytes(content)
    sync(msb, "w")
    msb.ok("workspace", "rm", "-q", "w")
    shutil.rmtree(msb.home / "cache" / "objects", ignore_errors=True)
    msb.ok("workspace", "create", "w", "--s3", f"s3://{BUCKET}/pre", "--endpoint", s3.url)
    one = s3.objects["pre/file"]
    one.etag = one.listed = "what-is-listed"
    manifest = s3.objects["pre/.msb/manifest.json"]
    manifest.data = re.sub(rb'("file".*?"etag": ?")[^"]*', rb"\g<1>what-is-listed", manifest.data)

    def once(method, key, nth):
        if (method, key, nth) == ("GET", "pre/file", 1):
            return "cut"
        if key == "pre/file":
            one.etag = "what-it-has"
        return None

    s3.seen.clear()
    s3.faults.append(once)
    msb.create("box", "--workspace", "w")
    md5 = sh(msb, "box", "md5sum /workspace/file")
    assert s3.seen["GET", "pre/file"] >= 3 and md5.startswith(hashlib.md5(content).hexdigest())
    msb.ok("stop", "-q", "box")
    assert (data(msb, "w") / "file").read_bytes() == content


def test_times_hold_while_content_arrives(msb, s3):
    d, old = data(msb, "w"), 10**18
    (d / "f").write_bytes(b"x" * 500000)
    os.utime(d / "f", ns=(old, old))
    sync(msb, "w")
    msb.ok("workspace", "rm", "-q", "w")
    msb.ok("workspace", "create", "w", "--s3", f"s3://{BUCKET}/pre", "--endpoint", s3.url)
    shutil.rmtree(msb.home / "cache" / "objects", ignore_errors=True)
    msb.create("box", "--workspace", "w")
    go, plain = threading.Event(), s3.answer

    def slowly(h, status, body=b"", cut=False, **headers):
        if len(body) != 500000:
            return plain(h, status, body, cut, **headers)
        plain(h, status, body[:250000], length=str(len(body)), **headers)
        h.wfile.flush()
        go.wait(60)
        h.wfile.write(body[250000:])

    s3.answer = slowly
    p = msb.popen("exec", "-q", "box", "--", "wc", "-c", "/workspace/f", stdout=-1)
    wait_for(lambda: (d / "f").exists() and (d / "f").stat().st_blocks > 0)
    wait_for(lambda: (d / "f").stat().st_mtime_ns == old, timeout=20)
    assert "f" in unfetched(d)
    go.set()
    assert p.communicate(timeout=60)[0].startswith(b"500000 ") and (d / "f").stat().st_mtime_ns == old


def test_two_sandboxes_fetch_once(msb, s3):
    for i in range(3):
        s3.put(f"pre/{i}", b"%d" % i * 100000)
    for name in ("one", "two"):
        msb.create(name, "--workspace", "w")
    msb.ok("exec", "-q", "one", "--", "true")
    p = [msb.popen("exec", "-q", n, "--", "sh", "-c", "cat /workspace/* | md5sum", stdout=-1) for n in ("one", "two")]
    assert {x.communicate(timeout=60)[0] for x in p} == {
        hashlib.md5(b"".join(b"%d" % i * 100000 for i in range(3))).hexdigest().encode() + b"  -\n"}
    assert fetched(s3) == ["0", "1", "2"]
    sh(msb, "one", "echo mine >>/workspace/1")
    # The other may go by what it has seen for a moment.
    wait_for(lambda: sh(msb, "two", "tail -c 5 /workspace/1") == "mine\n")
    # Without the bucket, what was fetched is there, and the rest is an error.
    s3.put("pre/later", b"x" * 10)
    msb.ok("workspace", "ls", "w")
    s3.faults.append(lambda method, key, nth: 403)
    assert sh(msb, "one", "cat /workspace/later 2>/dev/null || tail -c 5 /workspace/1") == "mine\n"
    p = msb("workspace", "get", "w:later", "-")
    assert p.returncode == 1 and p.stdout == b"", p


def test_changes_are_uploaded_while_it_runs(msb, s3):
    s3.put("pre/old", b"old")
    msb.create("box", "--workspace", "w", "--workspace-sync", "close")
    sh(msb, "box", "cd /workspace; echo 1 >new; mv old moved")
    wait_for(lambda: s3.keys() == ["pre/moved", "pre/new"], timeout=60)
    assert s3.objects["pre/new"].data == b"1\n" and s3.objects["pre/moved"].data == b"old"
    # What it was told of last is uploaded even if the sandbox is killed.
    sh(msb, "box", "echo 2 >/workspace/last; sync")
    msb.ok("stop", "-qf", "box")
    wait_for(lambda: "pre/last" in s3.keys() and not msb.processes(), timeout=60)
    assert s3.objects["pre/last"].data == b"2\n"
    assert json.loads(msb.ok("inspect", "box", "--format", "json"))["config"]["workspace"]["sync"] == "close"


def test_the_policy_holds_while_it_runs(msb, s3):
    """A bucket that is forbidden meanwhile gets nothing more; what it has can still be read."""
    s3.put("pre/old", b"old")
    msb.create("box", "--workspace", "w", "--workspace-sync", "fsync")
    policy = msb.home / "policy.yaml"
    policy.write_text('buckets: ["s3://other"]\n')
    write = ["exec", "-q", "box", "--", "dd", "if=/dev/zero", "of=/workspace/new", "bs=1k", "count=1", "conv=fsync"]
    p = msb(*write)
    assert p.returncode == 1 and b"put/output error" in p.stderr, p
    assert "refused by policy: buckets: asked for " in msb.ok("logs", "--source", "system", "box")
    assert s3.keys() == ["pre/old"] and sh(msb, "box", "cat /workspace/old") == "old"
    policy.unlink()
    msb.ok(*write)
    assert s3.keys() == ["pre/new", "pre/old"]


def test_an_fsync_that_means_in_the_bucket(msb, s3):
    msb.create("box", "--workspace", "w", "--workspace-sync", "fsync")
    write = "dd if=/dev/zero of=/workspace/{} bs=1k count=4 conv=fsync 2>&1"
    sh(msb, "box", "echo 0 >/workspace/close; " + write.format("one"))
    assert s3.objects["pre/one"].data == bytes(4096) and s3.objects["pre/close"].data == b"0\n"  # at once
    # Those that come while a sync runs share the next one.
    sh(msb, "box", "for i in $(seq 20); do " + write.format("storm$i") + " & done; wait", timeout=100)
    assert len([k for k in s3.keys() if k.startswith("pre/storm")]) == 20
    # A failure is the program's, which can try again.
    s3.faults.append(lambda method, key, nth: 403 if key == "pre/two" else None)
    p = msb("exec", "-q", "box", "--", "sh", "-c", write.format("two"))
    assert p.returncode == 1 and b"put/output error" in p.stdout, p
    assert "cannot write 'pre/two'" in msb.ok("logs", "--source", "system", "box")
    s3.faults.clear()
    sh(msb, "box", write.format("two"))
    assert s3.objects["pre/two"].data == bytes(4096)
    # What is not asked for goes as with close.
    sh(msb, "box", "mv /workspace/two /workspace/three")
    wait_for(lambda: "pre/three" in s3.keys() and "pre/two" not in s3.keys(), timeout=60)


def test_contents_are_cached_for_all_workspaces(msb, s3):
    (data(msb, "w") / "known").write_bytes(b"known" * 1000)
    sync(msb, "w")
    s3.put("pre/theirs", b"theirs" * 1000)
    cache = msb.home / "cache" / "objects"

    def again():
        """A recreated workspace, with everything in it fetched."""
        msb.ok("workspace", "rm", "-q", "w")
        msb.ok("workspace", "create", "w", "--s3", f"s3://{BUCKET}/pre", "--endpoint", s3.url)
        fetched(s3)
        msb.ok("workspace", "ls", "w")
        msb.ok("workspace", "get", "w:theirs", "-")
        assert {p.name: p.read_bytes() for p in data(msb, "w").iterdir()} == {
            "known": b"known" * 1000, "theirs": b"theirs" * 1000}
        return fetched(s3)

    assert again() == ["known", "theirs"] and len(list(cache.iterdir())) == 2
    assert again() == ["theirs"]  # its hash is unknown until it is in the manifest
    (data(msb, "w") / "more").write_text("a push")
    sync(msb, "w")
    (data(msb, "w") / "more").unlink()
    sync(msb, "w")
    assert again() == []
    # What is damaged is not used.
    for p in cache.iterdir():
        p.write_bytes(p.read_bytes()[:-1] + b"x")
    assert again() == ["known", "theirs"] and again() == []
