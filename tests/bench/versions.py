#!/usr/bin/python3
"""Measures two builds of msb in turns, so that whatever else the machine does slows both.

    versions.py OLD_MSB NEW_MSB [--rounds N] [--json FILE]

Each is the msb of a build directory, with its own kernel beside it, and gets a home of its own.
"""
import argparse
import json
import pathlib
import statistics
import sys

import bench

# A step that one of them fails is left out, with the reason.
STEPS = ("create", "run", "execs", "ls")
# More is better
SPEEDS = ("MB/s",)


class Turns(bench.Bench):
    """Keeps every sample of every round, and prints none."""

    def __init__(self, msb):
        super().__init__(argparse.Namespace(msb=msb, quick=True))
        self.samples = {}

    def note(self, key, unit, values):
        if not key.startswith("..."):  # differences of medians
            self.samples.setdefault((key, unit), []).extend(values if isinstance(values, list) else [values])


def measure(builds, rounds):
    """{(row, unit): [samples of the old one, of the new one]}"""
    steps = list(STEPS)
    for i in range(rounds):
        for name in list(steps):
            for build in builds if i % 2 == 0 else builds[::-1]:
                try:
                    getattr(build, name)()
                except Exception as e:  # one of them may be too old for it
                    print(f"  {name}: skipped, {build.msb}: {e}")
                    steps.remove(name)
                    break
        print(f"  round {i + 1} of {rounds}", end="\r", file=sys.stderr, flush=True)
    return {key: [b.samples[key] for b in builds] for key in builds[0].samples if key in builds[1].samples}


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("old", type=pathlib.Path)
    ap.add_argument("new", type=pathlib.Path)
    ap.add_argument("--rounds", type=int, default=6)
    ap.add_argument("--json", type=pathlib.Path)
    args = ap.parse_args()
    builds = []
    try:
        builds = [Turns(args.old), Turns(args.new)]
        rows = measure(builds, args.rounds)
    finally:
        for b in builds:
            b.close()
    out = []
    print(f"  {'':34}{'old':>10}{'new':>10}{'':7}new/old   by minima")
    for (key, unit), (old, new) in rows.items():
        best = max if unit in SPEEDS else min
        r = {"what": key, "unit": unit, "old": statistics.median(old), "new": statistics.median(new),
             "n": len(new), "ratio": statistics.median(new) / statistics.median(old), "best": best(new) / best(old)}
        if unit in SPEEDS:
            r["ratio"], r["best"] = 1 / r["ratio"], 1 / r["best"]
        out.append(r)
        print(f"  {key:34}{r['old']:10.2f}{r['new']:10.2f} {unit:6}{r['ratio']:7.3f}{r['best']:11.3f}")
    if args.json:
        args.json.write_text(json.dumps(out, indent=2) + "\n")
        print(f"\n  written to {args.json}")


if __name__ == "__main__":
    sys.exit(main())
