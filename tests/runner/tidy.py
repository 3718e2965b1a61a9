"""clang-tidy, for files that have changed since it last had nothing to say about them.

What it says depends on the file and the headers it reads, on the command that compiles it, on
.clang-tidy and on clang-tidy itself. A hash of all that names an empty file in the user's cache, if
nothing was found; findings are not kept.
"""
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import shutil
import time

from runner.report import ROOT, cache, run, sources

# Others know other checks: 19's misc-include-cleaner alone has something to say about nearly every file.
CLANG_TIDY = "clang-tidy-14"
KEEP = 10000       # results
KEEP_DAYS = 60


@functools.lru_cache(maxsize=None)
def digest(path):
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "gone"


def headers(build):
    """Object -> the files that its compiler read, as ninja has recorded them."""
    found, current = {}, None
    for line in run(["ninja", "-C", build, "-t", "deps"]).stdout.splitlines():
        if line.startswith("    "):
            current.append(line.strip())
        elif ": #deps" in line:
            current = found.setdefault(line.split(":")[0], [])
    return found


class Keys:
    """The hash of all that matters for a file."""

    def __init__(self, build):
        self.build, self.headers = build, headers(build)
        self.common = [run([CLANG_TIDY, "--version"]).stdout, digest(ROOT / ".clang-tidy")]

    def neutral(self, text):
        """Without the places of this work tree, so that others find the same."""
        return str(text).replace(str(self.build), "BUILD").replace(str(ROOT), "ROOT")

    def key(self, entry):
        """None where ninja does not know what the file reads."""
        read = self.headers.get(entry["output"])
        if not read:
            return None
        h = hashlib.sha256()
        for part in (*self.common, self.neutral(entry["command"])):
            h.update(part.encode() + b"\0")
        for name in read:
            path = pathlib.Path(os.path.normpath(self.build / name))
            h.update(f"{self.neutral(path)} {digest(path)}\n".encode())
        return h.hexdigest()


def forget_old(directory):
    """Results that have not been used for a while, and the oldest ones beyond the limit."""
    files = sorted(((f.stat().st_mtime, f) for f in directory.iterdir()), reverse=True)
    limit = time.time() - KEEP_DAYS * 86400
    for n, (used, f) in enumerate(files):
        if n >= KEEP or used < limit:
            f.unlink(missing_ok=True)


def check_file(build, entry, mark):
    """What clang-tidy finds in a file."""
    if mark and mark.exists():
        mark.touch()
        return []
    p = run([CLANG_TIDY, "--quiet", "-p", build, entry["file"]], cwd=build)
    if p.returncode == 0:
        if mark:
            mark.touch()
        return []
    # The findings; how the analyzer got there is for clang-tidy by hand.
    return [x for x in p.stdout.splitlines() if " error: " in x] or [f"{entry['file']}: {p.stdout[-2000:]}"]


def check(build, t):
    if not shutil.which(CLANG_TIDY):
        t.skip("clang-tidy", f"{CLANG_TIDY} is not installed: where the release has it, run scripts/bootstrap test")
        return
    wanted = {str(ROOT / s) for s in sources("src/*.c")}
    entries = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = os.path.normpath(os.path.join(entry["directory"], entry["file"]))
        if path in wanted:
            entries.setdefault(path, entry)
    directory, keys = cache("tidy"), Keys(build)
    work = []
    for entry in entries.values():
        key = keys.key(entry)
        work.append((build, entry, directory / key if key else None))
    old = sum(1 for *_, mark in work if mark and mark.exists())
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        bad = [x for found in pool.map(lambda w: check_file(*w), work) for x in found]
    t.check(f"clang-tidy ({len(work)} files, {old} of them unchanged)", not bad, "\n".join(bad))
    forget_old(directory)
