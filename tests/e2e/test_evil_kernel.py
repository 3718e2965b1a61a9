"""An evil kernel in the place of the guest's own, in the real jail of the uml engine: what a guest
that took over its kernel could do. Each attack of evil_kernel/attacks.def is a start of a sandbox
with that kernel; whatever it does, the monitor ends in order and nothing is left.
"""
import contextlib
import os
import pathlib
import re
import subprocess

import pytest

from conftest import MSB, ROOT, wait_for
from test_host_memory import CONSTANT, taken

MEMORY = 128
SOURCE = ROOT / "tests" / "e2e" / "evil_kernel"
ATTACKS = re.findall(r"^ATTACK\((\w+), (\w+)\)", (SOURCE / "attacks.def").read_text(), re.MULTILINE)


def named(expected):
    return [name for name, e in ATTACKS if e == expected]


def compile_kernel(d):
    small = ["cc", "-static", "-nostdlib", "-O1", "-w", "-fno-stack-protector", "-fno-pie", "-no-pie"]
    all_c = [SOURCE / f for f in ("main.c", "calls.c", "cpus.c", "memory.c", "reduced.c", "vhost.c")]
    for cc in (
        [*small, "-o", d / "greedy", SOURCE / "greedy.c"],
        [*small, "-DBIG", "-o", d / "big", SOURCE / "greedy.c"],
        ["cc", "-static", "-O1", "-w", "-D_GNU_SOURCE", "-Wa,-I.", "-o", d / "evil", *all_c],
    ):
        subprocess.run(cc, cwd=d, check=True)
    return (d / "evil").read_bytes()


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    return compile_kernel(tmp_path_factory.mktemp("evil"))


@pytest.fixture(scope="module")
def box(module_msb):
    """A stopped sandbox; and another, with two CPUs."""
    for name, more in (("evil", ()), ("several", ("--cpus", "2"))):
        module_msb.create(name, "--engine", "uml", "-m", f"{MEMORY}M", *more)
        module_msb.ok("stop", "-q", "-t", "0", name)
    return module_msb


def logs(box, name="evil"):
    return list((box.home / "sandboxes" / name / "run" / "logs").glob("*"))


@contextlib.contextmanager
def starter(box, kernel, tmp_path):
    """What starts the sandbox with the evil kernel, set to an attack: the client that waits for it."""
    real = pathlib.Path(os.environ.get("MSB_ASSETS", MSB.parents[2] / "assets"))
    clients, names = [], set()

    def starts(attack, name="evil"):
        mark = b"@WANTED@"
        assert kernel.count(mark) == 1
        for file in ("linux-uml", "linux-uml-smp"):  # the second one if there are several CPUs
            (tmp_path / file).write_bytes(kernel.replace(mark.ljust(64, b"\0"), attack.encode().ljust(64, b"\0")))
            (tmp_path / file).chmod(0o755)
        for f in ("tools.erofs", "base.erofs"):
            (tmp_path / f).symlink_to(real / f)
        for f in logs(box, name):
            f.unlink()
        env = {**box.env, "MSB_ASSETS": str(tmp_path)}
        names.add(name)
        clients.append(box.popen("start", name, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return clients[-1]

    yield starts
    for p in clients:  # a sandbox that was not acknowledged ends with the client that starts it
        p.kill()
        p.communicate(timeout=60)
    wait_for(lambda: not any(box.monitor_pid(name) for name in names))


@pytest.fixture
def start(box, kernel, tmp_path):
    with starter(box, kernel, tmp_path) as starts:
        yield starts


def said(box, name="evil"):
    """What it wrote to its console."""
    return "".join(f.read_text(errors="replace") for f in logs(box, name))


def reason(box, name="evil"):
    state = (box.home / "sandboxes" / name / "run" / "state.json").read_text()
    assert '"crashed"' in state.lower(), state
    return re.search(r'"reason": ?"([^"]*)"', state)[1]


@pytest.mark.parametrize("attack", named("REFUSED"))
def test_refused(box, start, attack):
    p = start(attack)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 1
    assert reason(box) == "the guest kernel ended with status 42", (err, said(box)[-2000:])
    assert sum(f.stat().st_size for f in logs(box)) <= 31 << 20


@pytest.mark.parametrize("attack", named("SEVERAL"))
def test_refused_with_several_cpus(box, start, attack):
    p = start(attack, "several")
    _, err = p.communicate(timeout=60)
    assert p.returncode == 1
    assert reason(box, "several") == "the guest kernel ended with status 42", (err, said(box, "several")[-2000:])


@pytest.mark.parametrize("attack", named("HELD"))
def test_held(box, start, attack):
    """What the host has given is within bounds; and it can be killed."""
    p = start(attack)
    wait_for(lambda: "evil: " in said(box) or p.poll() is not None, timeout=60)
    assert "evil: holding: " in said(box), said(box)[-2000:]
    monitor = box.monitor_pid("evil")
    assert taken(monitor) <= MEMORY + CONSTANT
    assert len(box.tree(monitor)) <= 128 + 2 * MEMORY + 8
