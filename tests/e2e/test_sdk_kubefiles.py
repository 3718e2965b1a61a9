"""Files of sandboxes in a cluster: the operations that local ones have, by scripts in a pod; and the archives that its tar
makes."""
import asyncio
import contextlib
import errno
import io
import os
import shutil
import subprocess
import tarfile

import pytest

from sdkkit import file_conformance, go, sdk
from test_sdk_kubernetes import POD, V4, Spec, cluster, needs_namespaces, sandbox

from msb import _kubefiles, _tar  # noqa: E402
from msb.errors import ProtocolError  # noqa: E402


@pytest.mark.parametrize("shell, how", [("sh", V4), ("busybox", {}), ("bash", {})])
def test_files(tmp_path, shell, how):
    """With the programs of an image that has nothing but busybox, too, and whatever sh is."""
    needs_namespaces()
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    programs = tmp_path / "bin"
    programs.mkdir()
    if shell == "busybox":
        for name in subprocess.run(["busybox", "--list"], capture_output=True, text=True).stdout.split():
            (programs / name).symlink_to(shutil.which("busybox"))
    if shell == "bash":
        (programs / "sh").symlink_to(shutil.which("bash"))
    path = str(programs) if shell == "busybox" else f"{programs}:{os.environ['PATH']}"

    async def run():
        async with cluster(tmp_path, **how) as (kube, client):
            sb = await client.create(Spec("box", image=POD, env={"PATH": path}))
            await file_conformance(sb, str(tmp_path / "files"))
            assert not [x for x in kube.requests if "line%0Abreak" in x or "none" in x], "names are in no URL"
            with pytest.raises(sdk.UsageError):
                sb.files.as_user("nobody")
            with pytest.raises(sdk.UsageError):
                await sb.files.watching("/")

    go(run())


def test_files_larger_than_any_window(tmp_path, monkeypatch):
    """They are on their way in pieces, in both directions; and what goes wrong then ends it."""
    needs_namespaces()
    here = tmp_path / "here"
    here.mkdir()
    with (here / "large").open("wb") as file:
        for i in range(24):
            file.write(bytes([i]) * (1 << 20))

    async def run():
        async with sandbox(tmp_path) as (_, sb):
            top = str(tmp_path / "there")
            await sb.files.upload(here / "large", f"{top}/one")
            await sb.files.upload(here, f"{top}/tree")
            for name in ("one", "tree/large"):
                await sb.files.download(f"{top}/{name}", tmp_path / "back")
                assert (tmp_path / "back").read_bytes() == (here / "large").read_bytes()
            with pytest.raises(sdk.FileError) as e:
                await sb.files.read(f"{top}/one", max_bytes=(20 << 20))
            assert e.value.errno == errno.EFBIG
            with pytest.raises(sdk.FileError):
                await sb.files.upload(here, "/proc/no")
            (here / "more").write_bytes(b"x" * 100)
            tree = _tar.Tree(str(here))
            (here / "more").write_bytes(b"")  # it was longer when its size was announced
            monkeypatch.setattr(_tar, "Tree", lambda _: tree)
            with pytest.raises(sdk.FileError, match="changed while it was read"):
                await sb.files.upload(here, f"{top}/again")
            with pytest.raises(sdk.FileNotFound):
                await asyncio.wait_for(sb.files.read(f"{top}/none"), 60)

    go(run())


def test_an_image_that_lacks_a_program(tmp_path):
    needs_namespaces()
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "base64", "head", "sleep"):
        (programs / name).symlink_to(shutil.which(name))

    async def run():
        async with cluster(tmp_path) as (kube, client):
            sb = await client.create(Spec("box", image=POD, env={"PATH": str(programs)}))
            read = sb.files.read
            for work in (sb.files.list("/"), read("/etc/passwd"), sb.files.download("/tmp", tmp_path / "x"), None,
                         read("/etc/passwd"), read("/etc/passwd", offset=1), read("/etc/passwd", length=1)):
                if not work:
                    (programs / "stat").symlink_to(shutil.which("stat"))
                    continue
                with pytest.raises(sdk.MsbError, match="not found") as e:
                    await work
                assert "lacks" in e.value.hint and not isinstance(e.value, OSError)

    go(run())


