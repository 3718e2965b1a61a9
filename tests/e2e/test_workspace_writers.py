"""Several hosts that push to one bucket at the same time: nothing is lost, whoever is faster, and whoever dies."""

import os
import re
import shutil
import signal
import threading

import pytest

from conftest import wait_for
from test_workspace_s3 import status, sync, tree, two_hosts


@pytest.fixture
def two(msb, s3):
    return two_hosts(msb, s3)


def at(s3, method, pattern, act):
    """Calls act() once, before the first such request is answered. Returns [True] once that is done."""
    done = []

    def before(m, key, query):
        if m == method and re.fullmatch(pattern, key) and not done:
            done.append(False)
            act()
            done[0] = True

    s3.before = before
    return done


def texts(path):
    """What is in files, and whose name says that they are in conflict."""
    return {re.sub(r"\.conflict-[0-9-]+$", ".conflict", name): what[-1] for name, what in tree(path).items()}


def dies(msb, s3, name, method, pattern, there=None, nth=1, how="drop"):
    """A sync that is killed when it makes such a request, and another thread has put an object there."""
    made = []

    def fault(m, key, _):
        if m == method and re.fullmatch(pattern, key):
            made.append(key)
            if len(made) < nth:
                return None
            if there:
                s3.lock.release()
                wait_for(lambda: there in s3.objects)
                s3.lock.acquire()
            os.killpg(push.pid, signal.SIGKILL)
            return how
        return None

    with s3.lock:  # until push is known
        push = msb.popen("workspace", "sync", "-q", name, start_new_session=True)
        s3.faults[:] = [fault]
    assert push.wait(60) == -signal.SIGKILL
    s3.faults.clear()


def test_two_writers_at_once(msb, s3, two):
    """The second one to write the manifest starts again, and nothing is lost."""
    a, b = two
    (a / "f").write_text("old")
    sync(msb, "a", "b")
    (a / "f").write_text("from a")
    (a / "only-a").write_text("a")
    (b / "only-b").write_text("b")
    done = []

    def in_between(method, key, nth):
        if method == "PUT" and key.startswith("pre/.msb/new/") and not done:
            done.append(key)
            s3.faults.clear()
            s3.lock.release()  # another host, in the middle of a's push
            sync(msb, "b")
            s3.lock.acquire()

    s3.faults.append(in_between)
    sync(msb, "a")
    sync(msb, "b")
    assert done and tree(a) == tree(b)
    assert {n: t[-1] for n, t in tree(a).items()} == {"f": b"from a", "only-a": b"a", "only-b": b"b"}


def test_a_push_of_another_host_is_left_alone(msb, s3, two):
    """What is pending or staged may still be needed."""
    a, b = two
    (a / "old").write_text("1")
    sync(msb, "a", "b")
    for i in range(20):
        (a / f"new{i}").write_text(f"{i}")
    (a / "old").write_text("2")

    def others():
        manifest = s3.objects["pre/.msb/manifest.json"]
        sync(msb, "b")  # has nothing to push
        assert s3.objects["pre/.msb/manifest.json"] is manifest
        (b / "mine").write_text("b")
        sync(msb, "b")

    # The last thing that a does before its manifest: the staged content is there, and most of the new files.
    done = at(s3, "PUT", "pre/new19", others)
    sync(msb, "a")
    assert done == [True] and not [k for m, k, _ in s3.log if m == "DELETE" and k.startswith("pre/new")]
    sync(msb, "b", "a")
    assert tree(a) == tree(b) and len(tree(a)) == 22 and s3.objects["pre/old"].data == b"2"
    assert s3.keys("pre/.msb/", ours=True) == ["pre/.msb/manifest.json"]


def test_what_was_pushed_meanwhile_is_not_removed(msb, s3, two):
    """b has removed it, and a changed it, after b had said so and before it did so."""
    a, b = two
    (a / "f").write_text("1")
    sync(msb, "a", "b")
    (b / "f").unlink()

    def edit():
        (a / "f").write_text("from a")
        sync(msb, "a")

    done = at(s3, "HEAD", "pre/.msb/manifest.json", edit)
    sync(msb, "b")
    assert done == [True]
    sync(msb, "a", "b")
    assert texts(a) == texts(b) == {"f": b"from a"} and s3.objects["pre/f"].data == b"from a"


