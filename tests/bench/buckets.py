#!/usr/bin/python3
"""Workspaces in a bucket beside rclone mount and s3fs, on the same server, in one run (as root).

usage: buckets.py [--msb PATH] [--peers NAME,...] [--objects N] [--files N] [--mib N] [--rounds N] [--limit SECONDS]
                  [--minutes N] [--dir DIR] [--json FILE]

With --files 0 only large files are measured, with --mib 0 only small ones. Rows are printed as they are measured, and in
two tables at the end. "fails" is a row that a peer cannot do, ">45" one that was ended after that many seconds (--limit; peers
only), "-" one that has nothing to work on because of that, or for which no time was left (--minutes). Of the rows of large
files, the best round counts; in a sandbox, peers have one. git works on 600 files at most: s3fs takes long enough for these.

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
import contextlib
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

import boto3
import botocore.exceptions

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import files  # noqa: E402

KEY = "S3RVER"
PATIENCE = 300  # seconds: for what is not a peer's row
FAILURES = (subprocess.SubprocessError, TimeoutError, OSError, botocore.exceptions.BotoCoreError,
            botocore.exceptions.ClientError)  # fmt: skip
GIT_FILES = 600
PEERS = ["rclone", "s3fs", "box-rclone", "box-s3fs"]
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
WRITE = "dd if=/dev/zero of=big bs=1M count=%d 2>/dev/null"
READ = "dd if=big of=/dev/null bs=1M 2>/dev/null"
NPM = pathlib.Path.home() / ".cache" / "msb" / "npm" / "s3rver"


def wait(condition, seconds=PATIENCE):
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
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):  # a server that has crashed just now
        return 0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + sum(map(cpu_seconds, children))


class Bucket:
    def __init__(self, url, server=None):
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
        self.image, self.limit = image, PATIENCE
        if prefix and subprocess.run([self.msb, "workspace", "inspect", prefix], env=env, capture_output=True).returncode:
            subprocess.run([self.msb, "workspace", "create", "-q", prefix, "--s3", f"s3://bench/{prefix}",
                            "--endpoint", url], env=env, check=True)  # fmt: skip

    def start(self):
        more = ["--workspace", self.name] if self.dir != "/root" else []
        subprocess.run([self.msb, "create", "-q", "-n", self.name, "-m", "1G", *more, self.image], env=self.env, check=True)

    def run(self, script, **more):
        subprocess.run([self.msb, "exec", "-q", "--timeout", f"{self.limit}s", self.name, "--", "sh", "-ec",
                        f"cd {self.dir}; {script}"], env=self.env, check=True, stdout=subprocess.DEVNULL, **more)  # fmt: skip

    def remove(self):
        subprocess.run([self.msb, "rm", "-q", "-f", self.name], env=self.env, check=True)

    def settle(self):
        subprocess.run([self.msb, "workspace", "sync", "-q", self.name], env=self.env, check=True, timeout=self.limit)

    def stop(self):
        self.remove()
        if self.dir != "/root":
            subprocess.run([self.msb, "workspace", "rm", "-q", self.name], env=self.env, check=True)


class Mount(files.Host):
    def __init__(self, args, kind, work, url, image, prefix):
        super().__init__(work / f"{kind}-{prefix}", image)
        self.kind, self.work, self.url, self.prefix, self.limit = kind, work, url, prefix, args.limit
        self.cache = work / f"cache-{kind}-{prefix}"
        self.dir.mkdir(exist_ok=True)

    def start(self):
        if self.kind == "rclone":
            env = {**CLEAN, "RCLONE_CONFIG_B_TYPE": "s3", "RCLONE_CONFIG_B_PROVIDER": "Other",
                   "RCLONE_CONFIG_B_ENDPOINT": self.url, "RCLONE_CONFIG_B_ACCESS_KEY_ID": KEY,
                   "RCLONE_CONFIG_B_SECRET_ACCESS_KEY": KEY}  # fmt: skip
            command = ["rclone", "mount", f"b:bench/{self.prefix}", self.dir, "--vfs-cache-mode", "full",
                       "--vfs-write-back", "0s", "--cache-dir", self.cache, "--config", "/dev/null"]  # fmt: skip
        else:
            (self.work / "passwd").write_text(f"{KEY}:{KEY}\n")
            (self.work / "passwd").chmod(0o600)
            env = CLEAN
            command = ["s3fs", "-f", f"bench:/{self.prefix}", self.dir, "-o", f"url={self.url},use_path_request_style,"
                       f"passwd_file={self.work / 'passwd'},use_cache={self.cache}"]  # fmt: skip
        said = self.work / f"log-{self.kind}"
        with open(said, "w") as log:
            self.daemon = subprocess.Popen([str(c) for c in command], env=env, stdout=log, stderr=log)
        wait(lambda: os.path.ismount(self.dir) or self.daemon.poll() is not None, 30)
        if self.daemon.poll() is not None:
            raise OSError(f"{self.kind}: {files.last_line(said.read_text(errors='replace'))}")

    def run(self, script):
        subprocess.run(["timeout", "-k", "5", str(self.limit), "sh", "-ec", f"cd {self.dir}; {script}"], check=True, env=self.env,
                       stdout=subprocess.DEVNULL)  # fmt: skip

    def settle(self):
        pass

    def stop(self):
        with contextlib.suppress(TimeoutError):  # what it still uploads is of no use
            wait(lambda: not os.path.ismount(self.dir)
                 or subprocess.run(["umount", self.dir], capture_output=True).returncode == 0, 10)  # fmt: skip
        subprocess.run(["umount", "-l", self.dir], capture_output=True)
        self.daemon.kill()
        self.daemon.wait()
        shutil.rmtree(self.cache, ignore_errors=True)


class Boxed(Sandbox):
    """A sandbox that has the mount as its workspace."""

    def __init__(self, args, env, url, image, prefix, mount):
        super().__init__(args, env, url, image, None)
        self.name, self.dir, self.mount, self.limit = f"{mount.kind}-{prefix}", "/workspace", mount, args.limit

    def start(self):
        self.mount.start()
        subprocess.run([self.msb, "create", "-q", "-n", self.name, "-m", "1G", "--workspace", self.mount.dir, self.image],
                       env=self.env, check=True)  # fmt: skip

    def settle(self):
        pass

    def stop(self):
        try:
            self.remove()
        finally:
            self.mount.stop()


class Row:
    """seconds: None if there are none. server: those that it has computed. mark: what is to be said of them."""

    def __init__(self, seconds, server=0.0, mark=""):
        self.seconds, self.server, self.mark = seconds, server, mark

    def __str__(self):
        return self.mark if self.seconds is None else f">{self.seconds:.0f}" if self.mark else f"{self.seconds:.3f}"


FAILED, UNASKED = Row(None, mark="fails"), Row(None, mark="-")


def explain(place, e):
    print(f"{place}: {f'exit code {e.returncode}' if isinstance(e, subprocess.CalledProcessError) else e}", file=sys.stderr)


class Rows(dict):
    """Of one place, by name."""

    def __init__(self, place, args, server=None):
        super().__init__()
        self.place, self.pid, self.missing = place, server and server.pid, UNASKED
        self.limit, self.end = args.limit if place in PEERS else PATIENCE, args.end

    def time(self, name, *steps, after=None, less=0.0):
        """less: seconds that do not count. after: the row without whose result this one means nothing."""
        if time.monotonic() > self.end or (after and (self[after].seconds is None or self[after].mark)):
            return self.record(name, UNASKED)
        before = cpu_seconds(self.pid) if self.pid else 0
        start = time.monotonic()
        row = Row(None)
        try:
            for step in steps:
                step()
        except FAILURES as e:
            row.mark = ">" if time.monotonic() - start >= self.limit else "fails"
            explain(self.place, e)
        if row.mark != "fails":
            row.seconds = max(time.monotonic() - start - less, 1e-4)
        row.server = cpu_seconds(self.pid) - before if self.pid else 0
        return self.record(name, row)

    def record(self, name, row):
        self[name] = row
        print(f"{self.place:<11} {name:<28}{row!s:>9}", flush=True)

    def add(self, name, first, second):
        a, b = self[first], self[second]
        both = None if None in (a.seconds, b.seconds) else a.seconds + b.seconds
        self.record(name, Row(both, a.server + b.server, a.mark or b.mark))

    def keep_best(self, other):
        for name, row in other.items():
            if name not in self or self[name].seconds is None or (row.seconds is not None and row.seconds < self[name].seconds):
                self[name] = row


@contextlib.contextmanager
def ready(place, start=None):
    """A place that has been started, until it is stopped, also if that fails."""
    try:
        (start or place.start)()
        yield place
    finally:
        with contextlib.suppress(*FAILURES):
            place.stop()


def measure(args, rows, make, bucket, tars, alone):
    """One place, all rows of small files."""
    prefix = rows.place

    def there(what, n):
        wait(lambda: len(bucket.objects(f"{prefix}/{what}")) >= n, args.limit)

    many = make("many")
    first, last = f"start, {args.objects} objects", args.objects - 1
    with ready(many, lambda: rows.time(first, many.start, less=alone if isinstance(many, Sandbox) else 0)):
        rows.time("first ls", lambda: many.run("ls d000"), after=first)
        rows.time("first read", lambda: many.run(f"cat d{last // 100:03}/f{last}"), after=first)
        rows.time("find all", lambda: many.run("find . -type f | wc -l"), after=first)
    for tar in tars:
        bucket.s3.put_object(Bucket="bench", Key=f"{prefix}/{tar.name}", Body=tar.read_bytes())
    with ready(make(prefix)) as place:
        place.run("cat *.tar >/dev/null")
        measure_small(args, place, rows, lambda: there("u/d", args.files))


def measure_small(args, place, rows, there=None):
    untar, few, commit = f"untar {args.files} files", f"untar {min(args.files, GIT_FILES)} files for git", "git init, add, commit"
    rows.time(untar, lambda: place.run("mkdir u && tar xf in.tar -C u"))
    if there:
        rows.time("... and the bucket has them", place.settle, there, after=untar)
    rows.time(few, lambda: place.run("mkdir t && tar xf few.tar -C t"))
    rows.time(commit, lambda: place.run(files.GIT), after=few)
    rows.time("git status", lambda: place.run("git -C t status --porcelain"), after=commit)


def measure_disk(args, place, tars):
    """The guest's own disk: the rows that need no bucket."""
    rows = Rows("disk", args)
    with ready(place):
        for tar in tars:
            with open(tar, "rb") as f:
                place.run(f"cat >{tar.name}", stdin=f)
        if args.files:
            measure_small(args, place, rows)
        if args.mib:
            rows.time(f"write {args.mib} MiB, close", lambda: place.run(WRITE % args.mib))
            place.run("cat big >/dev/null")
            rows.time("second read of it", lambda: place.run(READ))
    return rows


