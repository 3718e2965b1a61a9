"""The Python SDK beside the command line and podman: one exec after another, and 200 at once.

Part of bench.py. `CLI exec, without its start` is what the command line takes for an exec beyond what it
takes to start and say its version: the time that the SDK competes with. Rounds alternate between all of
them, so that what else the machine does hits all alike.
"""
import asyncio
import concurrent.futures
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "sdk" / "python"))
import msb  # noqa: E402
import msb.sync  # noqa: E402,F401

AT_ONCE = 200
ROUND = 10
RATIOS = [  # what, against, aim
    ("SDK exec", "SDK exec true (async)", "CLI exec, without its start", 1.3),
    ("SDK exec", "SDK exec true (async)", "CLI exec true", 1.0),
    ("SDK exec", "SDK exec true (async)", "podman exec true", 0.05),
    ("SDK, 200 at once", "SDK, each of 200 at once", "CLI, each of 200 at once", 1.0),
    ("SDK, 200 at once", "SDK, each of 200 at once", "podman, each of many at once", None),
]


def clock(fn):
    begun = time.perf_counter()
    fn()
    return (time.perf_counter() - begun) * 1000


async def clock_async(make):
    begun = time.perf_counter()
    await make()
    return (time.perf_counter() - begun) * 1000


def at_once(fn, n, workers=16):
    """Milliseconds for each of n calls by several threads."""
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return clock(lambda: list(pool.map(lambda _: fn(), range(n)))) / n


def bench(b):
    """Notes the figures of one sandbox in b (bench.Bench)."""
    client = msb.SandboxClient(msb=b.msb, home=str(b.home))
    name = "sdk"
    b.call("create", "-q", "-n", name)

    def cli_exec():
        b.call("exec", "-q", name, "--", "true")

    found = {"async": [], "sync": [], "cli": [], "start": []}
    twin = msb.sync.SandboxClient(msb=b.msb, home=str(b.home)).get(name)

    async def run():
        sandbox = await client.get(name)
        for _ in range(3):
            await sandbox.exec("true")
        for _ in range(b.count(300) // ROUND):
            found["async"] += [await clock_async(lambda: sandbox.exec("true")) for _ in range(ROUND)]
            found["sync"] += [clock(lambda: twin.exec("true")) for _ in range(ROUND)]
            found["cli"] += [clock(cli_exec) for _ in range(ROUND)]
            found["start"] += [clock(lambda: b.call("--version")) for _ in range(ROUND)]
        return [await clock_async(lambda: asyncio.gather(*(sandbox.exec("true") for _ in range(AT_ONCE))))
                / AT_ONCE for _ in range(b.count(10))]

    each = asyncio.run(run())
    start = statistics.median(found["start"])
    b.note("SDK exec true (async)", "ms", found["async"])
    b.note("SDK exec true (sync)", "ms", found["sync"])
    b.note("CLI exec true", "ms", found["cli"])
    b.note("CLI start (--version)", "ms", found["start"])
    b.note("CLI exec, without its start", "ms", [t - start for t in found["cli"]])
    b.note("SDK, each of 200 at once", "ms", each)
    b.note("CLI, each of 200 at once", "ms", [at_once(cli_exec, AT_ONCE) for _ in range(3)])
    b.call("rm", "-f", "-q", name)


def podman(b, execute):
    """The same with podman, of which fewer have to do."""
    b.note("podman, each of many at once", "ms", [at_once(execute, b.count(40))])