def test_a_tree_that_changes_on_the_way(tmp_path):
    """GNU tar says so and fails, with an archive that is whole; one that is not is an error, whatever tar says."""
    needs_namespaces()
    programs, source = tmp_path / "bin", tmp_path / "source"
    programs.mkdir()
    source.mkdir()
    (source / "f").write_text("x" * 10000)
    real = shutil.which("tar")

    async def run():
        async with cluster(tmp_path) as (kube, client):
            sb = await client.create(Spec("box", image=POD, env={"PATH": f"{programs}:{os.environ['PATH']}"}))
            for more, code in (("", 1), ("| head -c 3000", 1), ("| head -c 3000", 0)):
                (programs / "tar").write_text(f"#!/bin/sh\n{real} \"$@\" {more}\necho './f: file changed' >&2\nexit {code}\n")
                (programs / "tar").chmod(0o755)
                if not more:
                    await sb.files.download(str(source), tmp_path / "out")
                    assert (tmp_path / "out" / "f").read_text() == "x" * 10000
                    continue
                with pytest.raises(sdk.MsbError, match="file changed" if code else "half of a tree"):
                    await sb.files.download(str(source), tmp_path / "half")

    go(run())


BREAKS = """#!/bin/sh
printf half
exit 1
"""
DIES = """#!/bin/sh
printf half
kill -9 $$
"""


@pytest.mark.parametrize("program", [BREAKS, DIES])
def test_a_program_that_ends_in_the_middle_of_a_file(tmp_path, program):
    """Without a word, as the OOM killer has it, it is an error nevertheless."""
    needs_namespaces()
    programs = tmp_path / "bin"
    programs.mkdir()
    (tmp_path / "f").write_text("whole of it")
    for name in ("cat", "tail"):
        (programs / name).write_text(program)
        (programs / name).chmod(0o755)

    async def run():
        async with cluster(tmp_path) as (kube, client):
            sb = await client.create(Spec("box", image=POD, env={"PATH": f"{programs}:{os.environ['PATH']}"}))
            path = str(tmp_path / "f")
            for work in (sb.files.download(path, tmp_path / "out"), sb.files.read(path), sb.files.read(path, offset=1),
                         sb.files.read(path, length=5), sb.files.read(path, offset=1, length=5)):
                with pytest.raises(sdk.FileError) as e:
                    await work
                assert e.value.errno == errno.EIO
            assert await sb.files.read(path, length=2) == b"ha", "that is all there was to read"

    go(run())


class Says(_kubefiles.KubeFiles):
    """Files of a pod whose scripts write this, and no more than is taken."""

    def __init__(self, *said):
        self.said = said

    async def _run(self, path, script, *words, take, **how):
        for piece in self.said:
            take(piece)


@pytest.mark.parametrize("listing", [
    b"1" * (16 << 20), b"x" * 200 + b"/", b"8000 1" + b"1" * 300 + b"//d/./f/\n",
    b"81a4 1 0 0 1 2-2 3/" + b"/d/./" + b"f" * 256 + b"/\n",
    b"81a4 1 0 0 1 2-2 3//d/./f/\nmore"])
def test_listings_that_are_hostile(listing):
    """They are refused at once: these would take the former minutes and more, and no time limit ends that."""
    with pytest.raises(ProtocolError):
        go(Says(listing).list("/d"))


def test_listings_are_read_up_to_the_limit():
    files = Says(b"81a4 1 0 0 1 2-2 3//d/./f/\n" * 3 + b"1" * (16 << 20))
    with pytest.raises(sdk.FileError) as e:
        go(files.list("/d", limit=3 - 1))
    assert e.value.errno == errno.E2BIG
    assert [x.size for x in go(Says(b"81a4 1 0 0 1 2-2 3//d/./f/\n" * 3 + b"\0").list("/d", limit=3))] == [1] * 3