def measure_bulk(args, rows, make, bucket, prefix):
    """A large file, in a place that has nothing else: what else is to be uploaded would count."""
    write, until, first = f"write {args.mib} MiB, close", "... until the bucket has it", f"first read of {args.mib} MiB"

    def there():
        wait(lambda: any(o["Size"] == args.mib << 20 for o in bucket.objects(f"{prefix}/big")), args.limit)

    bucket.s3.put_object(Bucket="bench", Key=f"{prefix}/x", Body=b"x")
    with ready(make(prefix)) as place:
        place.run("cat x")
        rows.time(write, lambda: place.run(WRITE % args.mib))
        rows.time(until, place.settle, there, after=write)
        rows.add("... both", write, until)
    bucket.s3.copy_object(Bucket="bench", Key=f"{prefix}-r/big", CopySource={"Bucket": "bench", "Key": "seed/big"})
    with ready(make(f"{prefix}-r")) as place:
        rows.time(first, lambda: place.run(READ))
        rows.time("second read of it", lambda: place.run(READ), after=first)
    for key in (f"{prefix}/big", f"{prefix}-r/big"):
        bucket.s3.delete_object(Bucket="bench", Key=key)


def ratio(results, places, name, less_server=False):
    """Of the best of these places to msb."""

    def seconds(place):
        row = results[place].get(name, UNASKED)
        if row.seconds and less_server:
            rest = row.seconds - row.server
            return rest if rest > row.seconds / 5 else None
        return row.seconds

    mine, others = seconds("msb"), [(t, results[x][name].mark) for x in places if (t := seconds(x))]
    return f"{min(others)[1]}{min(others)[0] / mine:.1f}" if others and mine else ""


