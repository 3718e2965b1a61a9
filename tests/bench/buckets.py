#!/usr/bin/python3
"""Workspaces in a bucket beside rclone mount and s3fs, on the same server, in one run (as root).

usage: buckets.py [--msb PATH] [--peers NAME,...] [--objects N] [--files N] [--mib N] [--rounds N] [--dir DIR]
                  [--json FILE]

With --files 0 only large files are measured.

The server is s3rver (npm). A sandbox has the workspace at /workspace; the other two are mounted on the
host, which spares them the way into a guest. Each row begins with a workspace, or a mount, that is new,
where it says first. "until the bucket has it" counts until the server lists the object, or all of them:
s3fs uploads when the file is closed, rclone (--vfs-write-back 0s) from then on, msb with `workspace sync`.
The server is slow, and most of that is its time: "computed by the server" says how much, in seconds of a CPU.
No place syncs anything to a disk, and all of it, the server's files and the caches included, is in memory (/dev/shm)
unless --dir says otherwise: a file system that has removed many files lately may take a millisecond to make one, more
than anything that is compared here. The start of a sandbox is what it takes longer than one without a workspace. Ratios
are to the better of the two; disk is the same on the disk of a sandbox without a workspace, which no workspace can
undercut. Absolute figures are those of this machine.
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
PEERS = ["rclone", "s3fs"]
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

    def settle(self):
        subprocess.run([self.msb, "workspace", "sync", "-q", self.name], env=self.env, check=True)

    def stop(self):
        subprocess.run([self.msb, "rm", "-q", "-f", self.name], env=self.env, check=True)
        if self.dir != "/root":
            subprocess.run([self.msb, "workspace", "rm", "-q", self.name], env=self.env, check=True)


class Mount(files.Host):
    def __init__(self, kind, work, url, image, prefix):
        super().__init__(work / f"{kind}-{prefix}", image)
        self.kind, self.work, self.url, self.prefix = kind, work, url, prefix
        self.cache = work / f"cache-{kind}-{prefix}"
        self.dir.mkdir()

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


class Rows(dict):
    """Seconds by name; None where it failed, which the others may."""

    def time(self, name, *steps):
        start = time.monotonic()
        try:
            for step in steps:
                step()
            self[name] = time.monotonic() - start
        except (subprocess.SubprocessError, TimeoutError) as e:
            print(f"{name}: {e}", file=sys.stderr)
            self[name] = None


def measure(args, make, bucket, prefix, tar):
    """One place, all rows."""
    rows = Rows()

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
    rows.time(f"write {args.mib} MiB, close", lambda: place.run(WRITE % args.mib))
    place.run("cat big >/dev/null")
    rows.time("second read of it", lambda: place.run(READ))
    place.stop()
    return rows


def measure_bulk(args, make, bucket, prefix, rows):
    """A large file, in a place that has nothing else: what else is to be uploaded would count."""
    bucket.s3.put_object(Bucket="bench", Key=f"{prefix}/x", Body=b"x")
    place = make(prefix)
    place.start()
    place.run("cat x")
    before = cpu_seconds(bucket.server.pid)
    rows.time(f"write {args.mib} MiB, close", lambda: place.run(WRITE % args.mib))
    rows.time("... until the bucket has it", place.settle,
              lambda: wait(lambda: any(o["Size"] == args.mib << 20 for o in bucket.objects(f"{prefix}/big"))))  # fmt: skip
    written = [rows[x] for x in list(rows)[-2:]]
    rows["... both"] = sum(written) if None not in written else None
    rows["... computed by the server"] = cpu_seconds(bucket.server.pid) - before
    place.stop()
    bucket.s3.copy_object(Bucket="bench", Key=f"{prefix}-r/big", CopySource={"Bucket": "bench", "Key": "seed/big"})
    place = make(f"{prefix}-r")
    place.start()
    rows.time(f"first read of {args.mib} MiB", lambda: place.run(READ))
    rows.time("second read of it", lambda: place.run(READ))
    place.stop()
    for key in (f"{prefix}/big", f"{prefix}-r/big"):
        bucket.s3.delete_object(Bucket="bench", Key=key)


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
    places = ["msb", *(x for x in args.peers if shutil.which(x) and can_mount)]
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
                return Mount(place, work, url, image, prefix)

            results[place] = measure(args, make, bucket, place, work / "in.tar") if args.files else Rows()
            makers[place] = make
        bucket.s3.put_object(Bucket="bench", Key="seed/big", Body=os.urandom(1 << 20) * args.mib)
        for i in range(args.rounds):
            for place, make in makers.items():  # one after the other: the best of the rounds counts
                bulk = Rows()
                measure_bulk(args, make, bucket, f"{place}-{i}", bulk)
                for name, took in bulk.items():
                    results[place][name] = min(LIMIT if x is None else x for x in (took, results[place].get(name)))
        disk = measure_disk(args, plain, work / "in.tar")
        first = next(iter(results["msb"]))
        if first.startswith("start"):
            results["msb"][first] = max(results["msb"][first] - rows["alone"], 1e-4)
        print(f"{'seconds':<42}" + "".join(f"{x:>10}" for x in places) + f"{'best/msb':>11}{'disk':>9}")
        for name, mine in results["msb"].items():
            others = [results[x][name] for x in places[1:] if results[x][name]]
            ratio = f"{min(others) / mine:>11.1f}" if others and mine else f"{'':>11}"
            floor = f"{disk[name]:>9.3f}" if disk.get(name) else ""
            cells = ("fails" if results[x][name] is None else f"{results[x][name]:.3f}" for x in places)
            print(f"{name:<42}" + "".join(f"{c:>10}" for c in cells) + ratio + floor)
        if args.json:
            args.json.write_text(json.dumps({**results, "disk": disk}, indent=1) + "\n")
    finally:
        for d in work.glob("*-*"):
            subprocess.run(["umount", "-l", d], capture_output=True)
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
