"""Uploads of large files to a bucket that break, are killed, and go on where they were."""
import hashlib
import os
import shutil
import signal
import subprocess
import threading

import pytest

from conftest import LARGE, LIMIT, wait_for
from fakes3 import BUCKET
from guest import sh
from terminal import Terminal
from test_workspace_s3 import KEYS, data, two_hosts

SIZE, PARTS = (8 << 20) + 5, 2


@pytest.fixture
def w(msb, s3):
    """The files of a workspace in a bucket, with a large one."""
    msb.env.update(KEYS)
    msb.ok("workspace", "create", "w", "--s3", f"s3://{BUCKET}/pre", "--endpoint", s3.url)
    (data(msb, "w") / "large").write_bytes(os.urandom(SIZE))
    return data(msb, "w")


def records(msb):
    return list((msb.home / "workspaces" / "w").glob("s3-uploads/*"))


def fails(msb, s3, method, nth, how=403):
    """A sync whose nth request of that kind for content is refused."""
    def fault(m, key, _):
        if m == method and not key.endswith(".json"):
            seen.append(key)
            if len(seen) == nth:
                return how
        return None

    seen = []
    s3.faults[:] = [fault]
    msb("workspace", "sync", "w", check=1)
    s3.faults.clear()


def settled(msb, s3, w):
    """Another sync makes all of it good, and leaves nothing behind."""
    msb.ok("workspace", "sync", "-q", "w")
    assert s3.objects["pre/large"].data == (w / "large").read_bytes()
    assert not s3.uploads and not records(msb) and s3.keys("pre/.msb/", ours=True) == ["pre/.msb/manifest.json"]


def test_parts_that_the_server_will_not_have(msb, s3, w):
    """It says that it has them, and refuses to make an object of them: the next sync begins again."""
    fails(msb, s3, "POST", 2, 400)
    assert not s3.uploads and not records(msb)
    s3.stored.clear()
    settled(msb, s3, w)
    assert sorted(n for _, n in s3.stored) == [1, 2]


def test_parts_that_arrived_are_not_sent_again(msb, s3, w):
    for nth in (1, 2):
        s3.stored.clear()
        (w / "large").write_bytes(os.urandom(SIZE))  # new, then in place of what is there
        fails(msb, s3, "PUT", nth)
        assert len(s3.stored) < PARTS and len(s3.uploads) == 1 and len(records(msb)) == 1
        settled(msb, s3, w)
        assert sorted(n for _, n in s3.stored) == [1, 2] and len({key for key, _ in s3.stored}) == 1
    # What could not be begun, and what could not be ended.
    (w / "large").write_bytes(os.urandom(SIZE))
    s3.stored.clear()
    fails(msb, s3, "POST", 1)
    assert not s3.stored and not s3.uploads
    fails(msb, s3, "POST", 2)
    settled(msb, s3, w)
    assert len(s3.stored) == PARTS


def test_an_end_whose_answer_is_lost(msb, s3, w):
    s3.faults.append(lambda method, key, nth: "lost" if (method, nth) == ("POST", 2) else None)
    settled(msb, s3, w)
    assert len(s3.stored) == PARTS


def test_progress_on_a_terminal(msb, s3, w):
    for i in range(8):
        (w / f"f{i}").write_text("x")
    go = threading.Event()

    def end(method, key, nth):
        if method == "POST" and nth == 2:
            s3.lock.release()
            go.wait(60)
            s3.lock.acquire()

    s3.faults.append(end)
    with Terminal([msb.exe, "workspace", "sync", "w"], msb.env) as t:
        try:
            t.read_until(b"8 of 9 files, 8.0 MiB")
        finally:
            go.set()
        t.read_until(b"Synced")
        assert t.wait() == 0
    assert b"files" not in msb("workspace", "sync", "w", check=0).stderr


