#!/usr/bin/env python3
"""Runs the test files of a project in parallel, each in its own sandbox.

A test that fills the disk, leaves processes behind or breaks the interpreter does not affect the others, and
none of them can reach the network or this machine. Without a directory, a small example project is tested.
"""
import argparse
import asyncio
import pathlib
import sys
import tempfile
import time
import uuid

import msb

EXAMPLE = {
    "shop/__init__.py": "def total(prices, discount=0):\n    return round(sum(prices) * (1 - discount), 2)\n",
    "tests/test_total.py": "import unittest, shop\n\nclass Total(unittest.TestCase):\n"
                           "    def test_sum(self):\n        self.assertEqual(shop.total([1, 2]), 3)\n"
                           "    def test_discount(self):\n        self.assertEqual(shop.total([10], 0.1), 9)\n",
    "tests/test_wrong.py": "import unittest, shop\n\nclass Wrong(unittest.TestCase):\n"
                           "    def test_empty(self):\n        self.assertEqual(shop.total([]), 1)\n",
    "tests/test_hangs.py": "import time, unittest\n\nclass Hangs(unittest.TestCase):\n"
                           "    def test_for_ever(self):\n        time.sleep(86400)\n",
}


def make_example(top):
    for name, text in EXAMPLE.items():
        path = pathlib.Path(top, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


async def run_file(client, args, project, test, slots):
    """(verdict, seconds, output) of one test file."""
    async with slots:
        begun = time.monotonic()
        spec = msb.SandboxSpec(name=f"test-{uuid.uuid4().hex[:8]}", image=args.image, memory_mib=args.memory,
                               labels={"job": "tests"})
        async with await client.create(spec) as sandbox:
            await sandbox.files.upload(project, "/project")
            r = await sandbox.exec("python3", ["-m", "unittest", "-q", str(test)], cwd="/project",
                                   timeout=args.timeout, max_output=100_000)
        verdict = "passed" if r.ok else "timed out" if r.timed_out else "failed"
        return verdict, time.monotonic() - begun, r.output


async def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("project", nargs="?", type=pathlib.Path, help="directory with tests/test_*.py")
    ap.add_argument("--image", default="python:3.11-slim")
    ap.add_argument("--jobs", type=int, default=4)
    ap.add_argument("--timeout", type=float, default=60.0, help="seconds for each file")
    ap.add_argument("--memory", type=int, default=256, help="MiB for each sandbox")
    args = ap.parse_args()
    with tempfile.TemporaryDirectory() as made:
        project = args.project or pathlib.Path(made)
        if args.project is None:
            make_example(project)
        tests = [p.relative_to(project) for p in sorted(project.glob("tests/test_*.py"))]
        client, slots = msb.SandboxClient(), asyncio.Semaphore(args.jobs)
        found = await asyncio.gather(*(run_file(client, args, project, t, slots) for t in tests))
    for test, (verdict, seconds, output) in zip(tests, found):
        print(f"{verdict:9}  {seconds:6.2f} s  {test}")
        if verdict == "failed":
            print("    " + "\n    ".join(output.strip().splitlines()[-12:]))
    failed = sum(verdict != "passed" for verdict, _, _ in found)
    print(f"{len(found) - failed} of {len(found)} files passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
