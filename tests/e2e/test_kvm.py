"""What only the kvm engine does: real CPUs, memory that comes back, threads behind filters."""
import hashlib
import json
import os
import pathlib
import re
import socket
import subprocess
import threading

import pytest

from conftest import CPUS, MSB, wait_for
from guest import PATIENCE, sh


def kvm_runs():
    engine = os.environ.get("MSB_ENGINE", "auto")
    if engine != "auto":
        return engine == "kvm"
    p = subprocess.run([MSB, "doctor", "--format", "json"], stdout=subprocess.PIPE,
                       stderr=subprocess.DEVNULL, check=False)
    return any(c["name"] == "Engine" and c["detail"].startswith("kvm")
               for c in json.loads(p.stdout)["checks"])


if not kvm_runs():
    pytest.skip("sandboxes run on another engine here: tests/kvm runs these in its testbed",
                allow_module_level=True)


def guest_memory_kib(msb, name):
    """Host memory behind the guest's: the shared pages of its monitor."""
    status = pathlib.Path(f"/proc/{msb.monitor_pid(name)}/status").read_text()
    return int(re.search(r"RssShmem:\s+(\d+) kB", status).group(1))


def test_engine_and_machine(msb):
    msb.create("a")
    assert json.loads(msb.ok("inspect", "a", "--format", "json"))["engine"] == "kvm"
    flags = sh(msb, "a", "grep -m1 ^flags /proc/cpuinfo").split()
    assert {"hypervisor", "lm", "sse2"} <= set(flags)
    assert sh(msb, "a", "cat /sys/devices/system/clocksource/clocksource0/current_clocksource").strip() in (
        "kvm-clock", "tsc")


def test_every_cpu_works(msb):
    n = int(CPUS or 2)
    msb.create("a", "--cpus", n)
    assert sh(msb, "a", "nproc").strip() == str(n)
    # Each of them runs a process of its own.
    for cpu in range(n):
        on = sh(msb, "a", f"taskset {1 << cpu:x} cut -d' ' -f39 /proc/self/stat")
        assert on == f"{cpu}\n"
    ids = sh(msb, "a", "grep ^apicid /proc/cpuinfo | sort -u").splitlines()
    assert len(ids) == n


def test_threads_are_filtered(msb):
    """Every thread of a monitor, those of virtual CPUs above all, is behind a filter."""
    if os.geteuid() != 0:
        pytest.skip("looking into a monitor's /proc takes root")
    msb.create("a", "--cpus", "2")
    tasks = list(pathlib.Path(f"/proc/{msb.monitor_pid('a')}/task").iterdir())
    assert len(tasks) >= 4, "two virtual CPUs, two loops"
    for task in tasks:
        status = (task / "status").read_text()
        assert re.search(r"^Seccomp:\t2$", status, re.M), (task, status)
        assert re.search(r"^CapEff:\t0+$", status, re.M), (task, status)
        assert re.search(r"^NoNewPrivs:\t1$", status, re.M), (task, status)


@pytest.mark.parametrize("shared", [False, True])
def test_memory_comes_back(msb, tmp_path, shared):
    """What a guest has freed goes back to the host, by free page reporting; also where its memory is a
    file that a share's server has mapped, too."""
    if os.geteuid() != 0:
        pytest.skip("looking into a monitor's /proc takes root")
    msb.create("a", "-m", "128M", *(["-v", f"{tmp_path}:/w"] if shared else []))
    before = guest_memory_kib(msb, "a")
    assert before < 80 * 1024, "memory is committed as it is used"
    sh(msb, "a", "mount -t tmpfs -o size=100m t /mnt && head -c 48m /dev/zero > /mnt/x", timeout=PATIENCE)
    full = guest_memory_kib(msb, "a")
    assert full > before + 40 * 1024  # some of what was free at first is gone already
    sh(msb, "a", "umount /mnt")
    wait_for(lambda: guest_memory_kib(msb, "a") < full - 32 * 1024, timeout=PATIENCE)
    assert sh(msb, "a", "echo alive") == "alive\n", "and the guest has not noticed"


def test_large_memory_is_not_touched(msb):
    """A guest with a hole below 4 GiB, of which it uses little."""
    msb.create("a", "-m", "4G")
    kib = int(sh(msb, "a", "sed -n 's/^MemTotal: *\\([0-9]*\\) .*/\\1/p' /proc/meminfo"))
    assert kib > 3.5 * 1024 * 1024


def test_traffic_takes_no_exits(msb):
    """Frames both ways stop no virtual CPU: kicks are eventfds, registers are read as memory."""
    data = os.urandom(2 << 20)
    with socket.create_server(("127.0.0.1", 0)) as s:
        def serve():
            for size in (0, len(data)):
                c, _ = s.accept()
                with c:
                    got.append(c.makefile("rb").read(size))
                    c.sendall(data)

        got = []
        threading.Thread(target=serve, daemon=True).start()
        msb.create("a", "--net", "host", "--log-level", "debug")
        port = s.getsockname()[1]
        out = sh(msb, "a", f"nc host.microsandbox.internal {port} </dev/null | sha256sum;"
                 f"head -c 2m /dev/zero | nc host.microsandbox.internal {port} | sha256sum",
                 timeout=PATIENCE)  # fmt: skip
        assert out.split()[::2] == [hashlib.sha256(data).hexdigest()] * 2
        assert got == [b"", bytes(len(data))]
    msb.ok("stop", "-q", "a", timeout=PATIENCE)
    log = msb.ok("logs", "a", "--source", "system")
    writes = [int(n) for n in re.findall(r"exits to user space: .* (\d+) register write", log)]
    # Some 4 MiB moved, in thousands of frames; giving the devices up takes a few writes each.
    assert len(writes) == 2 and writes[1] - writes[0] < 100, log
