#!/usr/bin/env python3
"""What converting a layer costs, beside decompressing and hashing it alone.

usage: layers.py [--build DIR] [--rounds N] FILE...     (tars, plain or compressed)

For each file: wall and CPU time of both (the least of N rounds), their ratio, and the largest
process. The output goes to a fresh file beside the temporary directory's others; nothing is synced.
"""
import argparse
import os
import pathlib
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def measure(cmd, rounds, cwd):
    """Least wall seconds, CPU seconds and most KiB of memory of any process."""
    wall = cpu = float("inf")
    peak = 0
    for _ in range(rounds):
        (cwd / "out").unlink(missing_ok=True)
        start = time.monotonic()
        p = subprocess.Popen(cmd, cwd=cwd, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(p.pid, 0)
        wall = min(wall, time.monotonic() - start)
        if status:
            raise SystemExit(f"{' '.join(map(str, cmd))}: failed")
        cpu = min(cpu, used.ru_utime + used.ru_stime)
        peak = max(peak, used.ru_maxrss)
    return wall, cpu, peak


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("file", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    tool = args.build.resolve() / "tests" / "unit" / "layer_tool"
    print(f"{'file':24} {'MiB':>6} {'convert ms':>16} {'decode ms':>16} {'ratio':>12} {'peak MiB':>9}")
    with tempfile.TemporaryDirectory() as tmp:
        for f in args.file:
            f = f.resolve()
            made = measure([tool, "layer", f, "out"], args.rounds, pathlib.Path(tmp))
            read = measure([tool, "decode", f], args.rounds, pathlib.Path(tmp))
            print(f"{f.name[:24]:24} {f.stat().st_size / 2**20:6.1f} "
                  f"{made[0] * 1e3:7.0f} {made[1] * 1e3:8.0f} {read[0] * 1e3:7.0f} {read[1] * 1e3:8.0f} "
                  f"{made[0] / read[0]:5.2f} {made[1] / read[1]:6.2f} {made[2] / 1024:9.1f}")
    print("times are wall and CPU; ratios are convert to decode")


if __name__ == "__main__":
    main()
