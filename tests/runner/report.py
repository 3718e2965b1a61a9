"""Counting results, and running the tools that give them."""
import json
import os
import pathlib
import re
import subprocess

from runner import environment

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"  # Debian's, which has Debian's pytest


class Totals:
    """Passed, failed and skipped; also in a file, where they outlive the counting process."""

    def __init__(self, path=None):
        self.passed = self.failed = self.skipped = 0
        self.path, self.done = path, False

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"

    def add(self, passed=0, failed=0, skipped=0):
        self.passed += passed
        self.failed += failed
        self.skipped += skipped
        self.save()

    def finish(self):
        self.done = True
        self.save()

    def save(self):
        if self.path:
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps({"done": self.done, "counts": [self.passed, self.failed, self.skipped]}))
            part.rename(self.path)

    def check(self, name, ok, output=""):
        """One check that either holds or does not."""
        self.add(passed=int(ok), failed=int(not ok))
        print(f"    {'ok  ' if ok else 'FAIL'} {name}", flush=True)
        if not ok and output:
            print(output[-20000:], flush=True)

    def account_for(self, what, status, failed, output=""):
        """Whatever ended with a status that is not 0 must have counted a failure; `failed` were before it."""
        if status and self.failed == failed:
            self.check(f"{what} (its status is {status})", False, output)

    def skip(self, name, why):
        self.add(skipped=1)
        print(f"    skip {name}: {why}", flush=True)


def run(cmd, **kw):
    """A tool to its end, its output in .stdout."""
    kw.setdefault("cwd", ROOT)
    kw.setdefault("check", False)
    return subprocess.run(
        [str(c) for c in cmd], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", **kw)


def sources(*patterns):
    """The tree's files that match; those of git, or all in a tree that came without it."""
    if (ROOT / ".git").exists():
        out = run(["git", "-c", f"safe.directory={ROOT}", "ls-files", "--cached", "--others",
                   "--exclude-standard", *patterns]).stdout
        found = out.split("\n")
    else:
        found = [str(p.relative_to(ROOT)) for pattern in patterns or ("*",) for p in every(pattern)]
    return sorted(p for p in set(found) if p and (ROOT / p).is_file())


def every(pattern):
    head, _, tail = pattern.rpartition("/")
    return (p for p in (ROOT / head).rglob(tail) if not re.match(r"build|\.", str(p.relative_to(ROOT))))


def configure(directory, env=None, *options):
    """A build directory with tests in it, configured as asked and built; what failed, or all of it."""
    p = run(["scripts/configure", directory, "-Dtests=enabled", *options], env={**os.environ, **(env or {})})
    return p if p.returncode else run(["ninja", "-C", directory])


def cache(name):
    """A directory of the user's cache, which all work trees share."""
    d = pathlib.Path(environment.user_cache()) / name
    d.mkdir(parents=True, exist_ok=True)
    return d
