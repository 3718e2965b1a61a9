"""The examples, as a user runs them, on an image made of Debian packages."""
import os
import pathlib
import struct
import subprocess
import sys
import zlib

import pytest

from conftest import ROOT
from sdkkit import SDK


def example(env, name, *args, code=0):
    p = subprocess.run([sys.executable, str(ROOT / "examples" / name), *map(str, args)], capture_output=True,
                       text=True, timeout=200, stdin=subprocess.DEVNULL,
                       env={**env, "PYTHONPATH": str(SDK), "PYTHONWARNINGS": "error::ResourceWarning"})
    assert p.returncode == code, p.stdout + p.stderr
    assert p.stderr == ""
    return p.stdout


@pytest.fixture
def env(python_home):
    yield {**python_home.env, "MSB_PATH": python_home.exe}
    assert python_home.ok("ls", "-q") == "", "an example left a sandbox behind"


def test_code_interpreter(env):
    out = example(env, "code_interpreter.py", "--timeout", "2")
    answers = [x for x in out.splitlines() if not x.startswith((">>>", "..."))]
    assert answers[0] == "17" and answers[-1] == "False"
    assert "NameError" in out and "25.88" in out and "killed after 2 s" in out


def test_parallel_tests(env):
    out = example(env, "parallel_tests.py", "--timeout", "5", code=1)
    lines = {x.split()[-1]: x.split("  ")[0].strip() for x in out.splitlines() if ".py" in x and " s  " in x}
    assert lines == {"tests/test_total.py": "passed", "tests/test_wrong.py": "failed",
                     "tests/test_hangs.py": "timed out"}
    assert "AssertionError: 0 != 1" in out and out.endswith("1 of 3 files passed\n")


def test_data_analysis(env, tmp_path):
    out = example(env, "data_analysis.py", "-o", tmp_path / "plot.png")
    assert '"n": 365' in out
    data = (tmp_path / "plot.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + size]
        assert zlib.crc32(kind + body) == struct.unpack(">I", data[at + 8 + size:at + 12 + size])[0]
        chunks[kind] = body
        at += 12 + size
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    pixels = zlib.decompress(chunks[b"IDAT"])
    assert (width, height, depth, colour) == (640, 360, 8, 2) and len(pixels) == height * (1 + 3 * width)
    red = sum(pixels[i:i + 3] == bytes((200, 60, 40)) for y in range(height)
              for i in range(y * (1 + 3 * width) + 1, (y + 1) * (1 + 3 * width), 3))
    assert red > 600, "the average is drawn across the whole width"


def test_egress_agent(outside, internet):
    before = internet.asked("other.org")  # by other tests
    cli = outside._cli
    env = {**cli.environment(), "MSB_PATH": cli.exe}
    subprocess.run([cli.exe, "secret", "set", "API_TOKEN"], input=b"s3cret", env=env, check=True,
                   stdout=subprocess.DEVNULL)
    out = example(env, "egress_agent.py", "--allow", "example.com", "--secret", "API_TOKEN",
                  "http://example.com/", "http://other.org/", "http://169.254.169.254/latest/")
    assert [x.split()[0] for x in out.splitlines()] == ["reached", "refused", "refused"]
    assert internet.asked("other.org") == before


def test_every_example_is_here():
    have = {p.name for p in pathlib.Path(ROOT, "examples").glob("*.py")}
    text = pathlib.Path(__file__).read_text()
    listed = (ROOT / "examples" / "README.md").read_text()
    assert have and all(f'"{name}"' in text and name in listed for name in have)
    assert all(os.access(ROOT / "examples" / name, os.X_OK) for name in have)