def test_killed(msb, s3, w):
    push = msb.popen("workspace", "sync", "-q", "w", stderr=subprocess.PIPE, start_new_session=True)

    def last(method, key, nth):
        if (method, nth) != ("PUT", PARTS) or key != "pre/large":
            return None
        s3.lock.release()
        wait_for(lambda: records(msb) and records(msb)[0].read_text().count("\n") == 3 + PARTS - 1)
        s3.lock.acquire()
        os.killpg(push.pid, signal.SIGKILL)
        return "drop"

    s3.faults.append(last)
    assert push.wait(60) != 0
    push.stderr.close()
    s3.faults.clear()
    assert len(s3.stored) == PARTS - 1
    with records(msb)[0].open("a") as f:
        f.write("1 x y\n2\n0 a b\n99999999999999999999 a b\n1001 a b\n" + "3 " * 5000 + "torn")  # by a crash
    settled(msb, s3, w)
    assert sorted(n for _, n in s3.stored) == [1, 2]


def test_what_is_of_no_use_any_more_is_given_up(msb, s3, w):
    # The server has forgotten it, or part of it.
    fails(msb, s3, "POST", 2)
    s3.uploads.clear()
    settled(msb, s3, w)
    assert len(s3.stored) == 2 * PARTS
    (w / "large").write_bytes(os.urandom(SIZE))
    fails(msb, s3, "POST", 2)
    next(iter(s3.uploads.values()))[2].pop(2)
    s3.stored.clear()
    settled(msb, s3, w)
    assert [n for _, n in s3.stored] == [2]
    # The file was changed, with its time or without.
    (w / "large").write_bytes(os.urandom(SIZE))
    fails(msb, s3, "POST", 2)
    times = (w / "large").stat().st_atime_ns, (w / "large").stat().st_mtime_ns
    with (w / "large").open("r+b") as f:
        f.write(b"changed")
    os.utime(w / "large", ns=times)
    s3.stored.clear()
    settled(msb, s3, w)
    assert [n for _, n in s3.stored] == [1]
    (w / "large").write_bytes(os.urandom(SIZE))
    fails(msb, s3, "POST", 2)
    os.utime(w / "large", ns=(5, 5))
    settled(msb, s3, w)
    # It is smaller, or gone.
    (w / "large").write_bytes(os.urandom(SIZE))
    fails(msb, s3, "POST", 2)
    (w / "large").write_bytes(b"small")
    settled(msb, s3, w)
    (w / "other").write_bytes(os.urandom(SIZE))
    fails(msb, s3, "POST", 2)
    (w / "other").unlink()
    assert s3.uploads
    settled(msb, s3, w)


@pytest.mark.timeout(LIMIT * (15 if LARGE else 2))
def test_many_files_and_a_huge_one_arrive(msb, s3):
    """What one host's sandbox has written is in the bucket, and in a sandbox of another host."""
    files, mib = (10000, 2048) if LARGE else (2000, 40)
    write = ("for i in $(seq 0 99); do mkdir d$i; done; i=0; while [ $i -lt %d ]; do echo $i >d$((i %% 100))/f$i; i=$((i + 1)); "
             "done; dd if=/dev/urandom of=huge bs=1M count=%d 2>/dev/null" % (files, mib))
    two_hosts(msb, s3)
    s3.page, sums = 1000, []
    for name, script in (("a", write), ("b", "true")):
        msb.create(name, "--workspace", name)
        out = sh(msb, name, f"cd /workspace; {script}; find . -type f -exec md5sum {{}} +", timeout=LIMIT * 5)
        sums.append(dict(line.split("  ./")[::-1] for line in out.splitlines()))
        msb.ok("stop", "-q", name, timeout=LIMIT * 5)
        shutil.rmtree(msb.home / "cache" / "objects", ignore_errors=True)  # which hosts do not share
    assert len(sums[0]) == files + 1 and sums[0] == sums[1]
    assert sums[0] == {k.removeprefix("pre/"): hashlib.md5(s3.objects[k].data).hexdigest() for k in s3.keys("pre/")}
    assert len(s3.objects["pre/huge"].data) == mib << 20
