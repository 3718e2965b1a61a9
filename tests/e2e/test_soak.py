"""The short form of `make soak`."""
import pathlib
import subprocess
import sys

from conftest import SLOW

SOAK = pathlib.Path(__file__).resolve().parents[1] / "soak" / "soak.py"


def test_short_soak(msb):
    p = subprocess.run([sys.executable, SOAK, "--msb", msb.exe, "--cycles", "40", "--execs", "400", "--side-by-side", "8",
                        "--seconds", "3"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       env=msb.env, timeout=110 * SLOW, check=False)
    assert p.returncode == 0, p.stdout.decode(errors="replace")
