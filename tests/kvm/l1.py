"""The testbed's L1 while it runs, seen from outside: whether it lives, and what wakes it.

QEMU can lose an interrupt of L1's: seen are a halted CPU, interrupts on, and the timer's pending in the
interrupt controller. The likely cause: VMRUN, when an interrupt for L2 is pending, notes that in the same word
in which devices note theirs, without the lock that they hold (svm_helper.c: interrupt_request). What is lost
stays in the interrupt controller, and is delivered with the next interrupt that comes. If it was the timer, and L1 has nothing to do, then none comes: L1 waits for ever. So somebody
presses a key once a second.
"""
import json
import pathlib
import re
import socket
import sys
import time

FROZEN_S = 60   # without a sign of life, while nothing runs
BEAT_S = 5      # between two signs of life
NUDGE_S = 1     # between two interrupts from outside
IDLE_CPU_S = 1  # CPU time that QEMU may need in FROZEN_S for an L1 that does nothing


def say(text):
    print(f"testbed: {text}", file=sys.stderr, flush=True)


def heartbeat(path):
    """A line of shell with which L1 shows that it lives."""
    return f"while read -r now _ </proc/uptime; do echo $now >{path}; sleep {BEAT_S}; done >/dev/null 2>&1 </dev/null &"


# --- QEMU's monitor -------------------------------------------------------------------------------


def ask_qemu(ctl, *commands, timeout=10):
    """What QEMU's monitor answers to commands."""
    answers = []
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(timeout)
        s.connect(str(ctl / "qmp"))
        f = s.makefile("rw")
        f.readline()  # the greeting
        requests = [{"execute": "human-monitor-command", "arguments": {"command-line": c}} for c in commands]
        for request in ({"execute": "qmp_capabilities"}, *requests):
            f.write(json.dumps(request) + "\n")
            f.flush()
            while "return" not in (answer := json.loads(f.readline())):
                if "error" in answer:
                    raise OSError(answer["error"]["desc"])
            answers.append(answer["return"])
    return answers[1:]


def look_at_l1(ctl):
    """What L1's CPUs are doing, and whether they get on, for a report on one that says nothing."""
    try:
        for _ in range(3):
            registers, = ask_qemu(ctl, "info registers -a")
            say("L1: " + "; ".join(re.findall(r"CPU#\d+|RIP=[0-9a-f]+|CPL=\d|HLT=\d", registers)))
            time.sleep(0.5)
        lapic, registers = ask_qemu(ctl, "info lapic", "info registers")
        print(lapic, *registers.splitlines()[:8], sep="\n", file=sys.stderr)
    except (OSError, ValueError) as e:
        say(f"QEMU's monitor does not answer: {e}")


# --- signs of life --------------------------------------------------------------------------------


class Frozen(Exception):
    """L1 stands still as a whole, and QEMU with it: that is the emulator's doing."""


class Life:
    """Watches an L1 and keeps it awake. One whose command hangs lives on; one that is frozen has no
    heartbeat, and QEMU neither runs nor waits for a CPU. (If it waits, then the machine is busy.)"""

    def __init__(self, pid, ctl, patience):
        self.tasks, self.ctl, self.patience = pathlib.Path(f"/proc/{pid}/task"), ctl, patience
        self.beat, self.used, self.since, self.nudged = "", 0.0, time.monotonic(), 0.0

    def cpu_time(self):
        """Seconds that QEMU's threads have run, or would have run on a machine of their own."""
        total = 0
        for task in self.tasks.glob("*/schedstat"):
            try:
                ran, waited, _ = task.read_text().split()
            except (OSError, ValueError):  # a thread that has just ended
                continue
            total += int(ran) + int(waited)
        return total / 1e9

    def last_beat(self):
        try:
            return (self.ctl / "beat").read_text()
        except OSError:
            return ""

    def wake(self, now):
        # Not while L1 boots: it looks for its keyboard then.
        if now - self.nudged > NUDGE_S and (self.ctl / "started").exists():
            self.nudged = now
            try:
                ask_qemu(self.ctl, "sendkey shift", timeout=2)
            except (OSError, ValueError):
                pass  # that it stands still is noticed elsewhere

    def check(self):
        """Raises Frozen."""
        now = time.monotonic()
        self.wake(now)
        beat, used = self.last_beat(), self.cpu_time()
        if beat != self.beat or not 0 <= used - self.used < IDLE_CPU_S:
            self.beat, self.used, self.since = beat, used, now
        elif now - self.since > self.patience:
            raise Frozen(f"no sign of life in {now - self.since:.0f} s, in which QEMU needed"
                         f" {used - self.used:.1f} s of CPU time")