def test_what_was_pushed_meanwhile_is_not_replaced(msb, s3, two):
    a, b = two
    (a / "f").write_text("1")
    sync(msb, "a", "b")
    (b / "f").write_text("from b")
    (a / "f").write_text("from a")
    done = at(s3, "HEAD", "pre/.msb/manifest.json", lambda: sync(msb, "a"))
    sync(msb, "b")
    assert done == [True]
    sync(msb, "a", "b")
    assert texts(a) == texts(b) == {"f": b"from b", "f.conflict": b"from a"} and s3.objects["pre/f"].data == b"from b"
    assert s3.keys("pre/.msb/", ours=True) == ["pre/.msb/manifest.json"]


def test_two_hosts_add_the_same_name(msb, s3, two):
    """Also if it is sent in parts, and another one is there when they are put together."""
    a, b = two
    large = os.urandom((8 << 20) + 1)
    (a / "f").write_bytes(large)
    (b / "f").write_text("from b")
    completes = []

    def fault(method, key, nth):
        if method == "POST" and not completes and nth == 2:
            completes.append(key)
            s3.lock.release()
            sync(msb, "b")
            s3.lock.acquire()

    s3.faults.append(fault)
    sync(msb, "a")
    assert completes == ["pre/f"]
    sync(msb, "b", "a")
    assert texts(a) == texts(b) == {"f": b"from b", "f.conflict": large} and not s3.uploads
    assert s3.keys("pre/.msb/", ours=True) == ["pre/.msb/manifest.json"]


def test_what_a_dead_host_has_begun_is_removed_later(msb, s3, two):
    a, b = two
    (a / "old").write_text("1")
    sync(msb, "a", "b")
    (a / "old").write_text("2")
    (a / "x").write_text("never whole")
    (a / "y").write_text("never whole")
    dies(msb, s3, "a", "PUT", "pre/y")
    (b / "mine").write_text("b")
    (b / "x").write_text("another one")  # whose name is taken for now, and still counts
    sync(msb, "b")
    assert texts(b) == {"old": b"1", "mine": b"b", "x": b"another one"} and s3.objects["pre/x"].data == b"another one"
    s3.ahead = 2 * 86400
    sync(msb, "b")
    assert s3.keys("pre/", ours=True) == ["pre/.msb/manifest.json", "pre/mine", "pre/old", "pre/x"]
    assert b'"pending":[]' in s3.objects["pre/.msb/manifest.json"].data
    sync(msb, "a", "b")
    assert tree(a) == tree(b) and set(texts(a)) == {"old", "mine", "x", "x.conflict", "y"}


def test_what_a_dead_push_has_uploaded_is_not_sent_again(msb, s3, two):
    """If it is still the same, in all that its object says."""
    a, b = two
    for name in ("f", "changed", "mode", "touched", "theirs"):
        (a / name).write_text("1")
    dies(msb, s3, "a", "PUT", "pre/.msb/manifest.json", nth=2)
    assert len(s3.keys("pre/")) == 5
    (a / "changed").write_text("2")
    (a / "mode").chmod(0o600)
    os.utime(a / "touched", (1000, 1000))
    s3.put("pre/theirs", b"1", **{"msb-sha256": s3.objects["pre/theirs"].meta["x-amz-meta-msb-sha256"]})
    s3.log.clear()
    sync(msb, "a", "b")
    assert sorted(k for m, k, _ in s3.log if m == "PUT" and "/.msb/" not in k) == ["pre/changed", "pre/mode", "pre/touched"]
    assert tree(a) == tree(b) and texts(b) == {**dict.fromkeys(("f", "mode", "touched", "theirs"), b"1"), "changed": b"2"}
    assert s3.objects["pre/mode"].meta["x-amz-meta-msb-mode"] == "600" and (b / "touched").stat().st_mtime == 1000


