#!/usr/bin/python3
"""Workspaces in a bucket beside rclone mount and s3fs, on the same server, in one run (as root).

usage: buckets.py [--msb PATH] [--peers NAME,...] [--objects N] [--files N] [--mib N] [--rounds N] [--dir DIR]
                  [--json FILE]

With --files 0 only large files are measured, with --mib 0 only small ones.

The server is s3rver (npm). msb is a sandbox with the workspace at /workspace. rclone and s3fs are measured twice: mounted
on the host, by programs of the host, which spares them the way into a guest; and, as box-rclone and box-s3fs, in a sandbox
that has the mount as its workspace (--workspace DIR), which is what an agent would have without workspaces in buckets. Ratios
are to the better of the two, of either kind. Each row begins with a workspace, or a mount, that is new, where it says first.
"until the bucket has it" counts until the server lists the object, or all of them: s3fs uploads when the file is closed,
rclone (--vfs-write-back 0s) from then on, msb with `workspace sync`. The server is slow, and much of that is its time: a second
table says how many seconds of a CPU it has computed during each row, and "less server" is the ratio to the mounts on the host
if these are taken off on both sides (not where little is left). disk is the same on the disk of a sandbox without a workspace,
which no workspace can undercut. The start of a sandbox is what it takes longer than one without a workspace.

No place syncs anything to a disk, and all of it, the server's files and the caches included, is in memory (/dev/shm)
unless --dir says otherwise: a file system that has removed many files lately may take a millisecond to make one, more
than anything that is compared here. Absolute figures are those of this machine.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import files  # noqa: E402

KEY = "S3RVER"
LIMIT = 300  # seconds, of one row
PEERS = ["rclone", "s3fs", "box-rclone", "box-s3fs"]
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
WRITE = "dd if=/dev/zero of=big bs=1M count=%d 2>/dev/null"
READ = "dd if=big of=/dev/null bs=1M 2>/dev/null"
NPM = pathlib.Path.home() / ".cache" / "msb" / "npm" / "s3rver"


def wait(condition, seconds=LIMIT):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("it takes too long")
        time.sleep(0.02)


def start_server(work):
    if not (NPM / "node_modules").exists():
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--prefix", NPM, "s3rver"], check=True)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    # It crashes when an object is written while another one beside it is deleted: all clients try again. The
    # cipher that it puts into the token for a next page is in OpenSSL's old provider.
    command = (f"export NODE_OPTIONS=--openssl-legacy-provider; while :; do {NPM}/node_modules/.bin/s3rver -s "
               f"-d {work}/s3 -a 127.0.0.1 -p {port} --configure-bucket bench; done >{work}/log 2>&1")  # fmt: skip
    (work / "log").touch()
    p = subprocess.Popen(["sh", "-c", command], start_new_session=True)
    wait(lambda: b"listening" in (work / "log").read_bytes())
    return p, f"http://127.0.0.1:{port}"


def cpu_seconds(pid):
    """Of a process and its children, those that are gone included."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + sum(map(cpu_seconds, children))


class Bucket:
    def __init__(self, url, server=None):
        import boto3
        self.server = server
        self.s3 = boto3.client("s3", endpoint_url=url, aws_access_key_id=KEY, aws_secret_access_key=KEY,
                               region_name="us-east-1")  # fmt: skip

    def fill(self, prefix, n):
        def put(i):
            self.s3.put_object(Bucket="bench", Key=f"{prefix}/d{i // 100:03}/f{i}", Body=b"%d\n" % i)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(put, range(n)))

    def objects(self, prefix):
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket="bench", Prefix=prefix)
        return [o for p in pages for o in p.get("Contents", []) if "/.msb/" not in o["Key"]]


