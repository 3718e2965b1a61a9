"""What the tests of the Python SDK share: the package, clients of a test's own home, images."""
import asyncio
import errno
import os
import pathlib
import subprocess
import sys
import tempfile
import uuid

import pytest

import imagekit
from conftest import ROOT

SDK = ROOT / "sdk" / "python"
SEEDS = ROOT.parent / "shared" / "seeds"
sys.path.insert(0, str(SDK))

import msb as sdk  # noqa: E402
import msb.sync  # noqa: E402,F401

BASE = "msb/base"


def client_of(m, **options):
    """The asynchronous client of a home."""
    return sdk.SandboxClient(msb=m.exe, home=str(m.home), env=m.env, **options)


def sync_client_of(m, **options):
    return sdk.sync.SandboxClient(msb=m.exe, home=str(m.home), env=m.env, **options)


def go(work):
    """Runs a coroutine; nothing may take minutes."""
    async def bounded():
        return await asyncio.wait_for(work, 240)

    return asyncio.run(bounded())


async def alive(sb, mark):
    """How many processes have this word among their arguments?"""
    script = "for f in /proc/[0-9]*/cmdline; do tr '\\0' '\\n' < $f 2>/dev/null; done"
    r = await sb.shell(script)
    return r.stdout.splitlines().count(mark)


async def gone(sb, mark):
    for _ in range(600):
        if not await alive(sb, mark):
            return True
        await asyncio.sleep(0.05)
    return False


def load_python(m, tmp):
    """python:3.11-slim, made of Debian packages, in the cache of a home."""
    if subprocess.run([m.exe, "image", "inspect", "python:3.11-slim"], env=m.env, capture_output=True,
                      stdin=subprocess.DEVNULL).returncode == 0:
        return
    archive = imagekit.python_slim().archive("docker", pathlib.Path(tmp) / "python.tar", "python:3.11-slim")
    m.ok("load", "-q", "-i", archive, timeout=120)
    archive.unlink()


ODD_NAMES = ["it's \"$q\" `x`", "line\nbreak", "end\n", "-rf", "--", " a  b ", "*", "\\0", "ünï", os.fsdecode(b"\xff\xfe"),
             "x" * 255]


async def refused(work, kind, *numbers):
    """It raises this, with one of these errnos."""
    with pytest.raises(kind) as e:
        await work
    assert isinstance(e.value, sdk.FileError) and e.value.errno in numbers, e.value
    return e.value


async def file_conformance(sb, top):
    """Every documented operation on files, below a directory of the sandbox that is not there yet."""
    f, data = sb.files, bytes(range(256)) * 4000
    info = await f.write(f"{top}/deep/er/data", data)
    assert (info.size, info.is_file, info.mode, info.path, info.name) == (len(data), True, 0o644, f"{top}/deep/er/data", "data")
    assert await f.read(info.path) == data and await f.read(info.path, offset=250, length=10) == data[250:260]
    assert await f.read(info.path, offset=10 ** 9) == b"" and await f.read(info.path, length=3) == b"\0\1\2"
    await refused(f.read(info.path, max_bytes=1000), sdk.FileError, errno.EFBIG)
    await f.write(f"{top}/text", "grüß\n")
    await f.write(f"{top}/text", "gott", append=True)
    assert await f.read_text(f"{top}/text") == "grüß\ngott"
    assert (await f.write(f"{top}/text", b"")).size == 0 and await f.read(f"{top}/text") == b""
    await f.write(f"{top}/run", "#!/bin/sh\necho ran\n", mode=0o750, atomic=True)
    assert (await sb.exec(f"{top}/run")).stdout == "ran\n" and (await f.stat(f"{top}/run")).mode == 0o750
    await f.symlink("run", f"{top}/link")
    assert (await f.write(f"{top}/link", "#!/bin/sh\necho new\n", atomic=True)).mode == 0o750
    assert (await sb.exec(f"{top}/run")).stdout == "new\n"
    assert (await f.stat(f"{top}/link", follow_symlinks=False)).target == "run"
    await refused(f.write(f"{top}/run", "x", exclusive=True), FileExistsError, errno.EEXIST)
    await refused(f.write(f"{top}/run", "x", exclusive=True, atomic=True), FileExistsError, errno.EEXIST)
    error = await refused(f.read(f"{top}/none"), FileNotFoundError, errno.ENOENT)
    assert error.filename == f"{top}/none" and "No such file" in str(error) and isinstance(error, sdk.MsbError)
    await refused(f.read(top), sdk.FileError, errno.EISDIR)
    await refused(f.write(top, b"x"), sdk.FileError, errno.EISDIR)
    await refused(f.read("/dev/null"), sdk.FileError, errno.EINVAL)
    await refused(f.read(f"{top}/run/x"), sdk.FileError, errno.ENOTDIR)
    await refused(f.write(f"{top}/run/x", "y"), sdk.FileError, errno.ENOTDIR, errno.EEXIST)
    await refused(f.write(f"{top}/none/x", "y", parents=False), FileNotFoundError, errno.ENOENT)
    for path in ("", "a\0b", "x" * 5000):
        with pytest.raises(sdk.UsageError):
            await f.read(path)
    await _directories(f, f"{top}/d")
    await _odd_names(f, f"{top}/odd")
    await f.remove(top, recursive=True)
    assert not await f.exists(top)