def test_what_no_push_adds_any_more_never_counts(msb, s3, two):
    """A push is killed, and so is the one that cleans up after it: between its manifest and the removal."""
    a, b = two
    (a / "f").write_text("1")
    sync(msb, "a", "b")
    (a / "x").write_text("2")
    (a / "z").write_text("2")
    dies(msb, s3, "a", "PUT", "pre/z", there="pre/x")
    (a / "x").unlink()
    dies(msb, s3, "a", "DELETE", "pre/x")
    sync(msb, "b")
    assert texts(b) == {"f": b"1", "z": b"2"}
    sync(msb, "a", "b")
    assert tree(a) == tree(b) and s3.keys("pre/", ours=True) == ["pre/.msb/manifest.json", "pre/f", "pre/z"]


@pytest.mark.parametrize("how", ["lost", "killed", "refused"])
def test_a_directory_that_becomes_a_file(msb, s3, two, how):
    """Whatever happens between its object and the manifest: it does not count until then, and is in nobody's way."""
    a, b = two
    for name in ("p", "q"):
        (a / name).mkdir(mode=0o700)
    (a / "p" / "x").write_text("1")
    sync(msb, "a", "b")
    old, manifests = tree(b), []
    (a / "p" / "x").unlink()
    for name in ("p", "q"):
        (a / name).rmdir()
        (a / name).write_text("a file now")

    def fault(method, key, nth):
        if method != "PUT":
            return None
        if not key.endswith("manifest.json"):
            return "lost" if how == "lost" and key in ("pre/p", "pre/q") and nth == 1 else None
        manifests.append(key)
        if how == "killed" and len(manifests) == 2:
            os.killpg(push.pid, signal.SIGKILL)
            return "drop"
        return 412 if how == "refused" and len(manifests) == 2 else None

    with s3.lock:  # until push is known
        push = msb.popen("workspace", "sync", "-q", "a", start_new_session=True)
        s3.faults[:] = [fault]
    assert push.wait(60) == (-signal.SIGKILL if how == "killed" else 0)
    s3.faults.clear()
    if how == "killed":
        assert "pre/p" in s3.objects and "pre/q" in s3.objects
        sync(msb, "b")
        assert tree(b) == old
        (b / "q").rmdir()  # its name is taken by a host that may be alive
        (b / "q").write_text("from b")
        sync(msb, "b", "a")
        assert texts(a)["q"] == b"from b" and texts(a)["q.conflict"] == b"a file now"
    sync(msb, "b", "a", "b")
    assert tree(a) == tree(b) and texts(b)["p"] == b"a file now" and "pre/p/x" not in s3.objects
    assert s3.keys("pre/.msb/", ours=True) == ["pre/.msb/manifest.json"] and status(msb, "a") == status(msb, "b") == {}


# --- those who do not read the manifest -----------------------------------------------------------


def both_are_kept(msb, s3, a, b, *, name="f", theirs=b"theirs", ours=b"from a"):
    """What they wrote keeps the name; ours is beside it, on all sides."""
    sync(msb, "a", "b")
    assert texts(a) == texts(b) == {name: theirs, f"{name}.conflict": ours} and s3.objects[f"pre/{name}"].data == theirs
    sync(msb, "a")
    assert s3.keys("pre/.msb/", ours=True) == ["pre/.msb/manifest.json"] and status(msb, "a") == status(msb, "b") == {}


@pytest.mark.parametrize("how", ["small", "large", "killed", "copied"])
def test_others_write_where_a_push_adds(msb, s3, two, how):
    """Since it was announced, and before it arrives: its name alone does not make an object ours."""
    a, b = two
    ours = os.urandom((8 << 20) + 1) if how == "large" else b"from a"
    if how == "copied":  # an object of ours, by the server, with all of its metadata
        (a / "draft").write_text("theirs")
        sync(msb, "a")
    (a / "f").write_bytes(ours)

    def write():
        s3.put("pre/f", b"theirs")
        if how == "copied":
            s3.objects["pre/f"].meta = s3.objects.pop("pre/draft").meta

    if how == "killed":
        dies(msb, s3, "a", "PUT", "pre/f")
        write()
    else:
        done = []

        def before(method, key, query):
            if key == "pre/f" and method == ("POST" if how == "large" else "PUT") and query != "uploads=" and not done:
                done.append(write())

        s3.before = before
        sync(msb, "a")
        assert done
    if how == "copied":
        (a / "draft").unlink(missing_ok=True)
    both_are_kept(msb, s3, a, b, ours=ours)


