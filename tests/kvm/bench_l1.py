#!/usr/bin/python3
"""The part of bench.py that runs in the testbed: starts VMs and measures, prints JSON.

Times are those of L1's clock. Under icount that clock counts instructions, so they do not depend on
what else the host does; they compare with each other only.
"""
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import time

import processes  # beside it in the testbed

HERE = pathlib.Path("/root/bench")
MEMORY = 256  # MiB, for everybody
TICK = os.sysconf("SC_CLK_TCK")


def call(*cmd, **kw):
    kw.setdefault("stdin", subprocess.DEVNULL)
    kw.setdefault("stdout", subprocess.PIPE)
    kw.setdefault("stderr", subprocess.PIPE)
    p = subprocess.run([str(c) for c in cmd], text=True, timeout=600, check=False, **kw)
    if p.returncode:
        raise RuntimeError(f"{' '.join(map(str, cmd))}: status {p.returncode}: {p.stderr[-500:]}")
    return p.stdout


def first_exec(msb, create, execute, remove, n):
    """Milliseconds from the start of create to the end of the first exec, n times."""
    times = []
    for i in range(n):
        name = f"b{i}"
        start = time.monotonic()
        call(*[a.replace("NAME", name) for a in [msb, *create]])
        call(*[a.replace("NAME", name) for a in [msb, *execute]])
        times.append((time.monotonic() - start) * 1000)
        call(*[a.replace("NAME", name) for a in [msb, *remove]])
        print(f"  {'microsandbox' if 'microsandbox' in msb else 'msb'} {times[-1]:.0f} ms", file=sys.stderr,
              flush=True)
    return times


# --- msb ----------------------------------------------------------------------------------------


def monitor_of(home, name):
    pid = processes.lock_holder(home / "sandboxes" / name / "lock")
    if pid is None:
        raise RuntimeError("no monitor")
    return pid


def user_ms_outside_guest(pid):
    """CPU time of a process in its own user space: what the guest used is in there, and taken out."""
    f = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(f[11]) - int(f[40])) * 1000 / TICK


def overhead_mib(pid):
    """Private memory of a monitor that is not the guest's. The guest's is shared anonymous memory,
    and its kernel's file, mapped."""
    kib = guest = 0
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            guest = "/dev/zero" in line or "linux-kvm" in line
        elif line.startswith("Private_") and not guest:
            kib += int(line.split()[1])
    return kib / 1024


def bench_msb(n):
    msb = str(HERE / "msb" / "src" / "cli" / "msb")
    home = pathlib.Path("/root/msb-home")
    os.environ.update(MSB_HOME=str(home), MSB_ENGINE="kvm")
    call(msb, "run", "-q", "-m", f"{MEMORY}M", "--", "true")  # makes the disk template
    create = ["create", "-q", "-n", "NAME", "-m", f"{MEMORY}M", "--cpus", "1"]
    execute = ["exec", "-q", "NAME", "--", "true"]
    out = {"first_exec_ms": first_exec(msb, create, execute, ["rm", "-f", "-q", "NAME"], n),
           "user_ms": [], "exits": [], "overhead_mib": []}
    for i in range(n):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        call(msb, *[a.replace("NAME", f"c{i}") for a in create])
        client = (resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before) * 1000
        pid = monitor_of(home, f"c{i}")
        out["user_ms"].append(client + user_ms_outside_guest(pid))
        out["overhead_mib"].append(overhead_mib(pid))
        call(msb, *[a.replace("NAME", f"c{i}") for a in execute])
        for _ in range(20):  # the log is written a little later
            log = call(msb, "logs", f"c{i}", "--source", "system")
            found = re.search(r"exits to user space: (\d+)", log)
            if found:
                out["exits"].append(int(found.group(1)))
                break
            time.sleep(0.1)
        call(msb, "rm", "-f", "-q", f"c{i}")
    return out


# --- the others ---------------------------------------------------------------------------------


def make_rootfs():
    """A directory that boots as an image: it must not be on tmpfs, and it wants users."""
    root = pathlib.Path("/root/rootfs")
    for d in ("bin", "etc", "proc", "sys", "dev", "tmp", "run", "root"):
        (root / d).mkdir(parents=True)
    shutil.copy(HERE / "busybox", root / "bin" / "busybox")
    for applet in ("sh", "true", "sleep"):
        (root / "bin" / applet).symlink_to("busybox")
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\n")
    return root


