#!/usr/bin/python3
"""Files through a share, beside the guest's own disk, the host, and QEMU's virtiofsd, in one run.

usage: files.py [--msb PATH] [--files N] [--mib N] [--rounds N] [--dir DIR] [--json FILE]

The same commands (busybox, git) run in a host directory, in directories of the host through `-v`
(each cache mode), and on the guest's own disk; the best of the rounds counts, and the time of an
empty command is taken off. Guest caches are dropped before each measurement, the host's are warm
throughout. All of it is in memory (/dev/shm) unless --dir says otherwise: what is compared is the
way to the files, not a disk. Ratios matter, absolute figures are those of this machine.

virtiofsd leaves the device's configuration to QEMU, so no sandbox can be given to it. It is
compared with our server in another host (uml_fs.c): the same kernel, the same device, no sandbox.
Both are measured on the guest's own CPU, where msb puts its servers with uml, and on any; the ratio
is that of ours on the guest's CPU to the better of virtiofsd's.
"""
import argparse
import io
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLACES = ["host", "auto", "none", "always", "disk"]
VIRTIOFSD = ["/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd"]
DROP = "sync; echo 3 >/proc/sys/vm/drop_caches 2>/dev/null; "
APPLETS = "sh ls tar find stat cat wc rm mkdir dd sync mount cp sleep true git".split()


def workloads(files, mib):
    """name -> (what is prepared before each round, command), in a directory with in.tar."""
    return {
        f"untar {files} files": ("rm -rf t", "mkdir t && tar xf in.tar -C t"),
        "walk and stat": ("", "find t -type f -exec stat -c %s {} + | wc -l"),
        "read them all": ("", "find t -type f -exec cat {} + | wc -c"),
        "git status": (GIT, "git -C t status --porcelain"),
        "rm -rf": ("[ -d t ] || { mkdir t && tar xf in.tar -C t; }", "rm -rf t"),
        f"write {mib} MiB": ("rm -f big", f"dd if=/dev/zero of=big bs=1M count={mib} 2>/dev/null"),
        f"read {mib} MiB": ("", "dd if=big of=/dev/null bs=1M 2>/dev/null"),
        "write 20000 x 4 KiB": ("rm -f small", "dd if=/dev/zero of=small bs=4k count=20000 2>/dev/null"),
        "random read 5000 x 4 KiB": ("", "fstool read big 5000"),
        "random write 5000 x 4 KiB": ("", "fstool write big 5000"),
    }  # fmt: skip


GIT = ("[ -d t/.git ] || { git -C t init -q --template= && git -C t add -A && "
       "git -C t -c user.name=n -c user.email=e commit -qm one; }; git -C t status --porcelain")  # fmt: skip


# --- what runs in a guest -------------------------------------------------------------------------