@pytest.mark.parametrize("dead", [False, True])
def test_what_others_wrote_before_it_was_announced_still_counts(msb, s3, two, dead):
    """A third host has it already, and keeps it while its name is pending."""
    a, b = two
    (a / "f").write_text("from a")
    seen = []

    def write():
        s3.put("pre/f", b"theirs")
        sync(msb, "b")
        seen.append(texts(b))

    def look():
        sync(msb, "b")
        seen.append(texts(b))

    steps = [("PUT", "pre/.msb/manifest.json", write), ("PUT", "pre/f", look)][:1 if dead else 2]

    def before(method, key, query):
        if steps and (method, key) == steps[0][:2]:
            steps.pop(0)[2]()

    s3.before = before
    if dead:
        dies(msb, s3, "a", "PUT", "pre/f")
        look()
    else:
        sync(msb, "a")
        assert not steps
    assert seen == [{"f": b"theirs"}] * len(seen) and len(seen) == 2
    both_are_kept(msb, s3, a, b)


def test_a_lost_reply_does_not_restart_a_push(msb, s3, two):
    """The retry is refused, since the object is there: it is the one that was sent."""
    a, b = two
    (a / "f").write_text("1")
    s3.faults.append(lambda method, key, nth: "lost" if (method, key, nth) == ("PUT", "pre/f", 1) else None)
    sync(msb, "a")
    assert [m for m, key, query in s3.log if not key] == ["GET"] and s3.seen["PUT", "pre/f"] == 2
    sync(msb, "b")
    assert tree(a) == tree(b) and status(msb, "a") == status(msb, "b") == {}


def test_others_write_what_looks_like_ours(msb, s3, two):
    """Of the same size and time, where a large file is put together."""
    a, b = two
    ours, theirs = os.urandom((8 << 20) + 1), os.urandom((8 << 20) + 1)
    (a / "f").write_bytes(ours)
    os.utime(a / "f", ns=(5, 5))
    done = []

    def before(method, key, query):
        if method == "POST" and key == "pre/f" and "uploadId" in query and not done:
            done.append(s3.put("pre/f", theirs, **{"msb-mtime": "5"}))

    s3.before = before
    sync(msb, "a")
    assert done
    both_are_kept(msb, s3, a, b, theirs=theirs, ours=ours)


def test_a_server_without_conditions_keeps_what_others_write(msb, s3):
    """Whatever can be known before a request is made."""
    s3.conditional = False
    a, b = two_hosts(msb, s3)
    (a / "f").write_text("from a")
    dies(msb, s3, "a", "PUT", "pre/f")
    s3.put("pre/f", b"theirs")
    both_are_kept(msb, s3, a, b)
    (a / "f").write_text("from a, too")
    done = at(s3, "HEAD", "pre/f", lambda: s3.put("pre/f", b"theirs, too"))
    sync(msb, "a", "a", "b")
    assert done == [True] and tree(a) == tree(b) and s3.objects["pre/f"].data == b"theirs, too"
    assert b"from a, too" in [what[-1] for what in tree(b).values()]


@pytest.mark.parametrize("when", ["before the sync", "during it"])
def test_others_write_where_a_push_died(msb, s3, two, when):
    """It adds nothing there any more, and removes what it had begun, but nothing else."""
    a, b = two
    (a / "f").write_text("from a")
    (a / "g").write_text("from a")
    dies(msb, s3, "a", "PUT", "pre/g", there="pre/f")
    (a / "f").unlink()
    if when == "before the sync":
        s3.put("pre/f", b"theirs")
    else:
        assert at(s3, "PUT", "pre/.msb/manifest.json", lambda: s3.put("pre/f", b"theirs")) == []
    sync(msb, "a", "a", "b")
    assert texts(a) == texts(b) == {"f": b"theirs", "g": b"from a"} and s3.objects["pre/f"].data == b"theirs"


