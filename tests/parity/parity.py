#!/usr/bin/env python3
"""Compares msb's command line with that of microsandbox 0.6.18, program against program.

usage: parity.py MSB [PEER] [-o TABLE.md]

Verbs and flags come from both programs' --tree, exit codes and JSON keys from running both on the
same words, in homes of their own. PEER is microsandbox's msb; without it, it is fetched with npm.
Every difference must be in accepted.py, with its reason, and every entry there must be needed.
Exit code 0: so it is; 1: it is not; 77: there is no PEER to compare with.
"""
import argparse
import fnmatch
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from accepted import ACCEPTED

PACKAGE = "@superradcompany/microsandbox-linux-x64-gnu@0.6.18"
SKIP = 77

# Words that both understand without a virtual machine; {box} exists in both, but does not run.
EXIT_CODES = [
    [], ["--help"], ["--version"], ["-V"], ["--bogus"], ["bogus"], ["help"], ["run", "--help"],
    ["ls"], ["ls", "--bogus"], ["ls", "--format", "yaml"], ["ps"], ["ps", "nobody"],
    ["inspect"], ["inspect", "nobody"], ["inspect", "{box}"], ["stop"], ["stop", "nobody"], ["stop", "-q", "nobody"],
    ["stop", "{box}"], ["stop", "--label", "no=such"], ["rm"], ["rm", "nobody"], ["rm", "-f", "nobody"],
    ["rm", "-q", "nobody"], ["start"], ["start", "nobody"], ["restart", "nobody"], ["ping", "nobody"], ["ping", "{box}"],
    ["touch", "nobody"], ["exec"], ["exec", "nobody", "--", "true"], ["logs"], ["logs", "nobody"], ["logs", "{box}"],
    ["logs", "--tail", "x", "{box}"], ["create", "-n", "a/b", "{root}"], ["create", "-n", "{box}", "{root}"],
    ["create", "-n", "x", "--memory", "x", "{root}"], ["create", "-n", "x", "--cpus", "999", "{root}"],
    ["create", "-n", "x", "--pull", "sometimes", "{root}"], ["create", "-e", "MSB_PARITY_UNSET", "{root}"],
    ["modify", "nobody", "--memory", "1G"], ["volume"], ["volume", "ls"], ["volume", "create", "v1"],
    ["volume", "create", "v1"], ["volume", "inspect", "v1"], ["volume", "inspect", "nobody"], ["volume", "rm", "nobody"],
    ["volume", "rm", "v1"], ["image", "ls"], ["image", "inspect", "nobody"], ["image", "rm", "nobody"],
    ["image", "prune"], ["image", "prune", "--yes"], ["rmi", "nobody"], ["registry", "ls"],
    ["registry", "logout", "nobody.example"], ["registry", "login", "nobody.example"], ["context"], ["metrics"],
    ["metrics", "nobody"], ["metrics", "--watch"], ["install", "--list"], ["uninstall"], ["uninstall", "nobody"],
    ["completion", "bash"], ["completion", "nosuchshell"], ["cp", "a", "b"], ["copy", "nobody:/x", "."],
    ["self"], ["volumes"], ["images"], ["downgrade"],
]  # fmt: skip

JSON_KEYS = [
    ["ls", "--format", "json"], ["ps", "-a", "--format", "json"], ["ps", "{box}", "--format", "json"],
    ["inspect", "{box}", "--format", "json"], ["volume", "ls", "--format", "json"],
    ["volume", "inspect", "v2", "--format", "json"], ["context", "--format", "json"],
    ["image", "prune", "--yes", "--format", "json"],
    ["modify", "{box}", "--memory", "640M", "--dry-run", "--format", "json"],
]  # fmt: skip


