"""The command line, and the order of the stages."""
import argparse
import importlib
import os
import pathlib
import signal
import sys
import time

from runner import environment
from runner.report import ROOT, Totals
from runner.supervisor import Stage, keep, kill_below

# How long a stage may take, in minutes on a machine of usual speed; longer, and it hangs.
STAGES = {"runner": 5, "lint": 20, "unit": 15, "sanitize": 25, "fuzz": 30, "e2e": 45, "kvm": 120, "fresh": 240,
          "k8s": 120}
ON_REQUEST = ("k8s",)
# One after another, beside those of the others that leave a CPU idle now and then, once there is a sanitized build.
BESIDE = ("kvm", "fresh")
BUSY = ("runner", "lint", "unit", "sanitize")


class Ended(Exception):
    """Requests to end the run."""


def on_signal(number, _frame):
    raise Ended(signal.Signals(number).name)


def parse():
    ap = argparse.ArgumentParser(description="Runs test stages, and prints one line of totals.")
    ap.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    ap.add_argument("--inside", type=pathlib.Path, metavar="FILE", help=argparse.SUPPRESS)
    ap.add_argument("stages", nargs="*", metavar="stage", help=", ".join(STAGES))
    args = ap.parse_args()
    unknown = set(args.stages) - set(STAGES)
    if unknown:
        ap.error(f"no such stage: {', '.join(sorted(unknown))}")
    args.build = args.build.resolve()
    return args


def inside(args):
    """The process of one stage, below its keeper."""
    environment.adopt_orphans()
    pid = os.fork()
    if pid:
        return keep(pid)
    os.setsid()
    return do_stage(args)


def do_stage(args):
    """The stage's module does the work, and every result is in the file at once."""
    totals = Totals(args.inside)
    start = time.monotonic()
    print(f"==> {args.stages[0]}", flush=True)
    importlib.import_module(f"runner.{args.stages[0]}").stage(args, totals)
    print(f"    ({time.monotonic() - start:.0f} s)", flush=True)
    totals.finish()
    return 0


def run_stages(args, names, place, totals, running):
    """Runs each stage in a separate process."""
    waiting = [name for name in names if name in BESIDE]

    def start(name, output=None):
        running[name] = Stage(name, args.build, place, STAGES[name] * 60 * environment.slow(), output)
        return running[name]

    def go_on():
        """The next of those beside the others, once the one before has ended."""
        if waiting and all(running[name].ended() for name in BESIDE if name in running):
            start(waiting[0], place.directory / f"{waiting.pop(0)}.out")

    for name in sorted(names, key=lambda name: name in BESIDE):
        if name in waiting:
            waiting.remove(name)
        stage = running.get(name) or start(name)
        stage.finish(totals, None if name in BUSY else go_on)
        del running[name]


def main():
    args = parse()
    if args.inside:
        return inside(args)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup's, or a shell's for its background
            signal.signal(number, on_signal)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else there would be no way to tell how a stage ended
    environment.adopt_orphans()
    totals, running = Totals(), {}
    try:
        with environment.Place() as place:
            try:
                run_stages(args, args.stages or [name for name in STAGES if name not in ON_REQUEST], place, totals, running)
            except Ended as e:
                totals.check(f"the run was ended by {e}", False)
            finally:
                kill_below(os.getpid())
    finally:
        print(totals, flush=True)
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())