@pytest.mark.parametrize("when", ["manifest", "copy", "killed"])
def test_others_write_where_a_push_replaces(msb, s3, two, when):
    """After the new content was uploaded, and before it is put in place; also if that is never done."""
    a, b = two
    (a / "f").write_text("1")
    sync(msb, "a", "b")
    (a / "f").write_text("from a")

    def write():
        s3.put("pre/f", b"theirs")

    if when == "killed":
        dies(msb, s3, "a", "PUT", "pre/f")
        sync(msb, "b")
        assert texts(b) == {"f": b"from a"}
        write()
    else:
        done = at(s3, *(("PUT", "pre/.msb/manifest.json") if when == "manifest" else ("HEAD", "pre/f")), write)
        sync(msb, "a")
        assert done == [True]
    both_are_kept(msb, s3, a, b)


@pytest.mark.parametrize("size", [6, (8 << 20) + 1])
def test_a_push_dies_between_a_copy_and_its_end(msb, s3, two, size):
    """What is in place is ours, whatever its ETag."""
    a, b = two
    (a / "f").write_text("1")
    sync(msb, "a", "b")
    (a / "f").write_bytes(os.urandom(size))
    (a / "f").chmod(0o640)
    dies(msb, s3, "a", "DELETE", "pre/.msb/new/.*")
    for name in ("b", "a", "b"):
        sync(msb, name)
        assert tree(a) == tree(b) and list(tree(b)) == ["f"]
    assert s3.keys("pre/.msb/", ours=True) == ["pre/.msb/manifest.json"] and status(msb, "a") == status(msb, "b") == {}


@pytest.mark.parametrize("what", ["removes", "replaces"])
def test_what_is_tried_again_is_checked_again(msb, s3, two, what):
    """The server is busy, and by the time it is not, somebody else has pushed."""
    a, b = two
    (a / "f").write_text("1")
    sync(msb, "a", "b")
    done = []

    def fault(method, key, nth):
        if done or key != "pre/f" or method != ("DELETE" if what == "removes" else "PUT"):
            return None
        done.append(key)
        s3.lock.release()
        sync(msb, "b")
        (b / "f").write_text("from b")
        sync(msb, "b")
        s3.lock.acquire()
        return 503

    s3.faults.append(fault)
    if what == "removes":
        (a / "f").unlink()
    else:
        (a / "f").write_text("from a")
    sync(msb, "a")
    assert done
    sync(msb, "a", "b", "a", "b")
    assert tree(a) == tree(b) and s3.objects["pre/f"].data == b"from b" and texts(a)["f"] == b"from b"
    assert s3.keys("pre/.msb/", ours=True) == ["pre/.msb/manifest.json"]


# --- what is removed ------------------------------------------------------------------------------


def test_what_a_dead_push_removed_stays_removed(msb, s3, two):
    """It counted, and nobody brings it back: not by another push, and not under the same name."""
    a, b = two
    for name in ("f", "g", "h"):
        (a / name).write_text(f"old {name}")
    s3.put("pre/folder/", b"")
    sync(msb, "a", "b")
    for name in ("f", "g"):
        (a / name).unlink()
    (a / "h").rename(a / "moved")
    (a / "folder").rmdir()
    (a / "folder").touch()  # an object with the same ETag
    dies(msb, s3, "a", "DELETE", "pre/.*")
    assert {"pre/f", "pre/g", "pre/h", "pre/folder/"} & set(s3.objects)
    new = {"moved": b"old h", "folder": b""}
    sync(msb, "b")
    assert texts(b) == new
    (b / "f").write_text("from b")
    (b / "mine").write_text("from b")
    sync(msb, "b", "a")
    assert tree(a) == tree(b) and texts(a) == {**new, "f": b"from b", "mine": b"from b"}
    assert s3.keys("pre/") == ["pre/f", "pre/folder", "pre/mine", "pre/moved"]
    assert b"gone" not in s3.objects["pre/.msb/manifest.json"].data