async def _directories(f, top):
    await f.mkdir(f"{top}/e", mode=0o711)
    await f.mkdir(f"{top}/e")
    assert (await f.stat(f"{top}/e")).mode == 0o711 and (await f.stat(top)).mode == 0o755
    await refused(f.mkdir(f"{top}/e", parents=False), FileExistsError, errno.EEXIST)
    await refused(f.mkdir(f"{top}/n/o", parents=False), FileNotFoundError, errno.ENOENT)
    assert await f.list(f"{top}/e") == []
    await f.write(f"{top}/b", "12345")
    await f.symlink("b", f"{top}/l")
    await f.symlink("-n one", f"{top}/broken")
    await refused(f.symlink("x", f"{top}/e"), FileExistsError, errno.EEXIST)
    await f.chmod(f"{top}/b", 0o600)
    found = await f.list(top)
    assert [(x.name, x.path, x.kind, x.target) for x in found] == [
        ("b", f"{top}/b", "file", None), ("broken", f"{top}/broken", "symlink", "-n one"), ("e", f"{top}/e", "dir", None),
        ("l", f"{top}/l", "symlink", "b")]
    assert (found[0].size, found[0].mode) == (5, 0o600) and found[0] == await f.stat(f"{top}/b")
    assert abs(found[0].mtime - (await f.stat(f"{top}/l")).mtime) < 0.001 and (await f.stat(f"{top}/l")).is_file
    assert await f.exists(f"{top}/broken") and not await f.exists(f"{top}/none")
    await refused(f.stat(f"{top}/broken"), FileNotFoundError, errno.ENOENT)
    await refused(f.list(top, limit=2), sdk.FileError, errno.E2BIG)
    await refused(f.list(f"{top}/none"), FileNotFoundError, errno.ENOENT)
    await refused(f.list(f"{top}/b"), sdk.FileError, errno.ENOTDIR)
    await refused(f.chmod(f"{top}/none", 0o600), FileNotFoundError, errno.ENOENT)
    await f.rename(f"{top}/b", f"{top}/c")
    assert not await f.exists(f"{top}/b") and await f.read(f"{top}/c") == b"12345"
    await f.write(f"{top}/b", "")
    await refused(f.rename(f"{top}/b", f"{top}/c", replace=False), FileExistsError, errno.EEXIST)
    await f.rename(f"{top}/c", f"{top}/b")
    await refused(f.rename(f"{top}/b", f"{top}/e"), sdk.FileError, errno.EISDIR)
    await refused(f.rename(f"{top}/e", f"{top}/b"), sdk.FileError, errno.ENOTDIR)
    await refused(f.rename(f"{top}/none", f"{top}/b"), FileNotFoundError, errno.ENOENT)
    await f.mkdir(f"{top}/full/x")
    await refused(f.rename(f"{top}/e", f"{top}/full"), sdk.FileError, errno.ENOTEMPTY)
    await f.rename(f"{top}/full", f"{top}/e")  # over an empty one
    assert [x.name for x in await f.list(f"{top}/e")] == ["x"]
    await refused(f.remove(top), sdk.FileError, errno.ENOTEMPTY)
    await f.symlink(top, f"{top}/self")
    await f.remove(f"{top}/self", recursive=True)
    assert await f.exists(f"{top}/b"), "a link is not followed"
    await f.remove(top, recursive=True)
    await refused(f.remove(top), FileNotFoundError, errno.ENOENT)
    await f.remove(top, missing_ok=True)


async def _odd_names(f, top):
    """As names of files and of links, on the way in, in a listing and on the way out."""
    for i, name in enumerate(ODD_NAMES):
        await f.write(f"{top}/{name}", str(i))
    assert sorted(x.name for x in await f.list(top)) == sorted(ODD_NAMES)
    await f.symlink("-\n'x", f"{top}/-\nl")
    assert [x.target for x in await f.list(top) if x.kind == "symlink"] == ["-\n'x"]
    with tempfile.TemporaryDirectory() as here:
        await f.download(top, here)
        await f.upload(here, f"{top}/again/-dir")
        assert sorted(os.listdir(here)) == sorted(["-\nl", *ODD_NAMES])
    for i, name in enumerate(ODD_NAMES):
        assert await f.read(f"{top}/again/-dir/{name}") == str(i).encode()
        await f.rename(f"{top}/{name}", f"{top}/{name[:-1]}~")
        await f.remove(f"{top}/{name[:-1]}~")
    await _copies(f, f"{top}/copies")