def test_answers_that_have_no_end():
    for work in (Says(b"81a4 1 0 0 1 2-2 " + b"3" * (1 << 20) + b"x").stat("/f"), Says(*[b"x" * 4096] * 3).mkdir("/d"),
                 Says(*[b"x" * 4096] * 3).rename("/a", "/b"), Says(*[b"x" * 4096] * 3).write("/f", b"")):
        with pytest.raises(ProtocolError):
            go(work)
    with pytest.raises(ProtocolError):
        _kubefiles._info(b"81a4 1 0 0 1 2-2 " + b"3" * (1 << 20) + b"x", "/f", "f")
    download = _kubefiles._Download("/f", "/none/none", None)
    with pytest.raises(ProtocolError):
        for _ in range(5):
            download.take(b"x" * 1000)


@pytest.mark.parametrize("said, number", [
    ("cat: /x: Permission denied", errno.EACCES), ("sh: 1: cannot create /x: Directory nonexistent", errno.ENOENT),
    ("cat: write error: No space left on device\nmore", errno.ENOSPC), ("rm: can't remove '/x': Resource busy", errno.EBUSY),
    ("touch: /Permission denied/x: Read-only file system", errno.EROFS), ("what?", errno.EIO), ("", errno.EIO)])
def test_what_programs_say(said, number):
    error = _kubefiles._error(1, said.encode(), "/x")
    assert isinstance(error, sdk.FileError) and error.errno == number and error.filename == "/x"
    assert isinstance(error, PermissionError) == (number == errno.EACCES)


# --- archives -----------------------------------------------------------------------------------


def archive(*entries, form=tarfile.GNU_FORMAT):
    """Of (name, content or None for a directory, attributes)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, content, *more in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.size = (tarfile.DIRTYPE, 0) if content is None else (tarfile.REGTYPE, len(content))
            for key, value in (more[0] if more else {}).items():
                setattr(entry, key, value)
            tar.addfile(entry, io.BytesIO(content or b""))
    return out.getvalue()


def unpack(data, target, step=1 << 20, most=None):
    reader = _tar.Reader("/x", str(target), most)
    try:
        reader.begin(None)
        for at in range(0, len(data), step):
            reader.feed(data[at:at + step])
        return reader.ended
    finally:
        reader.receiver.close()


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize("step", [1, 511, 1 << 20])
def test_archives_however_they_are_cut(tmp_path, form, step):
    long = "l" * 90 if form == tarfile.USTAR_FORMAT else "ü" * 100
    data = archive(("./", None), ("./a", None, {"mode": 0o500}), (f"./a/{long}", b"x" * 1000), ("./b", b"", {"mode": 0o4755}),
                   ("./c", b"", {"type": tarfile.SYMTYPE, "linkname": long}), ("./fifo", b"", {"type": tarfile.FIFOTYPE}),
                   ("./again", b"", {"type": tarfile.LNKTYPE, "linkname": f"./a/{long}"}), form=form)
    assert unpack(data, tmp_path / "out", step)
    out = tmp_path / "out"
    assert sorted(os.listdir(out)) == ["a", "again", "b", "c"] and (out / "a" / long).read_bytes() == b"x" * 1000
    assert (out / "again").read_bytes() == b"x" * 1000 and os.readlink(out / "c") == long
    assert [(out / n).stat().st_mode & 0o7777 for n in "ab"] == [0o500, 0o755]
    assert not unpack(data[:-20 * 512], tmp_path / "half", step), "it knows whether all of it was there"


LINK = {"type": tarfile.SYMTYPE}
HARD = {"type": tarfile.LNKTYPE}


@pytest.mark.parametrize("entries", [
    [("../evil", b"x")], [("a/../../evil", b"x")], [("a/evil", b"x")], [("a", None), ("b", b"1"), ("a/evil", b"x")],
    [("l", b"", {**LINK, "linkname": "@"}), ("l/evil", b"x")],
    [("l", b"", {**LINK, "linkname": "@"}), ("l", None), ("l/evil", b"x")],
    [("l", b"", {**LINK, "linkname": "@/evil"}), ("l", b"x")],
    [("l", b"", {**LINK, "linkname": "@"}), ("h", b"", {**HARD, "linkname": "l/secret"})],
    [("l", b"", {**LINK, "linkname": "@/secret"}), ("h", b"", {**HARD, "linkname": "l"})],
    [("h", b"", {**HARD, "linkname": "../outside/secret"})], [("h", b"", {**HARD, "linkname": ""})], [("x" * 300, b"")]])
def test_archives_that_are_hostile(tmp_path, entries):
    """Whatever they contain, nothing outside of the target is read or written."""
    outside, out = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    (outside / "secret").write_text("s3cret")
    for entry in entries:
        if len(entry) > 2:
            entry[2]["linkname"] = entry[2]["linkname"].replace("@", str(outside))
    with pytest.raises((ProtocolError, OSError)):
        unpack(archive(*entries), out)
    assert [p.name for p in outside.iterdir()] == ["secret"] and sorted(os.listdir(tmp_path)) == ["out", "outside"]
    assert not (out / "h").exists() or "s3cret" not in (out / "h").read_text()


def test_links_are_only_to_what_has_arrived(tmp_path):
    """No other file of the target gets a second name, and one that has several is not written by all of them."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("mine")
    with pytest.raises(ProtocolError, match="has not sent"):
        unpack(archive(("h", b"", {**HARD, "linkname": "mine"})), out)
    assert (out / "mine").stat().st_nlink == 1 and not (out / "h").exists()
    linked = archive(("d", None, {"mode": 0o755}), ("d/f", b"one", {"mode": 0}), ("h", b"", {**HARD, "linkname": "d/f"}))
    for _ in range(2):
        assert unpack(linked, out)
        assert (out / "h").samefile(out / "d" / "f") and (out / "h").stat().st_mode & 0o7777 == 0
        (out / "h").chmod(0o600)
    assert unpack(archive(("h", b"two")), out)
    assert [((out / n).stat().st_size, (out / n).stat().st_nlink) for n in ("d/f", "h")] == [(3, 1), (3, 1)]
    assert (out / "d" / "f").read_text() == "one" and (out / "h").read_text() == "two"