@pytest.mark.parametrize("by", ["a", "b"])
def test_what_a_dead_push_removed_is_finished_by_the_next(msb, s3, two, by):
    """Even if there is nothing else to push; after a day, by anybody. What others have put there since is theirs."""
    a, b = two
    for name in ("f", "g"):
        (a / name).write_text("1")
    sync(msb, "a", "b")
    for name in ("f", "g"):
        (a / name).unlink()
    dies(msb, s3, "a", "DELETE", "pre/.*")
    s3.put("pre/f", b"theirs")
    sync(msb, "b")
    assert texts(b) == {"f": b"theirs"} and "pre/g" in s3.objects  # the other one may be at it
    if by == "b":
        s3.ahead = 2 * 86400
    sync(msb, by)
    assert s3.keys("pre/") == ["pre/f"] and b"gone" not in s3.objects["pre/.msb/manifest.json"].data
    sync(msb, "a", "b")
    assert texts(a) == texts(b) == {"f": b"theirs"} and s3.keys("pre/") == ["pre/f"]


def test_a_name_that_dead_pushes_removed_and_announced(msb, s3, two):
    """By another host: what is there is neither of theirs, and not others' either."""
    a, b = two
    (a / "f").write_text("1")
    sync(msb, "a", "b")
    (a / "f").unlink()
    dies(msb, s3, "a", "DELETE", "pre/f")
    (a / "f").write_text("from a")
    dies(msb, s3, "a", "PUT", "pre/f")
    assert s3.objects["pre/f"].data == b"1"
    (b / "f").write_text("from b")
    sync(msb, "b")
    assert texts(b) == {"f": b"from b"} and s3.objects["pre/f"].data == b"from b"
    both_are_kept(msb, s3, a, b, theirs=b"from b")


def test_a_dead_push_removed_what_another_adds_meanwhile(msb, s3, two):
    """The object vanishes between the listing and the upload."""
    a, b = two
    for name in ("f", "g"):
        (a / name).write_text("1")
    sync(msb, "a", "b")
    for name in ("f", "g"):
        (a / name).unlink()
    dies(msb, s3, "a", "DELETE", "pre/.*")
    sync(msb, "b")
    (b / "f").write_text("from b")
    done = at(s3, "HEAD", "pre/f", lambda: s3.objects.pop("pre/f", None))
    sync(msb, "b")
    assert done == [True] and s3.objects["pre/f"].data == b"from b"
    sync(msb, "a", "b")
    assert texts(a) == texts(b) == {"f": b"from b"} and s3.keys("pre/") == ["pre/f"]


def test_a_directory_that_a_dead_push_removed_is_made_again(msb, s3, two):
    """Others had an object for it, whose path is less than those of the files in it."""
    a, b = two
    for key in ("pre/a/", "pre/a/x", "pre/b"):
        s3.put(key, b"1" if key[-1] != "/" else b"")
    sync(msb, "a", "b")
    shutil.rmtree(a / "a")
    dies(msb, s3, "a", "DELETE", "pre/.*")
    (a / "a").mkdir()
    (a / "a" / "x").write_text("2")
    sync(msb, "a", "b")
    assert tree(a) == tree(b) and texts(b) == {"a": 0o755, "a/x": b"2", "b": b"1"}
    assert s3.keys("pre/") == ["pre/a/", "pre/a/x", "pre/b"] and b"gone" not in s3.objects["pre/.msb/manifest.json"].data


@pytest.mark.parametrize("when", [("PUT", "pre/.msb/manifest.json", 2), ("HEAD", "pre/f", 1), ("DELETE", "pre/g", 1),
                                  ("DELETE", "pre/.msb/new/.*", 1), ("PUT", "pre/.msb/manifest.json", 3)])
