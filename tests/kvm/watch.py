"""A pytest plugin for a machine on which a test may hang: none waits for ever, and none in silence.

Every phase of a test (setup, call, teardown) has MSB_WATCH_LIMIT seconds, if that is set. One that
takes longer fails, and the output tells what went on in that moment: where the test was, all processes
and what msb's threads wait for, KVM's counters, the last words of the sandboxes and of the kernel.

What became of each test is a line of the file MSB_WATCH_RESULTS, at once; tests that are in it already
are left out. So tests can go on where they were cut off, and none that has failed is run again.
"""
import os
import pathlib
import signal
import subprocess
import sys
import time
import traceback

import pytest

LIMIT = int(os.environ.get("MSB_WATCH_LIMIT", "0"))  # 0: none
RESULTS = pathlib.Path(os.environ.get("MSB_WATCH_RESULTS", os.devnull))
DEBUG = pathlib.Path("/sys/kernel/debug")
# Of KVM's counters, those that move when a virtual CPU runs, halts, wakes and is interrupted.
COUNTERS = ("exits", "halt_exits", "halt_wakeup", "irq_injections", "irq_exits", "signal_exits", "nmi_injections")


def text(path):
    try:
        return pathlib.Path(path).read_text(errors="replace").strip()
    except OSError as e:
        return str(e.strerror)


def output(*cmd):
    try:
        p = subprocess.run(cmd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError) as e:
        return str(e)
    return p.stdout.decode(errors="replace")


# --- what is going on ---------------------------------------------------------------------------


def frames():
    """Where the test's threads are, without pytest's own way there."""
    for frame in sys._current_frames().values():
        for f in traceback.extract_stack(frame):
            if "/_pytest/" not in f.filename and "/pluggy/" not in f.filename:
                yield f"{f.filename}:{f.lineno} {f.name}: {f.line}"
        yield "--"


def processes():
    lines = output("ps", "-eo", "pid,ppid,stat,wchan:24,cputimes,etimes,args", "--sort=pid").splitlines()
    return [x for x in lines if x.split()[:1] != ["2"] and x.split()[1:2] != ["2"]]  # not the kernel's


def threads():
    """What every thread of msb's waits for: the number of its system call, and the kernel's stack."""
    for task in sorted(pathlib.Path("/proc").glob("[0-9]*/task/[0-9]*")):
        if "/msb" in text(task / "cmdline").partition("\0")[0]:
            stack = [x.split()[1].split("+")[0] for x in text(task / "stack").splitlines() if "]" in x]
            yield (f"{task.parent.parent.name}/{task.name} {text(task / 'comm')}:"
                   f" {text(task / 'syscall').split(' ')[0]} {' < '.join(stack[:6])}")


def counters():
    if os.geteuid() != 0:  # for root's eyes
        return
    if not (DEBUG / "kvm").is_dir():
        output("mount", "-t", "debugfs", "debugfs", str(DEBUG))
    for vm in sorted((DEBUG / "kvm").glob("[0-9]*-*")):
        yield f"{vm.name}: " + ", ".join(f"{c} {text(vm / c)}" for c in COUNTERS if (vm / c).exists())


def logs(directory):
    for log in sorted(directory.glob("**/home*/sandboxes/*/**/*.log")):
        yield from (f"--- {log}", *text(log).splitlines()[-15:])


def report(item):
    print(f"\n=== {item.nodeid} was given up; this is what went on:", *frames(), *processes(), sep="\n")
    print("--- what msb's threads wait for", *threads(), sep="\n")
    print("--- KVM's counters, twice", *counters(), sep="\n")
    time.sleep(2)
    print(*counters(), sep="\n")
    print(*logs(item.config._tmp_path_factory.getbasetemp()), sep="\n")
    print("--- the kernel", *output("dmesg").splitlines()[-15:], "===", sep="\n", flush=True)


# --- limits -------------------------------------------------------------------------------------


class Late(Exception):
    """A phase of a test took longer than it may."""


def limited(item, phase):
    """Around one phase of a test."""
    def expired(*_):
        with item.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            report(item)  # for those who watch, too
        raise Late(f"{phase} did not end in {LIMIT} s")

    signal.signal(signal.SIGALRM, expired)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_setup(item):
    yield from limited(item, "setup")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    yield from limited(item, "the test")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item):
    yield from limited(item, "teardown")


# --- results ------------------------------------------------------------------------------------


def pytest_collection_modifyitems(config, items):
    done = {line.partition(" ")[2] for line in RESULTS.read_text().splitlines()} if RESULTS.exists() else set()
    left = [x for x in items if x.nodeid not in done]
    config.hook.pytest_deselected(items=[x for x in items if x.nodeid in done])
    items[:] = left


def pytest_runtest_logreport(report):
    if report.when == "call" or not report.passed:
        with RESULTS.open("a") as f:
            print(report.outcome, report.nodeid, file=f)


def pytest_sessionfinish(session, exitstatus):
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and RESULTS.is_file():
        session.exitstatus = pytest.ExitCode.OK  # all were done before


def pytest_report_teststatus(report):
    """How long it took, beside its name."""
    if report.when == "call" and report.passed:
        return "passed", ".", f"PASSED in {report.duration:.0f} s"
    return None
