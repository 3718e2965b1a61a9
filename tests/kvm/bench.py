#!/usr/bin/python3
"""Measures the kvm engine in the nested testbed, microsandbox and QEMU beside it in the same run.

    bench.py [--build DIR] [--json FILE] [-n REPEATS]

All times are of the testbed's icount clock, which counts instructions: another load on the machine
does not change them, and they say nothing about real hardware but the ratios. The kernel's
instructions are counted exactly, on plain TCG, by a plugin (insn_count.c).
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# The peer, as its makers publish it: a launcher, and the program with its kernel.
PEER = "0.6.18"
PEER_PACKAGES = [f"microsandbox@{PEER}", f"@superradcompany/microsandbox-linux-x64-gnu@{PEER}"]
PEER_PATH = "node_modules/@superradcompany/microsandbox-linux-x64-gnu"
# As the engine starts it, but for what TCG has no clocks for: two calibrations, which a kernel on
# KVM does not make.
CMDLINE = ("quiet 8250.nr_uarts=0 noreplace-smp swiotlb=noforce tsc=reliable reboot=t panic=-1 "
           "dummy.numdummies=0 zram.num_devices=0 nf_conntrack.hashsize=4096 "
           "root=/dev/vda rootfstype=erofs ro init=/init no_timer_check nolapic_timer")
NOTE_PHYS32_ENTRY = 18

AIMS = [  # (key, label, unit, aim)
    ("ratio_microsandbox", "create -> first exec / microsandbox", "x", 0.4),
    ("ratio_qemu", "create -> first exec / QEMU microvm", "x", 0.5),
    ("user_ms", "host user-space CPU to start a VM", "ms", 10),
    ("exits", "exits to user space during boot", "", 300),
    ("overhead_mib", "monitor's memory beyond the guest's", "MiB", 5),
    ("kernel_minsns", "kernel entry to init, 256 MiB", "M insn", 30),
    ("ratio_memory", "the same, 16 GiB / 512 MiB", "x", 1.5),
]
# As the engine does beyond 2 GiB.
LARGE_CMDLINE = " dhash_entries=262144 ihash_entries=131072 thash_entries=16384 uhash_entries=1024"


# --- instructions -------------------------------------------------------------------------------


def kernel_layout(path):
    """(PVH entry, lowest, highest physical address) of an ELF kernel."""
    data = path.read_bytes()
    phoff, = struct.unpack_from("<Q", data, 32)
    phentsize, phnum = struct.unpack_from("<HH", data, 54)
    entry, low, high = None, 1 << 63, 0
    for i in range(phnum):
        kind, _, off, _, paddr, filesz, memsz, _ = struct.unpack_from("<IIQQQQQQ", data, phoff + i * phentsize)
        if kind == 1:  # PT_LOAD
            low, high = min(low, paddr), max(high, paddr + memsz)
        elif kind == 4:  # PT_NOTE
            at = off
            while at < off + filesz:
                namesz, descsz, note = struct.unpack_from("<III", data, at)
                desc = at + 12 + (namesz + 3) // 4 * 4
                if note == NOTE_PHYS32_ENTRY and data[at + 12:at + 15] == b"Xen":
                    entry, = struct.unpack_from("<I", data, desc)
                at = desc + (descsz + 3) // 4 * 4
    if entry is None:
        sys.exit(f"error: {path} has no PVH entry")
    return entry, low, high


def count_instructions(build, mib):
    """Millions of them, from the kernel's entry to init."""
    kernel = build / "assets" / "linux-kvm"
    entry, low, high = kernel_layout(kernel)
    plugin = build / "tests" / "kvm" / "insn_count.so"
    p = subprocess.run(
        ["qemu-system-x86_64", "-M", "microvm,rtc=on,acpi=off", "-accel", "tcg", "-icount", "shift=0,sleep=off",
         "-cpu", "EPYC,-xsave,-avx,-avx2,-fma,-f16c", "-m", str(mib), "-nodefaults", "-no-user-config",
         "-display", "none", "-no-reboot", "-kernel", kernel, "-append", CMDLINE + (LARGE_CMDLINE if mib > 2048 else ""),
         "-drive", f"file={build}/assets/tools.erofs,format=raw,if=none,id=d,readonly=on",
         "-device", "virtio-blk-device,drive=d",
         "-plugin", f"{plugin},entry={entry},low={low},high={high}"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300, check=False)
    text = p.stdout.decode(errors="replace").strip()
    if not text.isdigit():
        raise RuntimeError(f"the kernel did not get to its init: {p.stderr.decode(errors='replace')[-300:]}")
    return int(text) / 1e6


# --- the testbed --------------------------------------------------------------------------------


def fetch_peer(stage):
    """microsandbox, from the packages that its makers publish; False where that does not work."""
    cache = pathlib.Path(os.environ.get("MSB_CACHE_DIR") or pathlib.Path(
        os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "msb"))
    kept = cache / "testbed" / f"microsandbox-{PEER}"
    if not kept.exists():
        if not shutil.which("npm"):
            return "npm is not installed"
        work = pathlib.Path(tempfile.mkdtemp(prefix="npm.", dir=cache / "testbed"))
        try:
            p = subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", work,
                                *PEER_PACKAGES], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, timeout=300, check=False)
            if p.returncode or not (work / PEER_PATH / "bin" / "msb").exists():
                return "npm could not install it: " + p.stdout.strip().splitlines()[-1]
            os.rename(work / PEER_PATH, kept)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    for sub in ("bin", "lib"):
        shutil.copytree(kept / sub, stage / "microsandbox" / sub)
    return None


