"""What the tests of the Python SDK share: the package, clients of a test's own home, images."""
import asyncio
import pathlib
import subprocess
import sys

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


def load_python(m, tmp):
    """python:3.11-slim, made of Debian packages, in the cache of a home."""
    if subprocess.run([m.exe, "image", "inspect", "python:3.11-slim"], env=m.env, capture_output=True,
                      stdin=subprocess.DEVNULL).returncode == 0:
        return
    archive = imagekit.python_slim().archive("docker", pathlib.Path(tmp) / "python.tar", "python:3.11-slim")
    m.ok("load", "-q", "-i", archive, timeout=120)
    archive.unlink()