class Sandbox(files.Guest):
    """A workspace of its own for each prefix; None: no workspace."""

    def __init__(self, args, env, url, image, prefix):
        super().__init__(str(args.msb), env, prefix or "plain", "/workspace" if prefix else "/root")
        self.image = image
        if prefix and subprocess.run([self.msb, "workspace", "inspect", prefix], env=env, capture_output=True).returncode:
            subprocess.run([self.msb, "workspace", "create", "-q", prefix, "--s3", f"s3://bench/{prefix}",
                            "--endpoint", url], env=env, check=True)  # fmt: skip

    def start(self):
        more = ["--workspace", self.name] if self.dir != "/root" else []
        subprocess.run([self.msb, "create", "-q", "-n", self.name, "-m", "1G", *more, self.image], env=self.env, check=True)

    def remove(self):
        subprocess.run([self.msb, "rm", "-q", "-f", self.name], env=self.env, check=True)

    def settle(self):
        subprocess.run([self.msb, "workspace", "sync", "-q", self.name], env=self.env, check=True)

    def stop(self):
        self.remove()
        if self.dir != "/root":
            subprocess.run([self.msb, "workspace", "rm", "-q", self.name], env=self.env, check=True)


class Mount(files.Host):
    def __init__(self, kind, work, url, image, prefix):
        super().__init__(work / f"{kind}-{prefix}", image)
        self.kind, self.work, self.url, self.prefix = kind, work, url, prefix
        self.cache = work / f"cache-{kind}-{prefix}"
        self.dir.mkdir(exist_ok=True)

    def start(self):
        if self.kind == "rclone":
            env = {**CLEAN, "RCLONE_CONFIG_B_TYPE": "s3", "RCLONE_CONFIG_B_PROVIDER": "Other",
                   "RCLONE_CONFIG_B_ENDPOINT": self.url, "RCLONE_CONFIG_B_ACCESS_KEY_ID": KEY,
                   "RCLONE_CONFIG_B_SECRET_ACCESS_KEY": KEY}  # fmt: skip
            command = ["rclone", "mount", f"b:bench/{self.prefix}", self.dir, "--daemon", "--vfs-cache-mode", "full",
                       "--vfs-write-back", "0s", "--cache-dir", self.cache, "--config", "/dev/null"]  # fmt: skip
        else:
            (self.work / "passwd").write_text(f"{KEY}:{KEY}\n")
            (self.work / "passwd").chmod(0o600)
            env = CLEAN
            command = ["s3fs", f"bench:/{self.prefix}", self.dir, "-o", f"url={self.url},use_path_request_style,"
                       f"passwd_file={self.work / 'passwd'},use_cache={self.cache}"]  # fmt: skip
        subprocess.run([str(c) for c in command], env=env, check=True, stdout=subprocess.DEVNULL)
        wait(lambda: os.path.ismount(self.dir), 30)

    def run(self, script):
        subprocess.run(["timeout", "-k", "5", str(LIMIT), "sh", "-ec", f"cd {self.dir}; {script}"], check=True, env=self.env,
                       stdout=subprocess.DEVNULL)  # fmt: skip

    def settle(self):
        pass

    def stop(self):
        wait(lambda: subprocess.run(["umount", self.dir], capture_output=True).returncode == 0, 60)
        shutil.rmtree(self.cache, ignore_errors=True)


class Boxed(Sandbox):
    """A sandbox that has the mount as its workspace."""

    def __init__(self, args, env, url, image, prefix, mount):
        super().__init__(args, env, url, image, None)
        self.name, self.dir, self.mount = f"{mount.kind}-{prefix}", "/workspace", mount

    def start(self):
        self.mount.start()
        subprocess.run([self.msb, "create", "-q", "-n", self.name, "-m", "1G", "--workspace", self.mount.dir, self.image],
                       env=self.env, check=True)  # fmt: skip

    def settle(self):
        pass

    def stop(self):
        self.remove()
        self.mount.stop()


class Rows(dict):
    """Seconds by name; None where it failed, which the others may. `server`: those that the server has computed."""

    def __init__(self, server=None):
        super().__init__()
        self.pid, self.server = server, {}

    def time(self, name, *steps):
        before = cpu_seconds(self.pid) if self.pid else 0
        start = time.monotonic()
        try:
            for step in steps:
                step()
            self[name] = time.monotonic() - start
        except (subprocess.SubprocessError, TimeoutError) as e:
            print(f"{name}: {e}", file=sys.stderr)
            self[name] = None
        self.server[name] = cpu_seconds(self.pid) - before if self.pid else 0

    def add(self, name, first, second):
        self[name] = None if None in (self[first], self[second]) else self[first] + self[second]
        self.server[name] = self.server[first] + self.server[second]

    def keep_best(self, other):
        for name, took in other.items():
            if name not in self or self[name] is None or (took is not None and took < self[name]):
                self[name], self.server[name] = took, other.server[name]


