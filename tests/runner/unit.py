"""The tests that meson knows: cmocka's, and pytest's of single programs.

Those of the suite `plain` tell nothing more under sanitizers, those of `sanitized` nothing more without.
"""
import json
import os
import re

from runner.report import configure, run


def count(entry, t):
    """Counts the tests inside one test program from what it printed."""
    text = (entry.get("stdout") or "") + (entry.get("stderr") or "")

    def number(pattern):
        return sum(int(n) for n in re.findall(pattern, text))

    passed = number(r"\[  PASSED  \] (\d+) test") or number(r"(\d+) passed")
    failed = number(r"\[  FAILED  \] (\d+) test\(s\), listed") or number(r"(\d+) failed")
    skipped = number(r"\[  SKIPPED \] (\d+) test") or number(r"(\d+) skipped")
    ok = entry["result"] in ("OK", "SKIP", "EXPECTEDFAIL")
    if not ok and not failed:
        failed = 1  # it crashed, or timed out
    if passed + failed + skipped == 0:
        passed = 1
    t.add(passed, failed, skipped)
    print(f"    {'ok  ' if ok else 'FAIL'} {entry['name']}: {passed} passed"
          + (f", {failed} failed" if failed else "") + (f", {skipped} skipped" if skipped else ""), flush=True)
    if not ok:
        print(f"{entry['result']}\n{text[-20000:]}", flush=True)


def run_tests(directory, t, without):
    """All of a build directory but one suite; each has a limit from meson, four times as long on a busy machine."""
    log = directory / "meson-logs" / "testlog.json"
    log.unlink(missing_ok=True)
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=1",
           "UBSAN_OPTIONS": "halt_on_error=1:abort_on_error=1:print_stacktrace=1"}
    p = run(["meson", "test", "-C", directory, "--no-rebuild", "-t", "4", "--no-suite", without], env=env)
    entries = [json.loads(x) for x in log.read_text().splitlines()] if log.exists() else []
    failed = t.failed
    for entry in entries:
        count(entry, t)
    if not entries:
        t.check("meson ran tests", False, p.stdout)
    t.account_for("meson ended well", p.returncode, failed, p.stdout)


def build_and_run(directory, t, what, without, *options):
    p = configure(directory, None, *options)
    if p.returncode:
        t.check(what, False, p.stdout)
        return
    run_tests(directory, t, without)


def stage(args, t):
    build_and_run(args.build, t, "build", "sanitized")
