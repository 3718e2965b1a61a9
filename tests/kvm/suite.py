#!/usr/bin/python3
"""Tests of the kvm engine, on this machine's KVM if that works, in the nested testbed if not.

    suite.py --build DIR [--sanitized DIR] [--report DIR]

Runs the end-to-end tests listed in suite.txt with MSB_ENGINE=kvm on one virtual CPU, some on two,
and in the testbed the evil guest too (where KVM works, or half works, the unit tests run that
already). Reports: kvm-1.txt, kvm-2.txt and evil.txt with a line for each result, and kvm.log, which
grows as tests start and end. Exit status 0 when all went well, 1 when a test failed, 125 when the
testbed did.

In the testbed each phase of a test has a time limit (watch.py), L1 one for its silence, and the whole
one for all of it: what hangs fails, with its name and a report on what it was doing. Only if L1 froze as
a whole, which is the emulator's fault (l1.py), is it booted again, twice at most, and goes on where it
was: with the test that it froze in, and never with one that has a result.
"""
import argparse
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TESTBED = HERE / "testbed"
ASSETS = ["linux-kvm", "tools.erofs", "base.erofs"]
CPUS = (1, 2)
PARTS = [*(f"kvm-{n}" for n in CPUS), "evil"]
SLOW = 10  # times the patience of the tests, in the testbed
# Seconds, in the testbed, which is slow at best: where QEMU gets a third of a CPU, the longest test
# takes 64.
PHASE_LIMIT = 300  # for the setup, the call or the teardown of a test
SILENCE_LIMIT = 2 * PHASE_LIMIT  # between two words of L1
LIMIT = 3600  # for all of it
FROZEN, NO_ANSWER = 121, 125  # the testbed's exit statuses
REPEATS = 2  # of a boot whose L1 froze


def tests(cpus):
    lines = [x.split() for x in (HERE / "suite.txt").read_text().splitlines() if x and not x.startswith("#")]
    return [name for name, *on in lines if str(cpus) in "".join(on or "1")]


def kvm_works(msb):
    """Whether kernels run natively here, by the probe that `msb doctor` reports."""
    if not msb.exists():
        return False
    p = subprocess.run([msb, "doctor", "--format", "json"], stdout=subprocess.PIPE,
                       stderr=subprocess.DEVNULL, check=False,
                       env={k: v for k, v in os.environ.items() if k != "MSB_ENGINE"})
    try:
        checks = json.loads(p.stdout)["checks"]
    except (ValueError, KeyError):
        return False
    return any(c["name"] == "KVM" and c["status"] == "ok" for c in checks)


def pytest(cpus):
    return ["/usr/bin/python3", "-m", "pytest", "-v", "-p", "watch", "-p", "no:cacheprovider", "-rfE",
            "--tb=short", "--durations=5", *tests(cpus)]


def attacks():
    return re.findall(r"^ATTACK\((\w+),", (HERE / "evil" / "attacks.def").read_text(), re.M)


def run_here(build, report):
    status = 0
    for cpus in CPUS:
        print(f"    {cpus} virtual CPU(s), on this machine's KVM", flush=True)
        env = {**os.environ, "MSB_BIN": str(build / "src" / "cli" / "msb"), "MSB_ENGINE": "kvm",
               "MSB_TEST_CPUS": str(cpus), "PYTHONPATH": str(HERE),
               "MSB_WATCH_RESULTS": str(report / f"kvm-{cpus}.txt")}
        p = subprocess.run(pytest(cpus), cwd=ROOT, env=env, check=False)
        status = status or (1 if p.returncode else 0)
    return status


def libraries(program, wanted=("asan", "ubsan")):
    """The shared libraries of sanitizers, which L1 does not have."""
    p = subprocess.run(["ldd", program], stdout=subprocess.PIPE, text=True, check=True)
    paths = [line.split()[2] for line in p.stdout.splitlines() if " => /" in line]
    return [x for x in paths if any(f"lib{w}" in x for w in wanted)]