def find_peer(directory):
    if not shutil.which("npm"):
        return None
    pack = ["npm", "pack", "--silent", PACKAGE]
    try:
        subprocess.run(pack, cwd=directory, capture_output=True, timeout=120, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    for archive in directory.glob("*.tgz"):
        subprocess.run(["tar", "-xzf", archive, "-C", directory], check=True)
    exe = directory / "package" / "bin" / "msb"
    return exe if exe.exists() else None


class Program:
    """One of the two, with a home, an image and a sandbox that does not run."""

    def __init__(self, exe, directory):
        self.exe = str(pathlib.Path(exe).resolve())
        self.root = directory / "root"
        (self.root / "bin").mkdir(parents=True)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("MSB_") or k == "MSB_ASSETS"}
        self.env.update(MSB_HOME=str(directory / "home"), NO_COLOR="1", PATH="/usr/bin:/bin")
        (directory / "home").mkdir(mode=0o700)
        self.attempt("create", "-n", "box", "--memory", "128M", str(self.root))
        self.attempt("stop", "-f", "box")
        self.run("volume", "create", "v2")

    def attempt(self, *words):
        """What need not succeed: where virtual machines do not run, a sandbox that does not is enough."""
        try:
            self.run(*words, timeout=30)
        except subprocess.TimeoutExpired:
            pass

    def run(self, *words, timeout=120):
        words = [w.format(box="box", root=self.root) for w in words]
        return subprocess.run([self.exe, *words], env=self.env, stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=timeout, cwd=self.root)  # fmt: skip

    def tree(self):
        """{path of a verb: its flags}, with the aliases of both."""
        found, stack = {}, []
        for line in self.run("--tree").stdout.decode().splitlines()[1:]:
            at = re.search(r"(├──|└──) ", line)
            if not at:
                continue
            depth, rest = at.start() // 4, re.split(r"  +", line[at.end():])[0]
            flags = re.findall(r"(?:^|, )(--?[a-zA-Z0-9-]+)", rest)
            if flags:
                found.setdefault(" ".join(stack[:depth]), set()).update(flags)
            elif rest[0].isalpha():
                aliases = re.search(r"\(alias(?:es)?: ([^)]*)\)", rest)
                names = [rest.split()[0]] + (re.split(r", *", aliases.group(1)) if aliases else [])
                stack[depth:] = [names[0]]
                for name in names:
                    found.setdefault(" ".join([*stack[:depth], name]), set())
        return found


def keys_of(value, prefix=""):
    """Paths of all keys; members of lists are one."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{prefix}{key}"
            yield from keys_of(inner, f"{prefix}{key}.")
    elif isinstance(value, list):
        for inner in value[:1]:
            yield from keys_of(inner, prefix)


def flag_differences(ours, theirs):
    mine, other = ours.tree(), theirs.tree()
    for verb, flags in sorted(other.items()):
        words = verb.split()
        if verb and verb not in mine and ours.run(*words, "--help").returncode != 0:
            yield f"verb: {verb}", "missing"
            continue
        helped = ours.run(*words, "--help-all").stdout.decode() if verb else ours.run("--help-all").stdout.decode()
        for flag in sorted(flags - mine.get(verb, set()) - {"--help", "-h"}):
            if ours.run(*words, flag, "--help").returncode and not re.search(rf"(^|[ ,]){re.escape(flag)}([ ,=<]|$)", helped.split("Not available yet:")[0], re.M):
                yield f"flag: {verb} {flag}".replace("  ", " "), "missing"


def exit_differences(ours, theirs):
    for words in EXIT_CODES:
        mine, other = ours.run(*words).returncode, theirs.run(*words).returncode
        if mine != other:
            yield f"exit: {' '.join(words)}", f"{other} there, {mine} here"


def json_differences(ours, theirs):
    for words in JSON_KEYS:
        sets = []
        for program in (ours, theirs):
            try:
                sets.append(set(keys_of(json.loads(program.run(*words).stdout))))
            except ValueError:
                sets.append({"(no JSON)"})
        for key in sorted(sets[1] - sets[0]):
            yield f"json-: {' '.join(words[:2])} {key}", "missing"
        for key in sorted(sets[0] - sets[1]):
            yield f"json+: {' '.join(words[:2])} {key}", "more"


def reason_for(what, used):
    for pattern, reason in ACCEPTED:
        if fnmatch.fnmatchcase(what, pattern):
            used.add(pattern)
            return reason
    return None


def main():
    args = argparse.ArgumentParser(usage="parity.py MSB [PEER] [-o TABLE.md]")
    args.add_argument("msb")
    args.add_argument("peer", nargs="?")
    args.add_argument("-o")
    args = args.parse_args()
    with tempfile.TemporaryDirectory(prefix="msb-parity.") as directory:
        directory = pathlib.Path(directory)
        for name in ("npm", "ours", "theirs"):
            (directory / name).mkdir()
        peer = args.peer or find_peer(directory / "npm")
        if not peer:
            print("parity: microsandbox cannot be had from npm", file=sys.stderr)
            return SKIP
        ours, theirs = Program(args.msb, directory / "ours"), Program(peer, directory / "theirs")
        used, rows, bad = set(), [], 0
        for compare in (flag_differences, exit_differences, json_differences):
            for what, how in compare(ours, theirs):
                reason = reason_for(what, used)
                bad += reason is None
                rows.append((what, how, reason or "**not accepted**"))
                if reason is None:
                    print(f"parity: {what}: {how}", file=sys.stderr)
    for pattern, _ in ACCEPTED:
        if pattern not in used:
            bad += 1
            print(f"parity: accepted.py: nothing is like '{pattern}' any more", file=sys.stderr)
    if args.o:
        table = "".join(f"| `{what}` | {how} | {reason} |\n" for what, how, reason in rows)
        pathlib.Path(args.o).write_text("| what | difference | why |\n|---|---|---|\n" + table)
    print(f"{len(rows)} differences, {bad} of them not accepted")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