def nested(build, repeats):
    stage = pathlib.Path(tempfile.mkdtemp(prefix="msb-kvm-bench."))
    try:
        (stage / "msb" / "src" / "cli").mkdir(parents=True)
        (stage / "msb" / "assets").mkdir()
        shutil.copy(build / "src" / "cli" / "msb", stage / "msb" / "src" / "cli")
        for name in ("linux-kvm", "tools.erofs", "base.erofs"):
            shutil.copy(build / "assets" / name, stage / "msb" / "assets")
        shutil.copy(shutil.which("busybox"), stage / "busybox")
        shutil.copy(HERE / "bench_l1.py", stage)
        shutil.copy(ROOT / "tests" / "e2e" / "processes.py", stage)
        no_peer = fetch_peer(stage)
        p = subprocess.run([HERE / "testbed", "run", "--icount", "--timeout", "3000", "--share", stage, "--",
                            "cp -r /mnt/share /root/bench && "
                            f"python3 /root/bench/bench_l1.py {repeats} > /mnt/share/result.json"], check=False)
        if p.returncode or not (stage / "result.json").exists():
            sys.exit(f"error: the testbed ended with status {p.returncode}")
        out = json.loads((stage / "result.json").read_text().splitlines()[-1])
        if no_peer:
            out["failed"]["microsandbox"] = no_peer
        return out
    finally:
        shutil.rmtree(stage, ignore_errors=True)


# --- the verdict --------------------------------------------------------------------------------


def summary(values):
    return {"p50": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def verdicts(measured, insns):
    r = {k: v for k, v in measured["results"].items() if v}
    out = {}
    if "msb" in r:
        ours = statistics.median(r["msb"]["first_exec_ms"])
        for peer in ("microsandbox", "qemu"):
            if peer in r:
                out[f"ratio_{peer}"] = ours / statistics.median(r[peer]["first_exec_ms"])
        # The clock of CPU time ticks every 4 ms: only the mean of several runs is of use.
        out["user_ms"] = statistics.mean(r["msb"]["user_ms"])
        out["overhead_mib"] = max(r["msb"]["overhead_mib"])
        if r["msb"]["exits"]:
            out["exits"] = max(r["msb"]["exits"])
    out["kernel_minsns"] = insns[256]
    out["ratio_memory"] = insns[16384] / insns[512]
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    ap.add_argument("--json", type=pathlib.Path)
    ap.add_argument("-n", type=int, default=6, help="repetitions (default 6)")
    args = ap.parse_args()
    # So that nothing stays behind when this is ended from outside.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    build = args.build.resolve()
    print(f"msb bench-kvm: nested, icount, {time.strftime('%Y-%m-%d %H:%M:%S')}\n", flush=True)
    insns = {mib: count_instructions(build, mib) for mib in (256, 512, 16384)}
    measured = nested(build, args.n)
    for name, r in measured["results"].items():
        for key, values in (r or {}).items():
            if values:
                s = summary(values)
                print(f"  {name:14}{key:16}{s['p50']:10.2f}   min {s['min']:9.2f}   max {s['max']:9.2f}"
                      f"   n {s['n']}")
    for name, why in measured["failed"].items():
        print(f"  {name}: skipped: {why}")
    out = verdicts(measured, insns)
    print("\n  aims")
    for key, label, unit, aim in AIMS:
        if key in out:
            met = "" if out[key] <= aim else "   missed"
            print(f"  {label:40}{out[key]:9.2f} {unit:7}(aim <= {aim}){met}")
    if args.json:
        args.json.write_text(json.dumps({"measured": measured, "verdicts": out}, indent=2,
                                        sort_keys=True) + "\n")


main()
