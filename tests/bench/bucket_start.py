#!/usr/bin/python3
"""How long a sandbox with a workspace in a bucket takes to start, with one msb or several in turn.

usage: bucket_start.py [--msb PATH]... [--objects N] [--rounds N] [--server fake|s3rver]

Rows: from `create` to the end of the first command, and to that of the first `ls` in the workspace, for a workspace
that is new and for one that was synced before, and what that is more than without a workspace. The best of the rounds,
in milliseconds. fake is the server of the tests, in a process of its own; s3rver (npm) takes long for each page.
"""
import argparse
import contextlib
import multiprocessing
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1] / "e2e")]
import buckets  # noqa: E402
import fakes3  # noqa: E402
import files  # noqa: E402


def serve_fake(n, pipe):
    server = fakes3.FakeS3(page=1000)
    for i in range(n):
        server.put(f"many/d{i // 100:03}/f{i}", b"%d\n" % i)
    pipe.send(server.url)
    signal.pause()


@contextlib.contextmanager
def server(kind, work, n):
    """URL, bucket and keys of one that has the objects."""
    if kind == "s3rver":
        p, url = buckets.start_server(work)
        try:
            buckets.Bucket(url).fill("many", n)
            yield url, "bench", buckets.KEY, buckets.KEY, "us-east-1"
        finally:
            os.killpg(p.pid, signal.SIGKILL)
            p.wait()
        return
    here, there = multiprocessing.Pipe()
    p = multiprocessing.Process(target=serve_fake, args=(n, there), daemon=True)
    p.start()
    try:
        yield here.recv(), fakes3.BUCKET, fakes3.KEY_ID, fakes3.SECRET, fakes3.REGION
    finally:
        p.terminate()
        p.join()


def measure(msb, env, workspace, script):
    def run(*args):
        subprocess.run([msb, *args], env=env, check=True, stdout=subprocess.DEVNULL)

    more = ["--workspace", workspace] if workspace else []
    start = time.monotonic()
    run("create", "-q", "-n", "box", *more)
    run("exec", "-q", "box", "--", "sh", "-c", script)
    took = time.monotonic() - start
    run("rm", "-q", "-f", "box")
    return took


def one_round(msb, env, url, bucket, best):
    def keep(row, took):
        best[row] = min(took, best.get(row, took))

    keep("without", measure(msb, env, None, "true"))
    for what, script in (("first command", "true"), ("first ls", "ls /workspace/d007")):
        subprocess.run([msb, "workspace", "create", "-q", "many", "--s3", f"s3://{bucket}/many", "--endpoint", url],
                       env=env, check=True)  # fmt: skip
        keep(f"new: {what}", measure(msb, env, "many", script))
        measure(msb, env, "many", "ls /workspace")  # which waits for the sync
        keep(f"synced: {what}", measure(msb, env, "many", script))
        subprocess.run([msb, "workspace", "rm", "-q", "many"], env=env, check=True)


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("--msb", action="append")
    p.add_argument("--objects", type=int, default=10000)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--server", choices=["fake", "s3rver"], default="fake")
    args = p.parse_args()
    programs = args.msb or [str(files.ROOT / "build" / "src" / "cli" / "msb")]
    work = pathlib.Path(tempfile.mkdtemp(prefix="msb-start."))
    best = {msb: {} for msb in programs}
    try:
        with server(args.server, work, args.objects) as (url, bucket, key, secret, region):
            env = {**buckets.CLEAN, "MSB_HOME": str(work / "home"), "AWS_ACCESS_KEY_ID": key,
                   "AWS_SECRET_ACCESS_KEY": secret, "AWS_REGION": region}  # fmt: skip
            (work / "home").mkdir(mode=0o700)
            for _ in range(args.rounds):
                for msb in programs:
                    one_round(msb, env, url, bucket, best[msb])
        for msb, rows in best.items():
            print(f"{msb}: {args.objects} objects, {args.server}")
            for row, took in rows.items():
                print(f"  {row:<24}{took * 1e3:>8.0f}{(took - rows['without']) * 1e3:>8.0f}")
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
