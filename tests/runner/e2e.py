"""The real program with a real kernel; MSB_TEST_E2E names some of the files, where all take too long."""
import os
import subprocess

from runner import junit
from runner.report import PYTHON, ROOT


def stage(args, t):
    chosen = os.environ.get("MSB_TEST_E2E", "").split()
    if not chosen:
        # Before the tests, since no test has the time that it takes to fetch a Debian.
        subprocess.run([PYTHON, "-B", ROOT / "tests" / "e2e" / "imagekit.py"], cwd=ROOT, check=False)
    junit.run(args.build / "e2e.xml", t, "--durations=10", *(chosen or ["tests/e2e"]), again=True,
              MSB_BIN=str(args.build / "src" / "cli" / "msb"))