def measure(args, make, bucket, prefix, tar):
    """One place, all rows."""
    rows = Rows(bucket.server.pid)

    def there(what, n, size):
        wait(lambda: len([o for o in bucket.objects(f"{prefix}/{what}") if size in (None, o["Size"])]) >= n)

    many = make("many")
    rows.time(f"start, {args.objects} objects", many.start)
    last = args.objects - 1
    rows.time("first ls", lambda: many.run("ls d000"))
    rows.time("first read", lambda: many.run(f"cat d{last // 100:03}/f{last}"))
    rows.time("find all", lambda: many.run("find . -type f | wc -l"))
    many.stop()
    bucket.s3.put_object(Bucket="bench", Key=f"{prefix}/in.tar", Body=tar.read_bytes())
    place = make(prefix)
    place.start()
    place.run("cat in.tar >/dev/null")
    measure_small(args, place, rows, lambda: there("t/d", args.files, None))
    place.stop()
    return rows


def measure_small(args, place, rows, there=None):
    rows.time(f"untar {args.files} files", lambda: place.run("mkdir t && tar xf in.tar -C t"))
    if there:
        rows.time("... and the bucket has them", place.settle, there)
    rows.time("git init, add, commit", lambda: place.run(files.GIT))
    rows.time("git status", lambda: place.run("git -C t status --porcelain"))


def measure_disk(args, place, tar):
    """The guest's own disk: the rows that need no bucket."""
    rows = Rows()
    place.start()
    with open(tar, "rb") as f:
        subprocess.run([place.msb, "exec", "-q", place.name, "--", "sh", "-c", "cat >/root/in.tar"], stdin=f, check=True,
                       env=place.env)  # fmt: skip
    if args.files:
        measure_small(args, place, rows)
    if args.mib:
        rows.time(f"write {args.mib} MiB, close", lambda: place.run(WRITE % args.mib))
        place.run("cat big >/dev/null")
        rows.time("second read of it", lambda: place.run(READ))
    place.stop()
    return rows


def measure_bulk(args, make, bucket, prefix):
    """A large file, in a place that has nothing else: what else is to be uploaded would count."""
    rows = Rows(bucket.server.pid)
    bucket.s3.put_object(Bucket="bench", Key=f"{prefix}/x", Body=b"x")
    place = make(prefix)
    place.start()
    place.run("cat x")
    write, until = f"write {args.mib} MiB, close", "... until the bucket has it"
    rows.time(write, lambda: place.run(WRITE % args.mib))
    rows.time(until, place.settle,
              lambda: wait(lambda: any(o["Size"] == args.mib << 20 for o in bucket.objects(f"{prefix}/big"))))  # fmt: skip
    rows.add("... both", write, until)
    place.stop()
    bucket.s3.copy_object(Bucket="bench", Key=f"{prefix}-r/big", CopySource={"Bucket": "bench", "Key": "seed/big"})
    place = make(f"{prefix}-r")
    place.start()
    rows.time(f"first read of {args.mib} MiB", lambda: place.run(READ))
    rows.time("second read of it", lambda: place.run(READ))
    place.stop()
    for key in (f"{prefix}/big", f"{prefix}-r/big"):
        bucket.s3.delete_object(Bucket="bench", Key=key)
    return rows


def ratio(results, places, name, less_server=False):
    """Of the best of these places to msb."""

    def seconds(place):
        took = results[place].get(name)
        if took and less_server:
            rest = took - results[place].server[name]
            return rest if rest > took / 5 else None
        return took

    mine, others = seconds("msb"), [x for x in map(seconds, places) if x]
    return f"{min(others) / mine:.1f}" if others and mine else ""