def pack(stage, build, sanitized):
    """All that L1 needs, in one directory."""
    (stage / "build" / "src" / "cli").mkdir(parents=True)
    (stage / "build" / "assets").mkdir()
    (stage / "evil").mkdir()
    (stage / "report").mkdir()
    shutil.copy(build / "src" / "cli" / "msb", stage / "build" / "src" / "cli")
    for name in ASSETS:
        shutil.copy(build / "assets" / name, stage / "build" / "assets")
    shutil.copytree(ROOT / "tests" / "e2e", stage / "tests" / "e2e",
                    ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "src" / "proto", stage / "src" / "proto")  # tests take the protocol's constants from it
    shutil.copytree(ROOT / "sdk" / "python" / "msb", stage / "sdk" / "python" / "msb",
                    ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy("/bin/busybox", stage / "build" / "busybox")  # roots of containers are made of it
    (stage / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "policy.md", stage / "docs")  # its examples are tests
    shutil.copy(HERE / "watch.py", stage / "tests")
    evil = sanitized / "tests" / "kvm" / "evil_host"
    for f in (evil, sanitized / "tests" / "kvm" / "evil.elf", *libraries(evil)):
        shutil.copy(f, stage / "evil")


def results(report, part):
    """[(outcome, test or attack)] of a part of the suite, so far."""
    file = report / f"{part}.txt"
    text = file.read_text(errors="replace") if file.exists() else ""
    return re.findall(r"^(passed|failed|skipped|ok|FAIL) +(\S+)", text, re.M)


def status_of(report, part):
    """With which exit status a part came to its end; None if it has not."""
    file = report / f"{part}.status"
    return file.read_text().strip() if file.exists() else None


def script(report):
    """What L1 does, as far as it is not done. Its own disk is faster than the directory it shares with us."""
    lines = ["set -uo pipefail", "mkdir /tmp/msb", "cd /tmp/msb",
             "cp -r /mnt/share/build /mnt/share/src /mnt/share/sdk /mnt/share/docs /mnt/share/tests /mnt/share/evil .",
             "[ -e /bin/busybox ] || cp build/busybox /bin/busybox",
             "export MSB_ENGINE=kvm PYTHONDONTWRITEBYTECODE=1",
             f"export PYTHONPATH=/tmp/msb/tests MSB_WATCH_LIMIT={PHASE_LIMIT}",
             f"export MSB_TEST_SLOW={SLOW} MSB_BIN=/tmp/msb/build/src/cli/msb"]

    def part(name, title, command):
        if status_of(report, name) is None:
            lines.extend([f"echo '    {title}'", command, f"echo $? >/mnt/share/report/{name}.status"])

    for cpus in CPUS:
        part(f"kvm-{cpus}", f"{cpus} virtual CPU(s)",
             f"MSB_WATCH_RESULTS=/mnt/share/report/kvm-{cpus}.txt MSB_TEST_CPUS={cpus} {shlex.join(pytest(cpus))}")
    done = [name for _, name in results(report, "evil")]
    left = [x for x in attacks() if x not in done]
    part("evil", "the evil guest, under ASan and UBSan", "LD_LIBRARY_PATH=evil evil/evil_host evil/evil.elf "
         + shlex.join(left) + " 2>&1 | tee -a /mnt/share/report/evil.txt" if left else "true")
    return "\n".join(lines) + "\n"


class Log:
    """Our output, which is in a file as well."""

    def __init__(self, path):
        self.file = open(path, "wb")

    def write(self, piece):
        for to in (self.file, sys.stdout.buffer):
            to.write(piece)
            to.flush()

    def say(self, text):
        self.write(f"    {text}\n".encode())

    def run(self, cmd):
        """Runs a command whose output is ours, piece by piece as it comes."""
        with subprocess.Popen(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as p:
            try:
                while piece := os.read(p.stdout.fileno(), 65536):
                    self.write(piece)
            except BaseException:
                p.terminate()
                raise
        return p.returncode


def last_test(log):
    """The test or attack that was named last in a log."""
    lines = log.read_text(errors="replace").splitlines()
    return next((x for x in reversed(lines) if x.startswith(("tests/e2e/", "ok  ", "FAIL"))), "nothing")


def boot(stage, log, write_script, *options):
    """Boots L1 with a script, again if it froze; the script is written anew for what is left.
    Returns the testbed's exit status."""
    deadline = time.monotonic() + LIMIT
    for repeat in range(REPEATS + 1):
        (stage / "script").write_text(write_script())
        status = log.run([TESTBED, "run", "-v", "--timeout", str(deadline - time.monotonic()), "--silence",
                          str(SILENCE_LIMIT), *options, "--share", stage, "--", "bash", "/mnt/share/script"])
        if status != FROZEN:
            break
        log.say(f"L1 froze (the emulator, not msb) after {last_test(pathlib.Path(log.file.name))}; "
                + (f"booting it again to go on from there, {repeat + 1} of {REPEATS}" if repeat < REPEATS else
                   f"it was booted again {REPEATS} times, and is given up"))
    return status


def outcome(report, status):
    """The suite's exit status, given the testbed's."""
    if status != 0:
        return NO_ANSWER
    found = [x for p in PARTS for x, _ in results(report, p)]
    ended_well = all(status_of(report, p) == "0" for p in PARTS)
    complete = sorted(name for _, name in results(report, "evil")) == sorted(attacks())
    return 0 if ended_well and complete and not {"failed", "FAIL"} & set(found) else 1


def run_nested(build, sanitized, report):
    stage = pathlib.Path(tempfile.mkdtemp(prefix="msb-kvm-suite."))
    try:
        pack(stage, build, sanitized)
        log = Log(report / "kvm.log")
        status = boot(stage, log, lambda: script(stage / "report"))
        for f in (stage / "report").glob("*.txt"):
            shutil.copy(f, report)
        if status != 0:
            log.say(f"it did not come to its end; the last that began or ended was\n"
                    f"    {last_test(report / 'kvm.log')}")
        return outcome(stage / "report", status)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    ap.add_argument("--sanitized", type=pathlib.Path, help="a build with ASan and UBSan (BUILD-asan)")
    ap.add_argument("--report", type=pathlib.Path, help="directory for reports (BUILD)")
    ap.add_argument("--where", action="store_true",
                    help="say where they would run, 'here', 'testbed' or '', and end")
    args = ap.parse_args()
    # So that nothing stays behind when this is ended from outside.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    build = args.build.resolve()
    sanitized = (args.sanitized or pathlib.Path(f"{build}-asan")).resolve()
    here = kvm_works(build / "src" / "cli" / "msb")
    if args.where:
        built = subprocess.run([TESTBED, "built"], check=False).returncode == 0
        print("here" if here else "testbed" if built else "")
        return 0
    report = args.report or build
    for part in PARTS:  # else they would seem to be done
        (report / f"{part}.txt").unlink(missing_ok=True)
    return run_here(build, report) if here else run_nested(build, sanitized, report)


if __name__ == "__main__":
    sys.exit(main())