async def _copies(f, top):
    with tempfile.TemporaryDirectory() as here:
        source, back = pathlib.Path(here, "source"), pathlib.Path(here, "back")
        (source / "sub" / "empty").mkdir(parents=True)
        (source / "big").write_bytes(os.urandom(1 << 20))
        (source / "sub" / "run.sh").write_text("#!/bin/sh\n")
        (source / "sub" / "run.sh").chmod(0o755)
        (source / "sub" / "link").symlink_to("run.sh")
        (source / "sub" / "empty").chmod(0o700)
        os.utime(source / "big", ns=(10 ** 18, 10 ** 18))
        await f.upload(source, f"{top}/up")
        await f.upload(source / "big", f"{top}/one")
        for path in (f"{top}/up/big", f"{top}/one"):
            info = await f.stat(path)
            assert info.mtime == 10 ** 9 and info.mode == 0o644 and await f.read(path) == (source / "big").read_bytes()
        assert (await f.stat(f"{top}/up/sub/link", follow_symlinks=False)).target == "run.sh"
        assert [(await f.stat(f"{top}/up/sub/{n}")).mode for n in ("run.sh", "empty")] == [0o755, 0o700]
        for _ in range(2):  # again, over it
            await f.download(f"{top}/up", back)
            assert (back / "big").read_bytes() == (source / "big").read_bytes()
            assert (back / "sub" / "run.sh").stat().st_mode & 0o777 == 0o755 and os.readlink(back / "sub" / "link") == "run.sh"
            assert (back / "sub" / "empty").stat().st_mode & 0o777 == 0o700
        await f.download(f"{top}/one", here)
        await f.download(f"{top}/one", f"{here}/two")
        assert pathlib.Path(here, "one").read_bytes() == pathlib.Path(here, "two").read_bytes() == (source / "big").read_bytes()
        await refused(f.download(f"{top}/up", f"{here}/cut", max_bytes=1000), sdk.FileError, errno.EFBIG)
        await refused(f.download(f"{top}/none", f"{here}/x"), FileNotFoundError, errno.ENOENT)
        with pytest.raises(FileNotFoundError):
            await f.upload(f"{here}/none", f"{top}/x")


async def conformance(client, spec_of, result_of, small=BASE, local=True):
    """Every documented behavior, through whatever client this is. In a cluster, logs are those of the pod, and the
    network is the cluster's."""
    spec = spec_of(name="conf", labels={"team": "search", "n": "1"}, memory_mib=256)
    sb = await client.create(spec)
    assert sb.name == "conf" and type(sb) is client.handle_class
    r = await sb.exec("echo", ["a  b", "$HOME;"])
    assert (r.stdout, r.stderr, r.exit_code, r.truncated) == ("a  b $HOME;\n", "", 0, False)
    assert result_of(r.stdout, r.stderr, r.exit_code, r.truncated).output == r.output and r.ok
    assert (await sb.exec("pwd")).ok
    r = await sb.shell("echo out; echo err >&2 | cat; exit 7")
    assert (r.stdout, r.stderr, r.exit_code, r.ok) == ("out\n", "err\n", 7, False)
    r = await sb.shell("echo part; sleep 86400", timeout=1.5)
    assert r.stdout == "part\n" and r.truncated and not r.ok
    assert (await sb.exec("python", ["-c", "print(6*7)"], timeout=60.0)).stdout == "42\n"
    if local:
        assert (await sb.logs()).startswith("a  b $HOME;\n")
        assert await sb.logs(tail=1) == "42\n"
        # Empty egress: nothing goes out, and there is nothing to go out by.
        assert "default" not in (await sb.shell("ip route 2>/dev/null; cat /proc/net/route | wc -l")).stdout
    assert await sb.logs(tail=0) == ""
    await file_conformance(sb, f"/tmp/conf-{uuid.uuid4().hex}")
    again = await client.get("conf")
    assert again.name == "conf" and type(again) is client.handle_class
    assert await client.list() == ["conf"]
    info = await sb.info()
    assert info.labels == {"team": "search", "n": "1"} and info.running
    assert info.details["config"]["resources"]["memory_mib"] == 256
    with pytest.raises(sdk.SandboxNotFound):
        await client.get("nobody")
    with pytest.raises(sdk.SandboxExists):
        await client.create(spec)
    with pytest.raises(sdk.MsbError):
        await client.remove("conf")  # it runs
    await sb.stop()
    await sb.stop()
    assert not (await sb.info()).running
    await sb.start()
    await sb.kill()
    assert not (await sb.info()).running
    await client.remove("conf")
    assert await client.list() == []
    with pytest.raises(sdk.SandboxNotFound):
        await client.remove("conf")
    r = await client.run_python("import sys; print('hi'); print('x', file=sys.stderr); sys.exit(5)")
    assert (r.stdout, r.stderr, r.exit_code) == ("hi\n", "x\n", 5)
    r = await client.run_shell("echo $((6*7)) | cat", image=small, memory_mib=128, labels={"a": "b"})
    assert r.stdout == "42\n"
    assert await client.list() == []