def print_table(results, places, disk):
    native, boxed = ([x for x in places[1:] if x.startswith("box-") == box] for box in (False, True))
    print(f"{'seconds':<28}" + "".join(f"{x:>11}" for x in places)
          + f"{'host/msb':>10}{'box/msb':>9}{'less server':>13}{'disk':>9}")  # fmt: skip
    for name in results["msb"]:
        cells = ("fails" if results[x].get(name) is None else f"{results[x][name]:.3f}" for x in places)
        floor = f"{disk[name]:.3f}" if disk.get(name) else ""
        print(f"{name:<28}" + "".join(f"{c:>11}" for c in cells) + f"{ratio(results, native, name):>10}"
              f"{ratio(results, boxed, name):>9}{ratio(results, native, name, True):>13}{floor:>9}")  # fmt: skip
    print("\ncomputed by the server")
    for name in results["msb"]:
        print(f"{name:<28}" + "".join(f"{results[x].server.get(name, 0):>11.2f}" for x in places))


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("--msb", type=pathlib.Path, default=files.ROOT / "build" / "src" / "cli" / "msb")
    p.add_argument("--peers", type=lambda x: x.split(","), default=PEERS)
    p.add_argument("--objects", type=int, default=10000)
    p.add_argument("--files", type=int, default=5000)
    p.add_argument("--mib", type=int, default=512)
    p.add_argument("--rounds", type=int, default=2)  # of the rows of large files
    p.add_argument("--dir", default="/dev/shm")
    p.add_argument("--json", type=pathlib.Path)
    args = p.parse_args()
    args.msb = args.msb.resolve()
    work = pathlib.Path(tempfile.mkdtemp(prefix="msb-buckets.", dir=args.dir))
    can_mount = os.geteuid() == 0 and os.path.exists("/dev/fuse")
    places = ["msb", *(x for x in args.peers if shutil.which(x.removeprefix("box-")) and can_mount)]
    env = {**os.environ, "MSB_HOME": str(work / "home"), "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": KEY,
           "AWS_REGION": "us-east-1"}  # fmt: skip
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    server, url = start_server(work)
    try:
        (work / "home").mkdir(mode=0o700)
        image = work / "image"
        files.make_image(image)
        (image / "workspace").mkdir()
        files.make_tar(work / "in.tar", args.files)
        bucket = Bucket(url, server)
        if args.files:
            bucket.fill("many", args.objects)
        plain = Sandbox(args, env, url, image, None)
        plain.start()
        plain.stop()
        rows = Rows()
        rows.time("alone", plain.start)
        plain.stop()
        results, makers = {}, {}
        for place in places:
            def make(prefix, place=place):
                if place == "msb":
                    return Sandbox(args, env, url, image, prefix)
                mount = Mount(place.removeprefix("box-"), work, url, image, prefix)
                return Boxed(args, env, url, image, prefix, mount) if place.startswith("box-") else mount

            results[place] = measure(args, make, bucket, place, work / "in.tar") if args.files else Rows()
            makers[place] = make
        if args.mib:
            bucket.s3.put_object(Bucket="bench", Key="seed/big", Body=os.urandom(1 << 20) * args.mib)
        for i in range(args.rounds if args.mib else 0):
            for place, make in makers.items():  # one after the other: the best of the rounds counts
                results[place].keep_best(measure_bulk(args, make, bucket, f"{place}-{i}"))
        disk = measure_disk(args, plain, work / "in.tar")
        first = f"start, {args.objects} objects"
        for place, took in results.items():
            if took.get(first) and (place == "msb" or place.startswith("box-")):
                took[first] = max(took[first] - rows["alone"], 1e-4)
        print_table(results, places, disk)
        if args.json:
            server_too = {x: {"seconds": r, "server": r.server} for x, r in results.items()}
            args.json.write_text(json.dumps({**server_too, "disk": disk}, indent=1) + "\n")
    finally:
        for d in work.glob("[rs]*-*"):
            subprocess.run(["umount", "-l", d], capture_output=True)
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
