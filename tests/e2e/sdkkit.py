"""What the tests of the Python SDK share: the package, clients of a test's own home, images."""
import asyncio
import pathlib
import subprocess
import sys

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
