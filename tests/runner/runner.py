"""This program's own tests."""
from runner import junit


def stage(args, t):
    junit.run(args.build / "runner.xml", t, "tests/runner/test_runner.py")