@pytest.mark.parametrize("swapped", ["top", "top/sub"])
def test_an_upload_follows_no_directory_that_was_replaced(tmp_path, swapped):
    for place in ("top", "outside"):
        (tmp_path / place / "sub").mkdir(parents=True)
        (tmp_path / place / "sub" / "f").write_text("fine!" if place == "top" else "s3cret")
    tree, found = _tar.Tree(str(tmp_path / "top")), b""
    (tmp_path / swapped).rename(tmp_path / "gone")
    (tmp_path / swapped).symlink_to(tmp_path / "outside" / swapped.replace("top", ".", 1))
    with contextlib.suppress(OSError):
        found = b"".join(tree.pieces())
    tree.close()
    assert b"s3cre" not in found and (b"fine!" in found) == (swapped == "top")


def test_archives_that_are_none(tmp_path):
    for data in (b"x" * 512, archive(("a", b"x"))[:100] + b"9" * 412):
        with pytest.raises(ProtocolError):
            unpack(data, tmp_path / "out")
    with pytest.raises(sdk.FileError) as e:
        unpack(archive(("a", b"x" * 1000)), tmp_path / "out", most=999)
    assert e.value.errno == errno.EFBIG
    head = tarfile.TarInfo("././@LongLink")
    head.type, head.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
    with pytest.raises(ProtocolError, match="too long a name"):
        unpack(head.tobuf(tarfile.GNU_FORMAT), tmp_path / "out")
    head = tarfile.TarInfo("././@PaxHeader")
    head.type, head.size = tarfile.XHDTYPE, 60000
    with pytest.raises(ProtocolError, match="an invalid header"):
        unpack(head.tobuf(tarfile.GNU_FORMAT) + b"050000".ljust(5000, b"0") + b" path=x".ljust(56000), tmp_path / "out")
