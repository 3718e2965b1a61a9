#!/usr/bin/python3
"""Tests of the kvm engine, on this machine's KVM if that works, in the nested testbed if not.

    suite.py --build DIR [--sanitized DIR] [--report DIR]

Runs the end-to-end tests listed in suite.txt with MSB_ENGINE=kvm on one and on two virtual CPUs,
and in the testbed the evil guest too (where KVM works, or half works, the unit tests run that
already). Reports: kvm-1.xml and kvm-2.xml (junit), evil.txt, and kvm.log, which grows as tests start
and end. Exit status 0 when all went well, 1 when a test failed, 125 when the testbed did.

In the testbed each phase of a test has a time limit (watch.py), L1 one for its silence, and the whole
one for all of it: what hangs fails, with its name and a report on what it was doing.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TESTBED = HERE / "testbed"
ASSETS = ["linux-kvm", "tools.erofs", "base.erofs"]
CPUS = (1, 2)
SLOW = 10  # times the patience of the tests, in the testbed
# Seconds, in the testbed, which is slow at best: where QEMU gets a third of a CPU, the longest test
# takes 64.
PHASE_LIMIT = 300  # for the setup, the call or the teardown of a test
SILENCE_LIMIT = 2 * PHASE_LIMIT  # between two words of L1
LIMIT = 3600  # for all of it


def tests():
    lines = (HERE / "suite.txt").read_text().splitlines()
    return [x for x in lines if x and not x.startswith("#")]


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


def pytest(report):
    return ["/usr/bin/python3", "-m", "pytest", "-v", "-p", "watch", "-p", "no:cacheprovider", "-rfE",
            "--tb=short", "--durations=5", f"--junitxml={report}", *tests()]


def run_here(build, report):
    status = 0
    for cpus in CPUS:
        print(f"    {cpus} virtual CPU(s), on this machine's KVM", flush=True)
        env = {**os.environ, "MSB_BIN": str(build / "src" / "cli" / "msb"), "MSB_ENGINE": "kvm",
               "MSB_TEST_CPUS": str(cpus), "PYTHONPATH": str(HERE)}
        p = subprocess.run(pytest(report / f"kvm-{cpus}.xml"), cwd=ROOT, env=env, check=False)
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
    shutil.copy(HERE / "watch.py", stage / "tests")
    evil = sanitized / "tests" / "kvm" / "evil_host"
    for f in (evil, sanitized / "tests" / "kvm" / "evil.elf", *libraries(evil)):
        shutil.copy(f, stage / "evil")


def script():
    """What L1 does. Its own disk is faster than the directory it shares with us."""
    lines = ["set -uo pipefail", "mkdir /tmp/msb", "cd /tmp/msb",
             "cp -r /mnt/share/build /mnt/share/src /mnt/share/tests /mnt/share/evil .",
             "export MSB_ENGINE=kvm PYTHONDONTWRITEBYTECODE=1 status=0",
             f"export PYTHONPATH=/tmp/msb/tests MSB_WATCH_LIMIT={PHASE_LIMIT}",
             f"export MSB_TEST_SLOW={SLOW} MSB_BIN=/tmp/msb/build/src/cli/msb"]
    for cpus in CPUS:
        cmd = " ".join(f"'{a}'" for a in pytest(f"/mnt/share/report/kvm-{cpus}.xml"))
        lines += [f"echo '    {cpus} virtual CPU(s)'", f"MSB_TEST_CPUS={cpus} {cmd} || status=1"]
    lines += ["echo '    the evil guest, under ASan and UBSan'",
              "LD_LIBRARY_PATH=evil evil/evil_host evil/evil.elf 2>&1 | tee /mnt/share/report/evil.txt"
              " || status=1",
              "exit $status"]
    return "\n".join(lines) + "\n"


def run_logged(cmd, log):
    """Runs a command whose output goes to our own and to a file, piece by piece as it comes."""
    with open(log, "wb") as f, subprocess.Popen(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as p:
        try:
            while piece := os.read(p.stdout.fileno(), 65536):
                for to in (f, sys.stdout.buffer):
                    to.write(piece)
                    to.flush()
        except BaseException:
            p.terminate()
            raise
    return p.returncode


def last_test(log):
    """The test or attack that was named last in a log."""
    lines = log.read_text(errors="replace").splitlines()
    return next((x for x in reversed(lines) if x.startswith(("tests/e2e/", "ok  ", "FAIL"))), "nothing")


def run_nested(build, sanitized, report):
    stage = pathlib.Path(tempfile.mkdtemp(prefix="msb-kvm-suite."))
    try:
        pack(stage, build, sanitized)
        (stage / "script").write_text(script())
        status = run_logged([TESTBED, "run", "-v", "--timeout", str(LIMIT), "--silence", str(SILENCE_LIMIT),
                             "--share", stage, "--", "bash", "/mnt/share/script"], report / "kvm.log")
        for f in (stage / "report").iterdir():
            shutil.copy(f, report)
        if status not in (0, 1):
            print(f"    it did not come to its end; the last that began or ended was\n"
                  f"    {last_test(report / 'kvm.log')}", flush=True)
        return status
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
    return run_here(build, report) if here else run_nested(build, sanitized, report)


if __name__ == "__main__":
    sys.exit(main())