def test_what_a_dead_push_has_done_is_no_change_of_others(msb, s3, two, when):
    """It counted, but was not recorded here: what has changed since, has changed here only."""
    a, b = two
    for name in ("f", "g", "h"):
        (a / name).write_text("1")
    (a / "old").mkdir(mode=0o750)
    sync(msb, "a", "b")
    for name in ("f", "h", "new", "later"):
        (a / name).write_text("2")
    (a / "g").unlink()
    (a / "old").rmdir()
    dies(msb, s3, "a", *when[:2], nth=when[2], how="lost")
    wait_for(lambda: b'"new":' in s3.objects["pre/.msb/manifest.json"].data)
    (a / "f").write_text("3")
    (a / "h").write_text("1")
    (a / "new").unlink()
    (a / "later").write_text("3")
    (a / "old").mkdir(mode=0o750)
    assert status(msb, "a") == {"f": "upload", "h": "upload", "new": "delete-remote", "later": "upload", "old": "upload"}
    sync(msb, "a", "b")
    assert tree(a) == tree(b) and texts(a) == {"f": b"3", "h": b"1", "later": b"3", "old": 0o750}
    assert s3.keys("pre/") == ["pre/f", "pre/h", "pre/later"] and status(msb, "a") == status(msb, "b") == {}
    assert not (a.parent / "s3-next.json").exists()


def test_all_that_a_dead_push_has_added_is_removed(msb, s3, two):
    """It was the first one, and the workspace is empty again, as if there had been no sync."""
    a, b = two
    (a / "d").mkdir()
    (a / "d" / "f").write_text("1")
    dies(msb, s3, "a", "PUT", "pre/.msb/manifest.json", nth=2, how="lost")
    wait_for(lambda: b'"push":' in s3.objects["pre/.msb/manifest.json"].data)
    shutil.rmtree(a / "d")
    assert msb.ok("run", "--workspace", "a", "--", "ls", "/workspace") == ""
    sync(msb, "b")
    assert tree(a) == tree(b) == {} and s3.keys("pre/") == []


@pytest.mark.parametrize("other", [False, True])
def test_a_push_that_did_not_count_is_not_taken_for_done(msb, s3, two, other):
    """It was killed before its manifest; others may have written one since."""
    a, b = two
    for name in ("f", "g"):
        (a / name).write_text("1")
    sync(msb, "a", "b")
    for name in ("f", "g", "new"):
        (a / name).write_text("2")
    dies(msb, s3, "a", "PUT", "pre/.msb/manifest.json", nth=2)
    assert (a.parent / "s3-next.json").exists()
    if other:
        (b / "f").write_text("2")  # as a did
        sync(msb, "b")
    for name in ("f", "g"):
        (a / name).write_text("1")
    (a / "new").unlink()
    sync(msb, "a", "b")
    assert tree(a) == tree(b) and texts(a) == {"f": b"2" if other else b"1", "g": b"1"}


@pytest.mark.parametrize("when", ["before the removal", "at the end"])
def test_what_a_dead_push_removed_comes_back(msb, s3, two, when):
    """With the same content and mode, before the removal was recorded here: it is new, not left over."""
    a, b = two
    for name in ("f", "g"):
        (a / name).write_text("1")
    sync(msb, "a", "b")
    for name in ("f", "g"):
        (a / name).unlink()
    if when == "before the removal":
        dies(msb, s3, "a", "DELETE", "pre/.*")
    else:
        dies(msb, s3, "a", "PUT", "pre/.msb/manifest.json", nth=2, how="lost")
        wait_for(lambda: b"gone" not in s3.objects["pre/.msb/manifest.json"].data)
        assert s3.keys("pre/") == []
    (a / "f").write_text("1")
    assert status(msb, "a") == {"f": "upload"}
    sync(msb, "a", "b")
    assert tree(a) == tree(b) and texts(a) == {"f": b"1"} and s3.keys("pre/") == ["pre/f"]
    assert b"gone" not in s3.objects["pre/.msb/manifest.json"].data


def test_what_two_dead_pushes_replaced_and_removed_comes_back(msb, s3, two):
    """It was never the object's content, so there is no ETag that tells."""
    a, b = two
    (a / "f").write_text("1")
    sync(msb, "a", "b")
    (b / "f").write_text("2")
    dies(msb, s3, "b", "HEAD", "pre/f")
    sync(msb, "a")
    assert texts(a) == {"f": b"2"} and s3.objects["pre/f"].data == b"1"
    (a / "f").unlink()
    dies(msb, s3, "a", "DELETE", "pre/f")
    (a / "f").write_text("2")
    assert status(msb, "a") == {"f": "upload"}
    sync(msb, "a", "b", "a")
    assert tree(a) == tree(b) and texts(a) == {"f": b"2"} and s3.keys("pre/") == ["pre/f"]
    assert b"gone" not in s3.objects["pre/.msb/manifest.json"].data


