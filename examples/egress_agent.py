#!/usr/bin/env python3
"""An agent that can reach the hosts it was given, and no others.

Its tool fetches URLs from inside the sandbox. The sandbox can resolve and reach the names on the list; other
names do not exist there, and addresses that were not resolved from an allowed name are refused, whatever the
agent was persuaded to try. A secret is passed by name: commands find its value in their environment.
"""
import argparse
import asyncio
import sys
import uuid

import msb

# The tool, as it runs in the guest.
FETCH = r"""
import os, sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1])
if os.environ.get("API_TOKEN"):
    request.add_header("Authorization", "Bearer " + os.environ["API_TOKEN"])
try:
    with urllib.request.urlopen(request, timeout=20) as answer:
        sys.stdout.buffer.write(answer.read(100_000))
except (urllib.error.URLError, OSError) as e:
    sys.exit(f"{e}")
"""


async def fetch(sandbox, url):
    """The answer that the agent gets for a URL."""
    r = await sandbox.exec("python3", ["-c", FETCH, url], timeout=60, max_output=100_000)
    return r.ok, (r.stdout if r.ok else r.stderr).strip()


async def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("urls", nargs="+", help="URLs to fetch")
    ap.add_argument("--allow", action="append", default=[], metavar="HOST", help="a host that it can reach")
    ap.add_argument("--secret", action="append", default=[], metavar="NAME",
                    help="a secret from `msb secret set` that it can use, such as API_TOKEN")
    ap.add_argument("--image", default="python:3.11-slim")
    args = ap.parse_args()
    spec = msb.SandboxSpec(name=f"agent-{uuid.uuid4().hex[:8]}", image=args.image,
                           egress=tuple(args.allow), secrets=tuple(args.secret),
                           labels={"kind": "agent"})
    async with await msb.SandboxClient().create(spec) as sandbox:
        found = await asyncio.gather(*(fetch(sandbox, url) for url in args.urls))
    for url, (ok, text) in zip(args.urls, found):
        print(f"{'reached' if ok else 'refused'}  {url}  {text.splitlines()[0][:80] if text else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