def bench_microsandbox(n):
    msb = HERE / "microsandbox" / "bin" / "msb"
    if not msb.exists():
        return None
    os.environ.update(MSB_HOME="/root/microsandbox-home",
                      MSB_LIBKRUNFW_PATH=str(next((msb.parents[1] / "lib").iterdir())))
    os.environ.pop("MSB_ENGINE", None)
    create = ["create", "-q", "-n", "NAME", "-m", f"{MEMORY}M", "--cpus", "1", str(make_rootfs())]
    return {"first_exec_ms": first_exec(str(msb), create, ["exec", "-q", "NAME", "--", "/bin/true"],
                                        ["rm", "-f", "-q", "NAME"], n)}


def qemu_command(upper):
    """QEMU's microvm with our kernel, as many disks, and a guest that does what our agent has to do
    before a command can run: a writable root over the image. (Without a real-time clock the kernel
    would wait for one in vain. Its own way to name devices would end up behind the "--".)"""
    assets = HERE / "msb" / "assets"
    script = ("mount -t proc p /proc; mount -t ext4 /dev/vdb /mnt; mkdir -p /mnt/u /mnt/w; "
              "mount -t overlay o -o lowerdir=/,upperdir=/mnt/u,workdir=/mnt/w /home; "
              "chroot /home true && echo it-ran")
    devices = " ".join(f"virtio_mmio.device=512@{0xfeb00000 + i * 512:#x}:{5 + i}" for i in range(7, 2, -1))
    cmd = ["qemu-system-x86_64",
           "-M", "microvm,rtc=on,acpi=off,pit=off,pic=off,isa-serial=on,auto-kernel-cmdline=off",
           "-accel", "kvm", "-cpu", "host", "-m", str(MEMORY), "-nodefaults", "-no-user-config",
           "-display", "none", "-no-reboot", "-serial", "stdio", "-kernel", assets / "linux-kvm",
           "-append", "quiet console=ttyS0 swiotlb=noforce tsc=reliable reboot=t panic=-1 root=/dev/vda "
           f"rootfstype=erofs ro {devices} init=/bin/sh -- -c \"{script}\"",
           "-global", "virtio-mmio.force-legacy=false"]
    disks = [(assets / "base.erofs", "on"), (upper, "off"), (assets / "tools.erofs", "on")]
    for i, (path, read_only) in enumerate(disks):
        cmd += ["-drive", f"file={path},format=raw,if=none,id=d{i},readonly={read_only},snapshot=off",
                "-device", f"virtio-blk-device,drive=d{i}"]
    return [*cmd, "-device", "virtio-rng-device", "-device", "virtio-balloon-device"]


def bench_qemu(n):
    upper = "/root/upper.ext4"
    call("truncate", "-s", "256M", upper)
    call("mke2fs", "-q", "-t", "ext4", upper)
    times = []
    for i in range(n + 1):  # the first one reads QEMU from the disk
        start = time.monotonic()
        p = subprocess.Popen([str(c) for c in qemu_command(upper)], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        said = b""
        while b"it-ran" not in said:
            chunk = os.read(p.stdout.fileno(), 4096)
            if not chunk:
                raise RuntimeError(f"QEMU: {said[-300:]} {p.stderr.read()[-300:]}")
            said += chunk
        took = (time.monotonic() - start) * 1000
        p.kill()
        p.wait()
        print(f"  qemu {took:.0f} ms{'' if i else ' (not counted)'}", file=sys.stderr, flush=True)
        if i:
            times.append(took)
    return {"first_exec_ms": times}


def main():
    n = int(sys.argv[1])
    out, failed = {}, {}
    for name, fn, times in (("msb", bench_msb, n), ("qemu", bench_qemu, max(2, n // 2)),
                            ("microsandbox", bench_microsandbox, max(2, n // 2))):
        try:
            out[name] = fn(times)
        except (RuntimeError, OSError, subprocess.SubprocessError) as e:
            failed[name] = str(e)
    print(json.dumps({"results": out, "failed": failed}))


main()