def print_table(results, places, disk):
    native, boxed = ([x for x in places[1:] if x.startswith("box-") == box] for box in (False, True))
    print(f"\n{'seconds':<28}" + "".join(f"{x:>11}" for x in places)
          + f"{'host/msb':>10}{'box/msb':>9}{'less server':>13}{'disk':>9}")  # fmt: skip
    names = dict.fromkeys(name for rows in results.values() for name in rows)
    for name in names:
        cells = (str(results[x].get(name, results[x].missing)) for x in places)
        floor = disk[name] if name in disk else ""
        print(f"{name:<28}" + "".join(f"{c:>11}" for c in cells) + f"{ratio(results, native, name):>10}"
              f"{ratio(results, boxed, name):>9}{ratio(results, native, name, True):>13}{floor!s:>9}")  # fmt: skip
    print("\ncomputed by the server")
    for name in names:
        print(f"{name:<28}" + "".join(f"{results[x].get(name, results[x].missing).server:>11.2f}" for x in places))


def measure_all(args, work):
    places = ["msb", *(x for x in args.peers if shutil.which(x.removeprefix("box-")) and os.path.exists("/dev/fuse"))]
    env = {**os.environ, "MSB_HOME": str(work / "home"), "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": KEY,
           "AWS_REGION": "us-east-1"}  # fmt: skip
    server, url = start_server(work)
    (work / "home").mkdir(mode=0o700)
    image, tars = work / "image", {work / "in.tar": args.files, work / "few.tar": min(args.files, GIT_FILES)}
    files.make_image(image)
    (image / "workspace").mkdir()
    for tar, n in tars.items():
        files.make_tar(tar, n)
    bucket = Bucket(url, server)
    plain, alone = Sandbox(args, env, url, image, None), Rows("plain", args)
    for name in ("first start", "start"):  # the first one reads the image
        with ready(plain, lambda name=name: alone.time(name, plain.start)):
            pass
    results = {place: Rows(place, args, server) for place in places}

    def attempt(place, measure, rows, *more):
        def make(prefix):
            if place == "msb":
                return Sandbox(args, env, url, image, prefix)
            mount = Mount(args, place.removeprefix("box-"), work, url, image, prefix)
            return Boxed(args, env, url, image, prefix, mount) if place.startswith("box-") else mount

        if time.monotonic() > args.end:
            return
        try:
            measure(args, rows, make, bucket, *more)
        except FAILURES as e:
            explain(place, e)
            results[place].missing = FAILED

    disk = measure_disk(args, plain, tars)
    if args.mib:
        bucket.s3.put_object(Bucket="bench", Key="seed/big", Body=os.urandom(1 << 20) * args.mib)
    for i in range(args.rounds if args.mib else 0):
        for place in places:  # one after the other: the best of the rounds counts
            if i == 0 or not place.startswith("box-"):
                attempt(place, measure_bulk, rows := Rows(place, args, server), f"{place}-{i}")
                results[place].keep_best(rows)
    if args.files:
        print(f"-- {args.objects} objects are made", flush=True)
        bucket.fill("many", args.objects)
    for place in places if args.files else []:
        attempt(place, measure, results[place], tars, alone["start"].seconds)
    print_table(results, places, disk)
    if args.json:
        two = ("seconds", "server", "mark")
        args.json.write_text(json.dumps({x: {k: {n: getattr(r, k) for n, r in rows.items()} for k in two}
                                         for x, rows in {**results, "disk": disk}.items()}, indent=1) + "\n")  # fmt: skip
    return results["msb"].missing is FAILED or any(row.mark for row in results["msb"].values())


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("--msb", type=pathlib.Path, default=files.ROOT / "build" / "src" / "cli" / "msb")
    p.add_argument("--peers", type=lambda x: x.split(","), default=PEERS)
    p.add_argument("--objects", type=int, default=10000)
    p.add_argument("--files", type=int, default=5000)
    p.add_argument("--mib", type=int, default=512)
    p.add_argument("--rounds", type=int, default=2)  # of the rows of large files
    p.add_argument("--limit", type=int, default=45)
    p.add_argument("--minutes", type=float, default=7.5)
    p.add_argument("--dir", default="/dev/shm")
    p.add_argument("--json", type=pathlib.Path)
    p.add_argument("--work", type=pathlib.Path, help=argparse.SUPPRESS)
    args = p.parse_args()
    args.msb, args.end = args.msb.resolve(), time.monotonic() + args.minutes * 60
    if args.work:
        return measure_all(args, args.work)
    if os.geteuid():
        p.exit(2, "run it as root: it mounts file systems\n")
    # In namespaces of its own, which take along every process and every mount, however this ends. The shell reaps.
    work = tempfile.mkdtemp(prefix="msb-buckets.", dir=args.dir)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda n, _: sys.exit(128 + n))
    inner = None
    try:
        inner = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child",
                                  "--mount-proc", "sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-B", __file__,
                                  *sys.argv[1:], "--work", work], start_new_session=True)  # fmt: skip
        return inner.wait()
    finally:
        if inner:
            first = []
            if inner.poll() is None:
                first = pathlib.Path(f"/proc/{inner.pid}/task/{inner.pid}/children").read_text().split()
            inner.kill()
            inner.wait()
            wait(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in first))
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