def test_what_a_dead_push_removed_comes_back_after_another_push(msb, s3, two):
    """Whose manifest still says who removed it, also of objects that are gone already."""
    a, b = two
    for name in ("f", "g"):
        (a / name).write_text("1")
    sync(msb, "a", "b")
    for name in ("f", "g"):
        (a / name).unlink()
    dies(msb, s3, "a", "DELETE", "pre/[fg]", nth=2)
    wait_for(lambda: len(s3.keys("pre/")) == 1)
    (b / "other").write_text("2")
    sync(msb, "b")
    assert texts(b) == {"other": b"2"}
    for name in ("f", "g"):
        (a / name).write_text("1")
    assert status(msb, "a") == {"f": "upload", "g": "upload", "other": "download"}
    sync(msb, "a", "b")
    assert tree(a) == tree(b) and texts(a) == {"f": b"1", "g": b"1", "other": b"2"}
    assert b"gone" not in s3.objects["pre/.msb/manifest.json"].data


def test_what_dead_pushes_left_is_removed_by_several_threads(msb, s3, two):
    a, _ = two
    for i in range(4):
        (a / f"f{i}").write_text(f"{i}")
    sync(msb, "a")
    for i in range(4):
        (a / f"f{i}").unlink()
    dies(msb, s3, "a", "HEAD", "pre/f.")
    assert len(s3.keys("pre/f")) == 4
    pair = threading.Barrier(2)
    s3.before = lambda method, key, query: method == "DELETE" and pair.wait(60)
    sync(msb, "a")
    assert s3.keys("pre/f") == []


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("what", ["adds", "replaces", "removes"])
def test_others_write_before_each_request(msb, s3, two, what, dead):
    """Of a push, which goes on or has died there: only what they write between a check and its request is lost."""
    a, b = two
    for n in range(1, 40):
        key, theirs, ours = f"pre/f{n}", b"theirs %d" % n, b"from a %d" % n
        if what != "adds":
            (a / f"f{n}").write_text("old")
            sync(msb, "a", "b")
        if what == "removes":
            (a / f"f{n}").unlink()
        else:
            (a / f"f{n}").write_bytes(ours)
        made, wrote = [], []

        def before(method, k, query, n=n, key=key, theirs=theirs, made=made, wrote=wrote):
            checked = k == key and method == ("DELETE" if what == "removes" else "PUT") and what != "adds"
            if len(made) + 1 >= n and not wrote and not checked:
                wrote.append(s3.put(key, theirs))
            if not wrote:
                made.append((method, k))

        def fault(method, k, nth, n=n, made=made):
            made.append((method, k))
            if len(made) == n:
                os.killpg(push.pid, signal.SIGKILL)
            return "drop" if len(made) == n else None

        with s3.lock:
            push = msb.popen("workspace", "sync", "-q", "a", start_new_session=True)
            if dead:
                s3.faults[:] = [fault]
            else:
                s3.before = before
        died = push.wait(60) != 0
        s3.faults.clear()
        s3.before = lambda method, k, query: None
        if died:
            wrote.append(s3.put(key, theirs))
        if not wrote:
            assert n > 4 and (what != "adds" or [m for m, _ in made] == ["GET", "PUT", "PUT", "PUT"])
            return
        sync(msb, "a", "b", "a", "b")
        assert tree(a) == tree(b) and s3.objects[key].data == theirs, (n, made)
        ended = made.count(("PUT", "pre/.msb/manifest.json")) == (3 if what == "adds" else 2)
        later = (not died or ended) and ("PUT", key) in made  # than what it replaced
        assert what == "removes" or later or ours in [t[-1] for t in tree(a).values()], (n, made)
        for path in list(tree(a)):
            (a / path).unlink()
        sync(msb, "a", "b")
        assert tree(b) == {} and s3.keys("pre/", ours=True) == ["pre/.msb/manifest.json"]
    raise AssertionError("it does not end")