def libraries(program):
    out = subprocess.run(["ldd", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [word for line in out.splitlines() for word in line.split() if word.startswith("/")]


def make_image(path):
    """A directory that is an image, and whose programs run on the host as well."""
    for d in ("bin", "etc", "proc", "sys", "dev", "tmp", "root", "w"):
        (path / d).mkdir(parents=True)
    shutil.copy("/bin/busybox", path / "bin")
    for name in APPLETS:
        (path / "bin" / name).symlink_to("busybox")
    (path / "bin" / "git").unlink()
    git = shutil.which("git", path="/usr/bin")
    for f in [git, *libraries(git)]:
        to = path / "bin" / "git" if f == git else path / f[1:]
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(f), to)
    subprocess.run(["cc", "-static", "-O2", "-D_GNU_SOURCE", "-o", path / "bin" / "fstool",
                    ROOT / "tests" / "bench" / "fstool.c"], check=True)  # fmt: skip
    (path / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (path / "etc" / "gitconfig").write_text("[safe]\n\tdirectory = *\n")


def make_tar(path, n):
    """Sizes as in a source tree: mostly a few KiB."""
    data = os.urandom(1 << 16)
    with tarfile.open(path, "w") as t:
        for i in range(n):
            info = tarfile.TarInfo(f"d{i % 97}/e{i % 7}/file{i}.c")
            info.size = (i * 7919) % 9000
            info.mode = 0o644
            t.addfile(info, fileobj=io.BytesIO(data[: info.size]))


# --- places ---------------------------------------------------------------------------------------


class Place:
    def measure(self, prepare, command, rounds):
        best = None
        for _ in range(rounds):
            self.run((prepare + "; " if prepare else "") + "true")
            self.run(self.drop + "true")
            start = time.monotonic()
            self.run(command)
            took = time.monotonic() - start
            best = took if best is None else min(best, took)
        return best

    def calibrate(self):
        self.empty = min(self.measure("", "true", 5) for _ in range(2))


class Host(Place):
    drop = ""

    def __init__(self, directory, image):
        self.dir = directory
        self.env = {"PATH": f"{image}/bin:/usr/bin", "GIT_CONFIG_GLOBAL": f"{image}/etc/gitconfig"}

    def run(self, script):
        subprocess.run(["sh", "-ec", f"cd {self.dir}; {script}"], check=True, env=self.env,
                       stdout=subprocess.DEVNULL)  # fmt: skip


class Guest(Place):
    drop = DROP

    def __init__(self, msb, env, name, directory):
        self.msb, self.env, self.name, self.dir = msb, env, name, directory

    def run(self, script):
        subprocess.run([self.msb, "exec", "-q", self.name, "--", "sh", "-ec", f"cd {self.dir}; {script}"],
                       check=True, env=self.env, stdout=subprocess.DEVNULL)  # fmt: skip


def bench(args, work, image, env):
    msb = str(args.msb)
    share = work / "share"
    names = {}
    for place in PLACES[1:]:
        (share / place).mkdir(parents=True)
        mounts = [] if place == "disk" else ["-v", f"{share / place}:/w:cache={place}"]
        subprocess.run([msb, "create", "-q", "-n", place, "-m", "1G", *mounts, image], check=True, env=env)
        names[place] = Guest(msb, env, place, "/root" if place == "disk" else "/w")
    (share / "host").mkdir()
    names["host"] = Host(share / "host", image)
    for place in PLACES:
        if place == "disk":
            with open(work / "in.tar", "rb") as f:
                subprocess.run([msb, "exec", "-q", "disk", "--", "sh", "-c", "cat >/root/in.tar"],
                               stdin=f, check=True, env=env)  # fmt: skip
        else:
            shutil.copy(work / "in.tar", share / place / "in.tar")
        names[place].calibrate()
    results = {}
    print(f"{'seconds':<26}" + "".join(f"{p:>9}" for p in PLACES) + f"{'auto/disk':>11}{'host/auto':>11}")
    for name, (prepare, command) in workloads(args.files, args.mib).items():
        row = {}
        for p in PLACES:
            row[p] = max(names[p].measure(prepare, command, args.rounds) - names[p].empty, 1e-4)
        results[name] = row
        print(f"{name:<26}" + "".join(f"{row[p]:>9.3f}" for p in PLACES)
              + f"{row['auto'] / row['disk']:>11.2f}{row['host'] / row['auto']:>11.2f}", flush=True)
    return results


# --- beside virtiofsd -----------------------------------------------------------------------------


def init_script(files, mib, rounds):
    lines = ["#!/bin/sh", "export PATH=/bin HOME=/root",
             "mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t tmpfs tmpfs /tmp",
             "mount -t virtiofs share /w || { echo no share; fstool poweroff; }", "cd /w",
             # The same for both, and what the agent does in a sandbox.
             "for i in /sys/class/bdi/0:*; do echo 0 >$i/strict_limit; echo 100 >$i/max_ratio; "
             "echo 1024 >$i/read_ahead_kb; done 2>/dev/null"]
    for name, (prepare, command) in workloads(files, mib).items():
        label = name.replace(" ", "_")
        for _ in range(rounds):
            lines += [prepare or "true", DROP + "true",
                      f"fstool time {label} sh -c '{command} >/dev/null'"]  # fmt: skip
    return "\n".join([*lines, "cd /; sync; fstool poweroff"]).replace(GIT, GIT + " >/dev/null") + "\n"


def under_uml(args, work, how, cpus):
    """Runs all workloads under uml_fs; seconds by name, best of the rounds."""
    state = work / "uml"
    state.mkdir(exist_ok=True)
    build = args.msb.resolve().parents[2]
    cmd = ["taskset", "-c", cpus, build / "tests" / "bench" / "uml_fs", build / "assets" / "linux-uml",
           work / "root.erofs", state, *how]  # fmt: skip
    p = subprocess.run([str(c) for c in cmd], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True, timeout=1200)  # fmt: skip
    best = {}
    for line in p.stdout.splitlines():
        f = line.split()
        if len(f) == 2 and f[1].replace(".", "").isdigit():
            best[f[0]] = min(float(f[1]), best.get(f[0], 1e9))
    if len(best) < len(workloads(1, 1)):
        raise PeerFailed(last_line(p.stdout))
    return best


class PeerFailed(Exception):
    """A server under which the workloads did not come to their end; the message says why."""


def last_line(text):
    lines = [x.strip() for x in text.splitlines() if x.strip()]
    return lines[-1] if lines else "it said nothing"


def fresh(work):
    d = work / "peer"
    shutil.rmtree(d, ignore_errors=True)
    d.mkdir()
    shutil.copy(work / "in.tar", d)
    return d


def with_virtiofsd(args, work, program, cache, cpus):
    d, sock = fresh(work), work / "fsd.sock"
    log = open(work / "fsd.log", "w")
    server = subprocess.Popen(["taskset", "-c", cpus, program, f"--socket-path={sock}", "-o", f"source={d}",
                               "-o", f"cache={cache}", "-o", "xattr", *(["-o", "writeback"] if cache ==
                               "always" else [])], stdout=log, stderr=log)  # fmt: skip
    try:
        deadline = time.monotonic() + 10
        while not sock.exists() and server.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        return under_uml(args, work, ["vhost", sock], cpus)
    except PeerFailed as e:
        said = (work / "fsd.log").read_text(errors="replace")
        raise PeerFailed(last_line(said) if said.strip() else str(e)) from None
    finally:
        server.kill()
        server.wait()
        log.close()
        sock.unlink(missing_ok=True)


def beside(args, work, image):
    program = next((p for p in VIRTIOFSD if os.access(p, os.X_OK)), None)
    if not program or os.geteuid() != 0:
        print("virtiofsd: not measured: " + ("it wants root" if program else "there is none: run scripts/bootstrap bench"))
        return {}
    mkerofs = args.msb.resolve().parents[1] / "image" / "mkerofs"
    (image / "init").write_text(init_script(args.files, args.mib, args.rounds))
    (image / "init").chmod(0o755)
    subprocess.run([mkerofs, image, work / "root.erofs"], check=True)
    cpu = str(min(os.sched_getaffinity(0)))
    every = ",".join(str(c) for c in sorted(os.sched_getaffinity(0)))
    results = {}
    print(f"\n{'':<26}{'one CPU':>20}{'any CPU':>20}\n{'seconds, same guest':<26}"
          + f"{'msb':>9}{'virtiofsd':>11}" * 2 + f"{'ratio':>8}   (cache=auto; *: always)")
    for cache in args.peer_caches.split(","):
        took = {}
        for where, cpus in (("one", cpu), ("any", every)):
            took["msb", where] = under_uml(args, work, ["own", fresh(work), cache], cpus)
            try:
                took["virtiofsd", where] = with_virtiofsd(args, work, program, cache, cpus)
            except (PeerFailed, subprocess.TimeoutExpired) as e:
                took["virtiofsd", where] = {}
                results[f"virtiofsd {where} {cache}"] = {"failed": str(e)}
                print(f"virtiofsd, {where} CPU, cache={cache}: failed: {e}", flush=True)
        for name in took["msb", "one"]:
            row = {f"{who} {where}": t[name] for (who, where), t in took.items() if t}
            results[f"{name} {cache}"] = row
            print_row(name.replace("_", " ") + ("" if cache == "auto" else " *"), row)
    return results


def print_row(title, row):
    """One workload under both servers; a dash for a peer that failed."""
    cells = []
    for where in ("one", "any"):
        for who, width in (("msb", 9), ("virtiofsd", 11)):
            took = row.get(f"{who} {where}")
            cells.append(f"{took:>{width}.3f}" if took is not None else f"{'-':>{width}}")
    theirs = [v for k, v in row.items() if k.startswith("virtiofsd")]
    ratio = f"{row['msb one'] / min(theirs):>8.2f}" if theirs else f"{'-':>8}"
    print(f"{title:<26}" + "".join(cells) + ratio, flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--msb", type=pathlib.Path, default=ROOT / "build" / "src" / "cli" / "msb")
    ap.add_argument("--files", type=int, default=20000)
    ap.add_argument("--mib", type=int, default=512)
    ap.add_argument("--rounds", type=int, default=2)
    ap.add_argument("--dir", default="/dev/shm" if os.access("/dev/shm", os.W_OK) else None,
                    help="where to work; /dev/shm by default, which leaves the disk out of it")
    ap.add_argument("--peer-caches", default="auto,always", help="cache modes to compare with virtiofsd")
    ap.add_argument("--peers-only", action="store_true", help="only the comparison with virtiofsd")
    ap.add_argument("--json", type=pathlib.Path)
    args = ap.parse_args()
    # So that nothing stays behind when this is ended from outside.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    work = pathlib.Path(tempfile.mkdtemp(prefix="msb-bench-files-", dir=args.dir))
    env = {**os.environ, "MSB_HOME": str(work / "home")}
    (work / "home").mkdir(mode=0o700)
    try:
        make_image(work / "image")
        make_tar(work / "in.tar", args.files)
        results = {} if args.peers_only else {"share": bench(args, work, work / "image", env)}
        names = subprocess.run([args.msb, "ls", "-q"], env=env, stdout=subprocess.PIPE, text=True)
        for name in names.stdout.split():
            subprocess.run([args.msb, "rm", "-f", "-q", name], env=env, check=False)
        results["virtiofsd"] = beside(args, work, work / "image")
    finally:
        names = subprocess.run([args.msb, "ls", "-q"], env=env, stdout=subprocess.PIPE, text=True)
        for name in names.stdout.split():
            subprocess.run([args.msb, "rm", "-f", "-q", name], env=env, check=False)
        shutil.rmtree(work, ignore_errors=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
